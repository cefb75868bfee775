// Decode attention over an index set: one CTA a task and tile of query rows. Four warps take turns at the
// keys, 16 at a time, each with its own ring; their states are joined in shared memory. A row that was split
// is finished by the CTA that arrives last, in the order of its parts.
//
// Floor, prediction and readings: docs/kernels/cuda_decode.md.
#pragma once

#include "core/device.cuh"
#include "kernels/cuda/decode/combine.cuh"

namespace tamis::cuda {

inline constexpr int kDecodeThreads = 128, kDecodeWarps = kDecodeThreads / 32;

// Stages of a warp's ring. Full: about 96 KB a CTA and two CTAs a multiprocessor, or 128 KB and one: enough
// bytes under way for the memory. Short: 64 KB, for devices that have no room for more (launch.h). With one
// stage a warp loads and sums by turns, and only the other warps' loads go on meanwhile.
constexpr int full_stages(int dim) { return dim == 64 ? 6 : dim == 128 ? 3 : 2; }
constexpr int short_stages(int dim) { return 256 / dim; }

template <class T_, int kDim_, int kTiles_, bool kMany_, Feeding kFeeding_, int kStages_ = full_stages(kDim_)>
struct DecodeConfig {
  using T = T_;
  static constexpr int kDim = kDim_, kTiles = kTiles_, kColumns = 8 * kTiles_;
  static constexpr bool kMany = kMany_;
  static constexpr Feeding kFeeding = kFeeding_;
  static constexpr int kStages = kStages_;
  static constexpr bool kQueues = kFeeding != Feeding::kBlocks;
  using Ring = Feed<kDim, kStages, kMany, kFeeding>;
  using Sums = State<T, kDim, kTiles, kMany, kFeeding>;

  struct Shared {
    alignas(1024) char ring[kDecodeWarps][kStages * Ring::kStageBytes];
    alignas(512) char q[kColumns * kDim * 2];
    StageNote notes[kDecodeWarps][kStages];
    PartialSum ml[kDecodeWarps][kColumns];
    Column columns[kColumns];
    TokenQueue queue[kQueues ? kDecodeWarps : 1];
    int32_t last;
    bool stale;  // the slot of the request was reused
  };
  static_assert(kStages * Ring::kStageBytes >= kColumns * (kDim + 4) * 4,
                "the ring also holds the warp's result");
};

// What the head words of control, index and scratch say about this step.
__device__ inline int32_t verdict_of(const DecodeArgs& a) {
  const ScratchHead& scratch = *a.scratch.head;
  // All loads before the first comparison: they travel together.
  const uint64_t now = a.control->epoch, made = scratch.stamp, plan = scratch.plan;
  const index::IndexHead index = *a.index.head;
  const int32_t code = scratch.code;
  const uint64_t stamp = stamp_of(a.control, now);
  const bool stale = (stamp ^ index.stamp) | (stamp ^ made) | (plan ^ a.plan) |
                     (index.mark.plan ^ a.mark.plan) | (index.mark.problem ^ a.mark.problem) | (now == 0);
  return stale ? static_cast<int32_t>(Code::kStalePlan) : code;
}

// Columns [first, last) of the warps' states: stored where the task is the whole row, else left for the
// merge.
template <class C>
__device__ void join_warps(const DecodeArgs& a, const Group& g, const DeviceTask& task, int32_t first,
                           int32_t last, typename C::Shared& s) {
  const int32_t quads = (a.v.dim + 3) / 4;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < (last - first) * quads; i += kDecodeThreads) {
    const int32_t column = first + i / quads, d = i % quads * 4;
    Quad q{-INFINITY, 0, make_float4(0, 0, 0, 0)};
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) q.m = fmaxf(q.m, s.ml[w][column].m);
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) {
      const float l = s.ml[w][column].l, weight = weight_of(s.ml[w][column].m, q.m);
      // Only where all scores are -inf do the marks of such states count.
      q.l = l < 0 ? (q.m == -INFINITY ? -1 : q.l) : q.l + weight * l;
      const float* o = reinterpret_cast<const float*>(s.ring[w]) + column * (C::kDim + 4) + d;
      add_weighted(weight, *reinterpret_cast<const float4*>(o), &q.o);
    }
    if (task.part < 0) {
      store_row(a, s.columns[column], d, q, s.stale);
      continue;
    }
    const int64_t row = task.part * a.scratch.rows + g.first_row + column;
    *reinterpret_cast<float4*>(a.scratch.o + row * (quads * 4) + d) = q.o;
    if (d == 0) a.scratch.ml[row] = {q.m, q.l};
  }
}

