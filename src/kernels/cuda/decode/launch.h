// Starting the decode kernel that fits.
#pragma once

#include "kernels/cuda/decode/args.h"
#include "tamis/status.h"

namespace tamis::device {
struct Target;
}

namespace tamis::cuda {

// What head sizes are padded to on chip.
constexpr int32_t padded_dim(int64_t head_dim, int64_t v_head_dim) {
  const int64_t dim = head_dim > v_head_dim ? head_dim : v_head_dim;
  return dim <= 64 ? 64 : dim <= 128 ? 128 : 256;
}

// Most shared memory that a CTA takes, and what it may take with short rings: 99 KB, which devices of compute
// capability 8.6, 8.9 and 12.x have, less what a launch keeps back. instances.cuh holds every instance to
// these.
constexpr int64_t full_ring_bytes(int32_t dim) { return (dim <= 128 ? 111 : 142) * 1024; }
inline constexpr int64_t kShortRingBytes = 98 * 1024;

// What tells the instances apart.
struct DecodeKey {
  DType dtype;      // bf16 or f16
  int32_t dim;      // of padded_dim: 64, 128 or 256
  int32_t columns;  // 8 or 16
  bool many;        // columns differ in lists or positions
  Ring ring;
};

// A CTA a task and tile of columns.
struct DecodeGrid {
  int64_t tasks, column_tiles;
};

Status launch_decode(const DecodeKey& key, const DecodeArgs& args, const DecodeGrid& grid, void* stream);

// One for each file of instances; the ring is kFull or kShort.
using DecodeLaunch = Status(const device::Target&, const DecodeKey&, const DecodeArgs&, const DecodeGrid&,
                            void*);
DecodeLaunch launch_decode_bf16_64, launch_decode_bf16_128, launch_decode_bf16_256, launch_decode_f16_64,
    launch_decode_f16_128, launch_decode_f16_256;

}  // namespace tamis::cuda
