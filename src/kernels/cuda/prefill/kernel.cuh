// Prefill attention over an index set, for compute capability 9.0a. CTAs stay and draw row tiles: 128 query
// rows of a group (plan/rows.h), against the blocks of its bundle, packed back to back into tiles of keys.
// One warpgroup brings in, by a warp each, row tiles, notes, keys and values; two compute 64 rows each.
//
// Floor, prediction and readings: docs/kernels/cuda_prefill.md.
#pragma once

#include "core/device.cuh"
#include "kernels/cuda/prefill/compute.cuh"
#include "kernels/cuda/prefill/feed.cuh"
#include "kernels/cuda/prefill/items.cuh"
#include "kernels/cuda/prefill/tokens.cuh"

namespace tamis::cuda {

template <class C>
__device__ void init_barriers(typename C::Shared& s) {
  const auto init = [](uint64_t* barriers, int count, uint32_t arrivals) {
    for (int i = 0; i < count; ++i) device::barrier_init(device::shared_address(barriers + i), arrivals);
  };
  init(s.item_full, C::kSlots, kArriving);
  init(s.q_full, C::kSlots, 32);
  init(s.slot_empty, C::kSlots, (kComputingWarps + 3) * kArriving);
  init(s.note_full, kNotes, kArriving);
  init(s.note_empty, kNotes, kArriving);
  init(s.k_full, C::kStages, kArriving);
  const uint32_t computing = kComputingWarps * C::kPair * kArriving;
  init(s.k_empty, C::kStages, computing);
  init(s.v_full, C::kStages, kArriving);
  init(s.v_empty, C::kStages, computing);
  init(s.v_landed, C::kStages, kArriving);
  init(s.turn, 2, kComputingWarps / 2 * kArriving);
  init(s.drawn_full, C::kSlots, 1);
  device::barrier_init_done();
}

template <class C>
__device__ void meet() {
  if (C::kPair > 1)
    device::sync_cluster();
  else
    __syncthreads();
}

// One CTA. Inlined: products under way across a call would wait for each other.
template <class C>
__device__ __forceinline__ void attend_tiles(const PrefillArgs& a, typename C::Shared& s) {
  if (threadIdx.x == 0) init_barriers<C>(s);
  meet<C>();
  const int role = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
  if (role < 4) {
    device::lower_registers<C::kFeedRegisters>();
    if (role == 0)
      Feeder<C>(a, s).run_notes();
    else if (role == 2)
      Items<C>(a, s).run();
    else if (a.step.tokens)
      TokenFeeder<C>(a, s).run(role == 3);
    else if (role == 1)
      Feeder<C>(a, s).template run_boxes<false>();
    else
      Feeder<C>(a, s).template run_boxes<true>();
  } else {
    device::raise_registers<C::kComputeRegisters>();
    Compute<C>(a, s, role / 4 - 1).run();
  }
  if (C::kPair > 1) meet<C>();  // the other CTA may still reach for this one's shared memory
}

}  // namespace tamis::cuda
