// What an inst_*.cu holds: the instances of one element type and padded head size.
#pragma once

#include "core/launch.h"
#include "kernels/cuda/decode/kernel.cuh"
#include "kernels/cuda/decode/launch.h"

namespace tamis::cuda {

template <class C>
Status launch_instance(const DecodeArgs& args, const DecodeGrid& grid, void* stream) {
  return device::launch<&decode_kernel<C>>(
      {.blocks = dim3(static_cast<unsigned>(grid.tasks), static_cast<unsigned>(grid.column_tiles)),
       .threads = kDecodeThreads,
       .shared_bytes = static_cast<int64_t>(sizeof(typename C::Shared)),
       .early = true},
      args, static_cast<cudaStream_t>(stream), "decode");
}

template <class T, int kDim, int kTiles>
Status launch_tiles(const DecodeKey& key, const DecodeArgs& args, const DecodeGrid& grid, void* stream) {
  // Columns that differ take both load policies in one kernel: halves the instances, and such rows are bound
  // by their masks.
  if (key.many)
    return launch_instance<DecodeConfig<T, kDim, kTiles, true, Feeding::kEither>>(args, grid, stream);
  return args.tokens
             ? launch_instance<DecodeConfig<T, kDim, kTiles, false, Feeding::kTokens>>(args, grid, stream)
             : launch_instance<DecodeConfig<T, kDim, kTiles, false, Feeding::kBlocks>>(args, grid, stream);
}

template <class T, int kDim>
Status launch_dim(const DecodeKey& key, const DecodeArgs& args, const DecodeGrid& grid, void* stream) {
  if (key.columns == 8) return launch_tiles<T, kDim, 1>(key, args, grid, stream);
  if constexpr (kDim <= 128)
    return launch_tiles<T, kDim, 2>(key, args, grid, stream);
  else  // it would spill (tools/check_sass.py); plan_step does not ask for it
    return {Code::kUnsupported, "columns: 16 beside head sizes above 128; nearest: 8"};
}

}  // namespace tamis::cuda