// What join_parts() keeps of a number of parts in shared memory: of each thread four elements, of each column
// the maximum and the sum.
template <class C>
struct PartsInRing {
  static constexpr int kMost =
      sizeof(C::Shared::ring) / (kDecodeThreads * sizeof(float4) + C::kColumns * sizeof(float2));
  float4 o[kMost][kDecodeThreads];
  float2 ml[kMost][C::kColumns];
};

// The parts of a row, by the CTA that arrived last, in their order: all that fit are asked for before the
// first is looked at, and what is left in rounds. Little code, since one CTA runs it once, and has to fetch
// it.
template <class C>
__device__ void join_parts(const DecodeArgs& a, const Group& g, const DeviceTask& task,
                           typename C::Shared& s) {
  using Parts = PartsInRing<C>;
  static_assert(sizeof(Parts) <= sizeof(s.ring) && Parts::kMost >= 1);
  Parts& ring = *reinterpret_cast<Parts*>(s.ring);
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  const int64_t rows = a.scratch.rows, first = task.first_part * rows + g.first_row;
  const int32_t quads = (a.v.dim + 3) / 4, all = g.columns * quads;
  for (int32_t begin = 0; begin < all; begin += kDecodeThreads) {
    const int32_t i = min(begin + thread, all - 1), column = i / quads, d = i % quads * 4;
    Quad q{-INFINITY, 0, make_float4(0, 0, 0, 0)};
    bool marked = false;
    for (int32_t at = 0; at < task.parts; at += Parts::kMost) {
      const int32_t parts = min(task.parts - at, Parts::kMost);
      __syncthreads();  // the ring is read no more
      const float* from = a.scratch.o + ((first + at * rows + column) * quads * 4 + d);
      uint32_t to = device::shared_address(&ring.o[0][thread]);
#pragma unroll 1
      for (int32_t p = 0; p < parts; ++p, from += rows * quads * 4, to += sizeof ring.o[0])
        device::copy_async(to, from);
      for (int32_t k = thread; k < parts * g.columns; k += kDecodeThreads) {
        const int32_t p = k / g.columns, c = k - p * g.columns;
        ring.ml[p][c] = __ldcg(reinterpret_cast<const float2*>(a.scratch.ml + first + (at + p) * rows + c));
      }
      device::copy_commit();
      device::copy_wait<0>();
      __syncthreads();
      float top = q.m;
#pragma unroll 4
      for (int32_t p = 0; p < parts; ++p) top = fmaxf(top, ring.ml[p][column].x);
      const float before = weight_of(q.m, top);
      q = {top, before * q.l, make_float4(before * q.o.x, before * q.o.y, before * q.o.z, before * q.o.w)};
#pragma unroll 4
      for (int32_t p = 0; p < parts; ++p) {
        const float2 ml = ring.ml[p][column];
        const float weight = weight_of(ml.x, top);
        marked |= ml.y < 0;
        if (!(ml.y <= 0)) q.l += weight * ml.y;
        add_weighted(weight, ring.o[p][thread], &q.o);
      }
    }
    if (marked && q.m == -INFINITY) q.l = -1;
    if (begin + thread < all) store_row(a, s.columns[column], d, q, s.stale);
  }
}

