#include "emulated/steps/emulate.h"

#include "core/device.cuh"  // the one of emulated/hopper/host
#include "emulated/hopper/grid.h"
#include "emulated/hopper/tensor_maps.h"
#include "index/builder.cuh"
#include "kernels/cuda/prefill/kernel.cuh"
#include "kernels/cuda/prefill/redo.cuh"
#include "kernels/cuda/prefill/specs.h"
#include "plan/scheduler.cuh"

namespace tamis::testing {
namespace {

using emulated::Grid;

template <bool kListsShared, bool kOneQuery, bool kPlain>
std::string build(const index::NormalizeArgs& args, const index::NormalizeShared& shared, uint64_t seed,
                  int threads) {
  const int64_t fixed = (sizeof(index::Shared) + 15) / 16 * 16;
  return emulated::run({.ctas_x = args.out.bundles,
                        .threads = threads,
                        .shared_bytes = fixed + shared.bytes,
                        .seed = seed},
                       [&](char* memory) {
                         index::Builder<kListsShared, kOneQuery, kPlain>(
                             args, *reinterpret_cast<index::Shared*>(memory), memory + fixed)
                             .build();
                       })
      .error;
}

template <class C>
std::string attend(const cuda::PrefillArgs& args, int ctas, uint64_t seed) {
  const int whole = std::max(args.pair, ctas / args.pair * args.pair);
  return emulated::run({.ctas_x = whole,
                        .threads = cuda::kPrefillThreads,
                        .shared_bytes = sizeof(typename C::Shared),
                        .seed = seed,
                        .cluster = args.pair,
                        .resident = whole,
                        .step_limit = 20'000'000},
                       [&](char* memory) {
                         if (const int32_t code = cuda::verdict_of(args.step); code != 0)
                           return cuda::turn_down(args.step, code);
                         cuda::attend_tiles<C>(args, *reinterpret_cast<typename C::Shared*>(memory));
                       })
      .error;
}

template <class T, int kDim>
std::string run_dim(bool bent, const cuda::PrefillArgs& args, int ctas, uint64_t seed) {
  using cuda::PrefillConfig;
  const std::string error = args.pair > 1
                                ? (bent ? attend<PrefillConfig<T, kDim, true, 2>>(args, ctas, seed)
                                        : attend<PrefillConfig<T, kDim, false, 2>>(args, ctas, seed))
                                : (bent ? attend<PrefillConfig<T, kDim, true, 1>>(args, ctas, seed)
                                        : attend<PrefillConfig<T, kDim, false, 1>>(args, ctas, seed));
  if (!error.empty()) return error;
  using Redo = cuda::DecodeConfig<T, kDim, kDim <= 128 ? 2 : 1, true, cuda::Feeding::kEither>;
  return emulated::run({.ctas_x = ctas,
                        .threads = cuda::kDecodeThreads,
                        .shared_bytes = sizeof(typename Redo::Shared),
                        .seed = seed,
                        .resident = ctas,
                        .step_limit = 20'000'000},
                       [&](char* memory) {
                         cuda::redo_rows<Redo>(args, *reinterpret_cast<typename Redo::Shared*>(memory));
                       })
      .error;
}

template <class T>
std::string run_type(const cuda::PrefillKey& key, const cuda::PrefillArgs& args, int ctas, uint64_t seed) {
  if (key.dim == 64) return run_dim<T, 64>(key.bent, args, ctas, seed);
  if (key.dim == 128) return run_dim<T, 128>(key.bent, args, ctas, seed);
  return run_dim<T, 256>(key.bent, args, ctas, seed);
}

void set_maps(const cuda::DecodeSide& side, const cuda::SideShape& shape, int32_t dim,
              cuda::PrefillSide* out) {
  const cuda::SideSpecs specs = cuda::specs_of(side, shape, dim);
  *out = {.block = emulated::emulated_map(specs.block),
          .group = emulated::emulated_map(specs.group),
          .page_apart = specs.page_apart,
          .outside = specs.outside};
}

}  // namespace

std::string emulate_normalize(const index::NormalizeArgs& args, const index::NormalizeShared& shared,
                              uint64_t seed, int threads) {
  if (threads == 0) threads = index::normalize_threads(args, shared);
  const bool one = args.candidates.query_block == 1;
  if (index::is_plain(args, shared))
    return one ? build<true, true, true>(args, shared, seed, threads)
               : build<true, false, true>(args, shared, seed, threads);
  if (shared.lists)
    return one ? build<true, true, false>(args, shared, seed, threads)
               : build<true, false, false>(args, shared, seed, threads);
  return one ? build<false, true, false>(args, shared, seed, threads)
             : build<false, false, false>(args, shared, seed, threads);
}

std::string emulate_schedule(const ScheduleArgs& args, uint64_t seed) {
  return emulated::run(
             {.threads = scheduling::kThreads, .shared_bytes = sizeof(scheduling::Shared), .seed = seed},
             [&](char* memory) {
               scheduling::Scheduler(args, *reinterpret_cast<scheduling::Shared*>(memory)).schedule();
             })
      .error;
}

std::string emulate_prefill(const cuda::PrefillKey& key, const cuda::PrefillArgs& without_maps,
                            const cuda::SideShape& side, int ctas, uint64_t seed) {
  cuda::PrefillArgs args = without_maps;
  if (!args.step.tokens) {
    set_maps(args.step.k, side, key.dim, &args.k);
    set_maps(args.step.v, side, key.dim, &args.v);
  }
  const cuda::RowSpecs rows = cuda::row_specs(args.step, key.dtype);
  args.q = {.map = emulated::emulated_map(rows.q), .there = rows.q_there};
  args.out = {.map = emulated::emulated_map(rows.out), .there = rows.out_there};
  return key.dtype == DType::kBF16 ? run_type<device::BF16>(key, args, ctas, seed)
                                   : run_type<device::F16>(key, args, ctas, seed);
}

}  // namespace tamis::testing
