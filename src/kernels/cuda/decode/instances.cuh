// What an inst_*.cu holds: the instances of one element type and padded head size.
#pragma once

#include "core/launch.h"
#include "kernels/cuda/decode/kernel.cuh"
#include "kernels/cuda/decode/launch.h"

namespace tamis::cuda {

template <class C>
__global__ void __launch_bounds__(kDecodeThreads, C::kDim == 256 ? 1 : 2)
    decode_kernel(const __grid_constant__ DecodeArgs a) {
  extern __shared__ __align__(1024) char memory[];
  device::wait_for_predecessor();
  device::let_successor_start();
  const DeviceTask task = a.scratch.tasks[blockIdx.x];  // of an earlier step where there are fewer now
  const int32_t tasks = a.scratch.head->tasks, code = verdict_of(a);
  if (code != 0)
    turn_down(a, code);
  else if (static_cast<int32_t>(blockIdx.x) < tasks)
    attend<C>(a, task, static_cast<int32_t>(blockIdx.y), *reinterpret_cast<typename C::Shared*>(memory));
}

// `kMostBytes` of shared memory are what the choice of rings goes by.
template <class C, int64_t kMostBytes = full_ring_bytes(C::kDim)>
Status launch_instance(const device::Target& target, const DecodeArgs& args, const DecodeGrid& grid,
                       void* stream) {
  static_assert(sizeof(typename C::Shared) <= kMostBytes);
  return device::launch<&decode_kernel<C>>(
      target,
      {.blocks = dim3(static_cast<unsigned>(grid.tasks), static_cast<unsigned>(grid.column_tiles)),
       .threads = kDecodeThreads,
       .shared_bytes = static_cast<int64_t>(sizeof(typename C::Shared)),
       .early = true},
      args, static_cast<cudaStream_t>(stream), "decode");
}

template <class T, int kDim, int kTiles>
Status launch_tiles(const device::Target& target, const DecodeKey& key, const DecodeArgs& args,
                    const DecodeGrid& grid, void* stream) {
  // With short rings one instance serves every case: there are as few as can be of what few devices need.
  if (key.ring == Ring::kShort)
    return launch_instance<DecodeConfig<T, kDim, kTiles, true, Feeding::kEither, short_stages(kDim)>,
                           kShortRingBytes>(target, args, grid, stream);
  // Columns that differ take both load policies in one kernel: halves the instances, and such rows are bound
  // by their masks.
  if (key.many)
    return launch_instance<DecodeConfig<T, kDim, kTiles, true, Feeding::kEither>>(target, args, grid, stream);
  if (args.tokens)
    return launch_instance<DecodeConfig<T, kDim, kTiles, false, Feeding::kTokens>>(target, args, grid,
                                                                                   stream);
  return launch_instance<DecodeConfig<T, kDim, kTiles, false, Feeding::kBlocks>>(target, args, grid, stream);
}

template <class T, int kDim>
Status launch_dim(const device::Target& target, const DecodeKey& key, const DecodeArgs& args,
                  const DecodeGrid& grid, void* stream) {
  if (key.columns == 8) return launch_tiles<T, kDim, 1>(target, key, args, grid, stream);
  if constexpr (kDim <= 128)
    return launch_tiles<T, kDim, 2>(target, key, args, grid, stream);
  else  // it would spill (tools/check_sass.py); plan_step does not ask for it
    return {Code::kUnsupported, "columns: 16 beside head sizes above 128; nearest: 8"};
}

}  // namespace tamis::cuda
