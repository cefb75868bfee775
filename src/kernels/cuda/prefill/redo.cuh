// Rows that the prefill kernel has left: where a V that is not finite has met rows that do not select it. The
// decode kernel sums each row alone. Most runs leave none, and this ends at once.
#pragma once

#include "kernels/cuda/decode/kernel.cuh"
#include "kernels/cuda/prefill/args.h"

namespace tamis::cuda {

// Always one shape: columns of one task of a group, over all of its blocks.
template <class C>
__device__ void redo_rows(const PrefillArgs& a, typename C::Shared& s) {
  constexpr uint32_t kTiles = 16 / C::kColumns;  // of 16 rows
  // A refused batch may have left the counters of work unwritten.
  if (verdict_of(a.step) != 0) return;
  const uint32_t count = __ldcg(a.work.redo_count) * kTiles;
  for (uint32_t i = blockIdx.x; i < count; i += gridDim.x) {
    const RedoEntry entry = a.work.redo[i / kTiles];
    DeviceTask task = a.step.scratch.tasks[entry.task];
    task.begin = 0;
    task.end = max(a.step.index.count[task.bundle], 0);
    task.part = -1;
    attend<C, false>(a.step, task,
                     entry.tile * static_cast<int32_t>(kTiles) + static_cast<int32_t>(i % kTiles), s);
    __syncthreads();
  }
  // Every CTA has read the count by the time that the last one is here.
  if (threadIdx.x == 0 && device::arrive(a.work.redo_done, gridDim.x - 1) == gridDim.x - 1)
    *a.work.redo_count = 0;
}

}  // namespace tamis::cuda
