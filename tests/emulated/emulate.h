// Device code on the host.
#pragma once

#include "index/device.h"

namespace tamis::testing {

// What the kernels of normalize do, bundle by bundle, on host memory. `memory`: as much as they would have of
// shared memory, with anything in it.
void emulate_normalize(const index::NormalizeArgs& args, const index::NormalizeShared& shared, char* memory);

}  // namespace tamis::testing
