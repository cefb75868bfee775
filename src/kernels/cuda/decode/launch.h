// Starting the decode kernel that fits.
#pragma once

#include "kernels/cuda/decode/args.h"
#include "tamis/status.h"

namespace tamis::cuda {

// What tells the instances apart.
struct DecodeKey {
  DType dtype;      // bf16 or f16
  int32_t dim;      // 64, 128 or 256: what D and Dv are padded to on chip
  int32_t columns;  // 8 or 16
  bool many;        // columns differ in lists or positions
};

// A CTA a task and tile of columns.
struct DecodeGrid {
  int64_t tasks, column_tiles;
};

Status launch_decode(const DecodeKey& key, const DecodeArgs& args, const DecodeGrid& grid, void* stream);

// One for each file of instances.
using DecodeLaunch = Status (*)(const DecodeKey&, const DecodeArgs&, const DecodeGrid&, void*);
Status launch_decode_bf16_64(const DecodeKey&, const DecodeArgs&, const DecodeGrid&, void*);
Status launch_decode_bf16_128(const DecodeKey&, const DecodeArgs&, const DecodeGrid&, void*);
Status launch_decode_bf16_256(const DecodeKey&, const DecodeArgs&, const DecodeGrid&, void*);
Status launch_decode_f16_64(const DecodeKey&, const DecodeArgs&, const DecodeGrid&, void*);
Status launch_decode_f16_128(const DecodeKey&, const DecodeArgs&, const DecodeGrid&, void*);
Status launch_decode_f16_256(const DecodeKey&, const DecodeArgs&, const DecodeGrid&, void*);

}  // namespace tamis::cuda
