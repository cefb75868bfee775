#include "emulated/steps/emulate.h"

#include "core/device.cuh"  // the one of emulated/hopper/host
#include "emulated/hopper/grid.h"
#include "kernels/cuda/decode/kernel.cuh"

namespace tamis::testing {
namespace {

using namespace cuda;  // NOLINT: the kernel's vocabulary

template <class C>
std::string run(const DecodeArgs& a, const DecodeGrid& grid, uint64_t seed) {
  return emulated::run({.ctas_x = static_cast<int>(grid.tasks),
                        .ctas_y = static_cast<int>(grid.column_tiles),
                        .threads = kDecodeThreads,
                        .shared_bytes = sizeof(typename C::Shared),
                        .seed = seed,
                        .resident = 4,
                        .step_limit = 20'000'000},
                       [&](char* memory) {  // as decode_kernel
                         const DeviceTask task = a.scratch.tasks[blockIdx.x];
                         const int32_t tasks = a.scratch.head->tasks, code = verdict_of(a);
                         if (code != 0)
                           turn_down(a, code);
                         else if (static_cast<int32_t>(blockIdx.x) < tasks)
                           attend<C>(a, task, static_cast<int32_t>(blockIdx.y),
                                     *reinterpret_cast<typename C::Shared*>(memory));
                       })
      .error;
}

// As launch_tiles.
template <int kDim, int kTiles>
std::string run_tiles(const DecodeKey& key, const DecodeArgs& a, const DecodeGrid& grid, uint64_t seed) {
  using T = device::BF16;
  if (key.ring == Ring::kShort)
    return run<DecodeConfig<T, kDim, kTiles, true, Feeding::kEither, short_stages(kDim)>>(a, grid, seed);
  if (key.many) return run<DecodeConfig<T, kDim, kTiles, true, Feeding::kEither>>(a, grid, seed);
  if (a.tokens) return run<DecodeConfig<T, kDim, kTiles, false, Feeding::kTokens>>(a, grid, seed);
  return run<DecodeConfig<T, kDim, kTiles, false, Feeding::kBlocks>>(a, grid, seed);
}

}  // namespace

std::string emulate_decode(const DecodeKey& key, const DecodeArgs& a, const DecodeGrid& grid, uint64_t seed) {
  if (key.dtype != DType::kBF16 || key.dim > 128 || key.columns != 8) return "this is not emulated";
  return key.dim == 64 ? run_tiles<64, 1>(key, a, grid, seed) : run_tiles<128, 1>(key, a, grid, seed);
}

}  // namespace tamis::testing
