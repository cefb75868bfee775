// Addresses in the shared memory of the CTA whose thread runs.
#pragma once

#include <cstdint>

namespace tamis::emulated {

uint32_t shared_address(const void* p);

}  // namespace tamis::emulated