// kCountsRedone: rows that are summed alone are counted as such; else the caller has done so.
template <class C, bool kCountsRedone = true>
__device__ void attend(const DecodeArgs& a, const DeviceTask& task, int32_t column_tile,
                       typename C::Shared& s) {
  const int warp = static_cast<int>(threadIdx.x / 32);
  const uint32_t ring = device::shared_address(s.ring[warp]);
  // In the order in which the loads are wanted: the bundle and the first keys' places are under way together,
  // then Q, then K and V. Only a place of its own is waited for, and before the bundle is asked for: were its
  // load among those, waiting for it would be waiting for all, also where there is none. The sign, which is
  // 0, is there to keep that order.
  int64_t entries = int64_t{task.bundle} * a.index.capacity;
  if (a.index.own.an_entry > 0) entries = device::load_here(&a.index.bundle[task.bundle].begin);
  const index::DeviceBundle bundle = a.index.bundle[task.bundle + (entries >> 63)];
  Group g{.request = bundle.request,
          .first_query = bundle.first_query,
          .queries = bundle.last_query - bundle.first_query,
          .kv_head = task.kv_head,
          .kv_len = bundle.kv_len,
          .base_slot = bundle.base_slot,
          .position = bundle.position,
          .first_row = int64_t{column_tile} * C::kColumns,
          .columns = 0};
  typename C::Ring feed(a, g, task, entries, s.columns, ring, s.notes[warp], &s.queue[C::kQueues ? warp : 0]);
  if (g.request < 0) return;
  const int64_t rows = int64_t{g.queries} * a.q.group;
  if (g.first_row >= rows) return;
  g.columns = static_cast<int32_t>(rows - g.first_row < C::kColumns ? rows - g.first_row : C::kColumns);
  if (threadIdx.x < C::kColumns) s.columns[threadIdx.x] = column_of(a, g, static_cast<int32_t>(threadIdx.x));
  __syncthreads();

  typename C::Sums sums(a, s.columns, g.columns);
  sums.scale_ = a.score.scale * kLog2E;
  constexpr int kPieces = C::kDim / 8, kEach = C::kColumns * kPieces / kDecodeThreads;
  static_assert(kEach * kDecodeThreads == C::kColumns * kPieces || kEach == 0);
  constexpr int kHeld = kEach > 0 ? kEach : 1;
  uint4 held[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * kDecodeThreads;
    if (at < C::kColumns * kPieces) held[i] = query_piece(a, s.columns[at / kPieces], at % kPieces);
  }
  feed.clear_padding();
  feed.start(~0u);
  int32_t stages = 0;
  for (int i = 0; i < C::kStages; ++i) {
    stages += feed.issue(i);
  }
  // Q was asked for before K and V and has come by now.
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * kDecodeThreads;
    if (at < C::kColumns * kPieces)
      *reinterpret_cast<uint4*>(s.q + C::Ring::place_of(at / kPieces, at % kPieces)) = held[i];
  }
  __syncthreads();
  sums.load_queries(device::shared_address(s.q));
  int32_t begun = 0;
  // All columns at once; then, where a V that is not finite has crossed columns as 0 * NaN, each column over
  // its own keys alone.
  for (int32_t pass = -1; pass < g.columns; ++pass) {
    int stage = 0;
    for (int32_t i = 0; i < stages; ++i) {
      device::copy_wait<C::kStages - 1>();
      __syncwarp();
      const uint32_t k = ring + stage * C::Ring::kStageBytes;
      sums.add(k, k + C::Ring::kSideBytes, s.notes[warp][stage]);
      __syncwarp();
      stages += feed.issue(stage);
      stage = stage + 1 < C::kStages ? stage + 1 : 0;
    }
    device::copy_wait<0>();
    __syncwarp();
    sums.finish();
    begun += stages;
    const bool alone = pass >= 0;
    if (!(C::kMany && !alone && __syncthreads_or(!sums.finite()))) {
      if (threadIdx.x == 0) s.stale = is_stale(a.out.slots, g.request);
      sums.store(reinterpret_cast<float*>(s.ring[warp]), s.ml[warp], alone ? 1u << pass : ~0u);
      __syncthreads();
      join_warps<C>(a, g, task, alone ? pass : 0, alone ? pass + 1 : g.columns, s);
      if (!alone) break;
    } else if (kCountsRedone && a.counters != nullptr && threadIdx.x == 0) {
      atomicAdd(&a.counters->rows_redone, static_cast<unsigned long long>(g.columns));
    }
    if constexpr (C::kMany) {
      __syncthreads();
      if (pass + 1 < g.columns) {
        feed.rewind();
        feed.clear_padding();
        feed.start(1u << (pass + 1));
        stages = 0;
        for (int i = 0; i < C::kStages; ++i) stages += feed.issue(i);
      }
      sums.reset();
    }
  }
  if (a.counters != nullptr && threadIdx.x % 32 == 0) {
    atomicAdd(&a.counters->tokens_loaded, static_cast<unsigned long long>(feed.loaded));
    atomicAdd(&a.counters->tiles, static_cast<unsigned long long>((begun + 3) / 4));
    if (threadIdx.x == 0) atomicAdd(&a.counters->tasks, 1ull);
  }
  if (task.part < 0) return;
  __syncthreads();
  if (threadIdx.x == 0) {
    uint32_t* arrivals = a.scratch.arrivals + int64_t{task.counter} * gridDim.y + column_tile;
    s.stale = is_stale(a.out.slots, g.request);
    s.last = device::arrive(arrivals, static_cast<uint32_t>(task.parts - 1)) ==
             static_cast<uint32_t>(task.parts - 1);
  }
  __syncthreads();
  if (s.last) join_parts<C>(a, g, task, s);
}

}  // namespace tamis::cuda
