// A tensor in device memory as the copy engine knows it: five axes, of which a box is copied at a time. What
// lies outside the tensor arrives as zeros.
#pragma once

#include <cstdint>

namespace tamis::device {

// Axes from the innermost outwards; the innermost one is dense. Axes may overlap in memory.
struct TensorSpec {
  const void* data;   // on 16 bytes
  int64_t size[5];    // elements of 16 bits, 1 to 2^32
  int64_t stride[4];  // bytes from one to the next along axis 1 to 4: multiples of 16 below 2^40
  int32_t box[5];     // elements, up to 256 along an axis; 128 bytes along axis 0
};

// The 128 bytes that the instruction reads (CUtensorMap). Boxes lie in shared memory as their elements follow
// each other, with the 16-byte pieces of every 1024 bytes permuted: piece p of line r at p ^ r.
struct alignas(128) TensorMap {
  uint64_t words[16];
};

}  // namespace tamis::device
