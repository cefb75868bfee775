// The kernels of normalize() on the device: one CTA a bundle (index/builder.cuh).
#include "core/launch.h"
#include "index/builder.cuh"

namespace tamis::index {
namespace {

// Of many queries and one list, CTAs are often one warp: fewer registers than there could be, for more of
// them.
template <bool kListsShared, bool kOneQuery, bool kPlain>
__global__ void __launch_bounds__(kOneQuery ? (kPlain ? 1024 : 256) : 256, kPlain ? (kOneQuery ? 1 : 3) : 2)
    normalize_kernel(const __grid_constant__ NormalizeArgs args) {
  extern __shared__ __align__(16) char memory[];
  __shared__ Shared shared;
  device::wait_for_predecessor();
  device::let_successor_start();
  Builder<kListsShared, kOneQuery, kPlain>(args, shared, memory).build();
}

template <bool kListsShared, bool kOneQuery, bool kPlain>
Status launch_instance(const device::Target& target, const NormalizeArgs& args, const NormalizeShared& shared,
                       void* stream) {
  return device::launch<&normalize_kernel<kListsShared, kOneQuery, kPlain>>(
      target,
      {.blocks = dim3(static_cast<unsigned>(args.out.bundles)),
       .threads = normalize_threads(args, shared),
       .shared_bytes = shared.bytes,
       .early = true},
      args, static_cast<cudaStream_t>(stream), "normalize");
}

}  // namespace

Status launch_normalize(const NormalizeArgs& planned, const NormalizeShared& wanted, void* stream) {
  if (planned.out.bundles == 0) return {};
  device::Target target;
  TAMIS_RETURN_IF_ERROR(device::current_target("normalize", &target));
  const NormalizeShared shared = within(wanted, target.facts.shared_bytes);
  NormalizeArgs args = planned;
  args.staged = shared.staged;
  const auto launch = [&](auto* instance) { return instance(target, args, shared, stream); };
  const bool one = args.candidates.query_block == 1;
  if (is_plain(args, shared))
    return launch(one ? launch_instance<true, true, true> : launch_instance<true, false, true>);
  if (shared.lists)
    return launch(one ? launch_instance<true, true, false> : launch_instance<true, false, false>);
  return launch(one ? launch_instance<false, true, false> : launch_instance<false, false, false>);
}

}  // namespace tamis::index
