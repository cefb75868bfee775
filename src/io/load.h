// Reading a tensor file from anything that has a size and can be read at an offset.
#pragma once

#include <cstdint>
#include <functional>

#include "tamis/io.h"
#include "tamis/status.h"

namespace tamis::io {

// Fills `to` with `count` bytes found at `offset`, or says why it cannot. Never asked beyond the size given
// to load.
using ReadAt = std::function<Status(int64_t offset, void* to, int64_t count)>;

Result<TensorFile> load(int64_t size, const ReadAt& read, const ReadLimits& limits);

}  // namespace tamis::io
