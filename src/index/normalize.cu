// The kernels of normalize() on the device: one CTA a bundle (index/builder.cuh).
#include "core/launch.h"
#include "index/builder.cuh"

namespace tamis::index {
namespace {

template <bool kListsShared, bool kOneQuery, bool kPlain>
__global__ void __launch_bounds__(kPlain ? 1024 : 256, kPlain ? 1 : 2)
    normalize_kernel(const __grid_constant__ NormalizeArgs args) {
  extern __shared__ __align__(16) char memory[];
  __shared__ Shared shared;
  device::wait_for_predecessor();
  device::let_successor_start();
  Builder<kListsShared, kOneQuery, kPlain>(args, shared, memory).build();
}

// Few CTAs wait for memory and gain from more threads; many fill the chip and lose by the barriers.
int plain_threads(const NormalizeArgs& args) {
  return args.out.bundles <= 264 && args.staged >= 1024 ? 1024 : 256;
}

}  // namespace

Status launch_normalize(const NormalizeArgs& args, const NormalizeShared& shared, void* stream) {
  if (args.out.bundles == 0) return {};
  const bool one = args.candidates.query_block == 1, plain = is_plain(args, shared);
  const auto kernel =
      plain          ? &normalize_kernel<true, true, true>
      : shared.lists ? (one ? &normalize_kernel<true, true, false> : &normalize_kernel<true, false, false>)
                     : (one ? &normalize_kernel<false, true, false> : &normalize_kernel<false, false, false>);
  return device::launch(kernel,
                        {.blocks = dim3(static_cast<unsigned>(args.out.bundles)),
                         .threads = plain ? plain_threads(args) : 256,
                         .shared_bytes = shared.bytes,
                         .early = true},
                        args, static_cast<cudaStream_t>(stream), "normalize");
}

}  // namespace tamis::index
