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

template <class T_, int kDim_, int kTiles_, bool kMany_, Feeding kFeeding_>
struct DecodeConfig {
  using T = T_;
  static constexpr int kDim = kDim_, kTiles = kTiles_, kColumns = 8 * kTiles_;
  static constexpr bool kMany = kMany_;
  static constexpr Feeding kFeeding = kFeeding_;
  // About 96 KB a CTA and two CTAs a multiprocessor, or 128 KB and one: enough bytes under way for the
  // memory.
  static constexpr int kStages = kDim == 64 ? 6 : kDim == 128 ? 3 : 2;
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
  const uint64_t now = a.control->epoch, made = scratch.epoch, plan = scratch.plan;
  const index::IndexHead index = *a.index.head;
  const int32_t code = scratch.code;
  const bool stale = (now ^ index.epoch) | (now ^ made) | (plan ^ a.plan) | (index.mark.plan ^ a.mark.plan) |
                     (index.mark.problem ^ a.mark.problem) | (now == 0);
  return stale ? static_cast<int32_t>(Code::kStalePlan) : code;
}

// 16 bytes of a query row; zero where there is no row or no element. Rows may start on any 4 bytes.
__device__ inline uint4 query_piece(const DecodeArgs& a, const Column& c, int32_t piece) {
  if (c.query < 0 || piece * 8 >= a.q.head_dim) return make_uint4(0, 0, 0, 0);
  const char* at = a.q.data + c.query * a.q.stride_query + c.head * a.q.stride_head + piece * 16;
  if (a.q.aligned) return __ldg(reinterpret_cast<const uint4*>(at));
  const uint32_t* words = reinterpret_cast<const uint32_t*>(at);
  return make_uint4(__ldg(words), __ldg(words + 1), __ldg(words + 2), __ldg(words + 3));
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

// The weights of the parts of each column, and the column's maximum and sum. A lane keeps what it has read of
// up to kKept parts; beyond that it reads again.
template <class C, class SumOf, class Weights>
__device__ void weigh_parts(int32_t columns, int32_t parts, const SumOf& sum_of, int32_t most,
                            Weights weights, PartialSum* total) {
  constexpr int kKept = 4;
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  for (int32_t column = warp; column < columns; column += kDecodeWarps) {
    PartialSum kept[kKept];
#pragma unroll
    for (int k = 0; k < kKept; ++k)
      kept[k] = lane + k * 32 < parts ? sum_of(lane + k * 32, column) : PartialSum{-INFINITY, 0};
    float top = -INFINITY, sum = 0;
#pragma unroll
    for (int k = 0; k < kKept; ++k) top = fmaxf(top, kept[k].m);
    for (int32_t part = lane + kKept * 32; part < parts; part += 32) top = fmaxf(top, sum_of(part, column).m);
    for (int d = 16; d > 0; d >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
    bool marked = false;
    const auto add = [&](int32_t part, const PartialSum& ml) {
      const float weight = weight_of(ml.m, top);
      if (part < most) weights[column][part] = weight;
      marked |= ml.l < 0;
      if (!(ml.l <= 0)) sum += weight * ml.l;
    };
#pragma unroll
    for (int k = 0; k < kKept; ++k)
      if (lane + k * 32 < parts) add(lane + k * 32, kept[k]);
    for (int32_t part = lane + kKept * 32; part < parts; part += 32) add(part, sum_of(part, column));
    for (int d = 16; d > 0; d >>= 1) sum += __shfl_xor_sync(~0u, sum, d);
    marked = __any_sync(~0u, marked) && top == -INFINITY;
    if (lane == 0) total[column] = {top, marked ? -1 : sum};
  }
}

// The parts of a row, by the CTA that arrived last. First each warp finds the common maximum of some columns
// and the weight of each part; then each thread adds up its elements in the order of the parts. The first
// elements are asked for before the weights are known.
template <class C>
__device__ void join_parts(const DecodeArgs& a, const Group& g, const DeviceTask& task,
                           typename C::Shared& s) {
  constexpr int kAtOnce = 16;  // loads under way
  constexpr int kMost =
      sizeof(s.ring) / 4 / C::kColumns;  // weights that fit; more parts work theirs out again
  float(*weights)[kMost] = reinterpret_cast<float(*)[kMost]>(s.ring);
  const int64_t rows = a.scratch.rows, first = task.first_part * rows + g.first_row;
  const int32_t quads = (a.v.dim + 3) / 4, all = g.columns * quads;
  const auto sum_of = [&](int32_t part, int32_t column) {
    const float2 pair = __ldcg(reinterpret_cast<const float2*>(a.scratch.ml + first + part * rows + column));
    return PartialSum{pair.x, pair.y};
  };
  float4 o[kAtOnce];
  const auto ask = [&](int32_t i, int32_t part) {
    const float* from = a.scratch.o + (first + i / quads + part * rows) * (quads * 4) + i % quads * 4;
#pragma unroll
    for (int p = 0; p < kAtOnce; ++p)
      if (part + p < task.parts)
        o[p] = __ldcg(reinterpret_cast<const float4*>(from + p * rows * (quads * 4)));
  };
  int32_t i = static_cast<int32_t>(threadIdx.x);
  if (i < all) ask(i, 0);
  weigh_parts<C>(g.columns, task.parts, sum_of, kMost, weights, s.ml[0]);
  __syncthreads();
  for (; i < all; i += kDecodeThreads) {
    const int32_t column = i / quads;
    Quad q{s.ml[0][column].m, s.ml[0][column].l, make_float4(0, 0, 0, 0)};
    for (int32_t part = 0; part < task.parts; part += kAtOnce) {
      if (part > 0 || i != static_cast<int32_t>(threadIdx.x)) ask(i, part);
#pragma unroll
      for (int p = 0; p < kAtOnce; ++p)
        if (part + p < task.parts)
          add_weighted(
              part + p < kMost ? weights[column][part + p] : weight_of(sum_of(part + p, column).m, q.m), o[p],
              &q.o);
    }
    store_row(a, s.columns[column], i % quads * 4, q, s.stale);
  }
}

template <class C>
__device__ void attend(const DecodeArgs& a, const DeviceTask& task, typename C::Shared& s) {
  const int warp = static_cast<int>(threadIdx.x / 32);
  const uint32_t ring = device::shared_address(s.ring[warp]);
  // In the order in which the loads are wanted: the bundle and the first keys' places are under way together,
  // then Q, then K and V.
  const index::DeviceBundle bundle = a.index.bundle[task.bundle];
  Group g{.request = bundle.request,
          .first_query = bundle.first_query,
          .queries = bundle.last_query - bundle.first_query,
          .kv_head = task.kv_head,
          .kv_len = bundle.kv_len,
          .base_slot = bundle.base_slot,
          .position = bundle.position,
          .first_row = int64_t{blockIdx.y} * C::kColumns,
          .columns = 0};
  typename C::Ring feed(a, g, task, s.columns, ring, s.notes[warp], &s.queue[C::kQueues ? warp : 0]);
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
    } else if (a.counters != nullptr && threadIdx.x == 0) {
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
    uint32_t* arrivals = a.scratch.arrivals + int64_t{task.group} * gridDim.y + blockIdx.y;
    s.stale = is_stale(a.out.slots, g.request);
    s.last = device::arrive(arrivals, static_cast<uint32_t>(task.parts - 1)) ==
             static_cast<uint32_t>(task.parts - 1);
  }
  __syncthreads();
  if (s.last) join_parts<C>(a, g, task, s);
}

template <class C>
__global__ void __launch_bounds__(kDecodeThreads, C::kDim == 256 ? 1 : 2)
    decode_kernel(const __grid_constant__ DecodeArgs a) {
  extern __shared__ __align__(1024) char memory[];
  device::wait_for_predecessor();
  device::let_successor_start();
  const DeviceTask task = a.scratch.tasks[blockIdx.x];  // of an earlier step where there are fewer now
  const int32_t tasks = a.scratch.head->tasks, code = verdict_of(a);
  if (code != 0) {
    if (code == static_cast<int32_t>(Code::kStalePlan) && blockIdx.x == 0 && blockIdx.y == 0 &&
        threadIdx.x == 0)
      a.control->verdict = {code, -1, -1, -1, 0};
    refuse(a, code == static_cast<int32_t>(Code::kInvalidArgument));
  } else if (static_cast<int32_t>(blockIdx.x) < tasks) {
    attend<C>(a, task, *reinterpret_cast<typename C::Shared*>(memory));
  }
}

}  // namespace tamis::cuda
