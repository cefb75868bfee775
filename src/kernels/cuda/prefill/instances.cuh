// What an inst_*.cu holds: the instances of one element type and padded head size.
#pragma once

#include "core/launch.h"
#include "kernels/cuda/prefill/kernel.cuh"
#include "kernels/cuda/prefill/launch.h"
#include "kernels/cuda/prefill/redo.cuh"

namespace tamis::cuda {

template <class C>
__global__ void __launch_bounds__(kPrefillThreads, 1) prefill_kernel(const __grid_constant__ PrefillArgs a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)  // other devices are refused before the launch
  extern __shared__ __align__(1024) char memory[];
  device::wait_for_predecessor();
  device::let_successor_start();
  if (const int32_t code = verdict_of(a.step); code != 0) return turn_down(a.step, code);
  attend_tiles<C>(a, *reinterpret_cast<typename C::Shared*>(memory));
#endif
}

template <class C>
__global__ void __launch_bounds__(kDecodeThreads, C::kDim == 256 ? 1 : 2)
    redo_kernel(const __grid_constant__ PrefillArgs a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) char memory[];
  device::wait_for_predecessor();
  device::let_successor_start();
  redo_rows<C>(a, *reinterpret_cast<typename C::Shared*>(memory));
#endif
}

template <class C>
Status launch_attend(const device::Target& target, const PrefillArgs& args, unsigned ctas, cudaStream_t on) {
  constexpr unsigned pair = C::kPair;
  return device::launch<&prefill_kernel<C>>(target,
                                            {.blocks = dim3(ctas / pair * pair),
                                             .threads = kPrefillThreads,
                                             .shared_bytes = static_cast<int64_t>(sizeof(typename C::Shared)),
                                             .early = true,
                                             .cluster = pair},
                                            args, on, "prefill");
}

template <class T, int kDim>
Status launch_prefill_dim(const device::Target& target, const PrefillKey& key, const PrefillArgs& args,
                          unsigned ctas, void* stream) {
  using Redo = DecodeConfig<T, kDim, kDim <= 128 ? 2 : 1, true, Feeding::kEither>;
  const cudaStream_t on = static_cast<cudaStream_t>(stream);
  const auto attend = args.pair > 1 ? (key.bent ? &launch_attend<PrefillConfig<T, kDim, true, 2>>
                                                : &launch_attend<PrefillConfig<T, kDim, false, 2>>)
                                    : (key.bent ? &launch_attend<PrefillConfig<T, kDim, true, 1>>
                                                : &launch_attend<PrefillConfig<T, kDim, false, 1>>);
  TAMIS_RETURN_IF_ERROR(attend(target, args, ctas, on));
  return device::launch<&redo_kernel<Redo>>(
      target,
      {.blocks = dim3(ctas),
       .threads = kDecodeThreads,
       .shared_bytes = static_cast<int64_t>(sizeof(typename Redo::Shared)),
       .early = true},
      args, on, "prefill");
}

}  // namespace tamis::cuda
