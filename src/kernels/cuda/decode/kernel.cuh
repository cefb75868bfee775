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

// Asks for the query rows, to shared memory in pieces of 16 bytes that are permuted as those of the ring;
// zeros where there is no row or no element. Rows that start on any 4 bytes are copied through registers.
template <class C>
__device__ void ask_for_queries(const DecodeArgs& a, typename C::Shared& s) {
  constexpr int kPieces = C::kDim / 8;
#pragma unroll 1
  for (int at = static_cast<int>(threadIdx.x); at < C::kColumns * kPieces; at += kDecodeThreads) {
    const int piece = at % kPieces;
    const Column& c = s.columns[at / kPieces];
    const bool there = c.query >= 0 && piece * 8 < a.q.head_dim;
    const char* from = a.q.data;
    if (there) from += c.query * a.q.stride_query + c.head * a.q.stride_head + piece * 16;
    char* to = s.q + C::Ring::place_of(at / kPieces, piece);
    if (a.q.aligned) {
      device::copy_async(device::shared_address(to), from, there ? 16 : 0);
      continue;
    }
    for (int i = 0; i < 4; ++i)
      reinterpret_cast<uint32_t*>(to)[i] = there ? __ldg(reinterpret_cast<const uint32_t*>(from) + i) : 0;
  }
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

// The parts of a row, by the CTA that arrived last, in three steps: maxima and sums to shared memory, the
// common maximum and the weights, the numerators in the order of the parts. Loops stay loops: one CTA in many
// comes here, and its instructions have to be fetched from far away, which took longer than running them.
template <class C>
__device__ void join_parts(const DecodeArgs& a, const Group& g, const DeviceTask& task,
                           typename C::Shared& s) {
  constexpr int kMost =
      sizeof(s.ring) / sizeof(PartialSum) / C::kColumns;  // parts; of more, sums are read again
  PartialSum(*sums)[C::kColumns] = reinterpret_cast<PartialSum(*)[C::kColumns]>(s.ring);
  const int32_t parts = task.parts, warp = static_cast<int32_t>(threadIdx.x / 32),
                lane = static_cast<int32_t>(threadIdx.x % 32);
  const int64_t rows = a.scratch.rows, first = task.first_part * rows + g.first_row;
  const auto read = [&](int32_t part, int32_t column) {
    const float2 pair = __ldcg(reinterpret_cast<const float2*>(a.scratch.ml + first + part * rows + column));
    return PartialSum{pair.x, pair.y};
  };
#pragma unroll 4
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < min(parts, kMost) * C::kColumns;
       i += kDecodeThreads)
    if (i % C::kColumns < g.columns)
      sums[i / C::kColumns][i % C::kColumns] = read(i / C::kColumns, i % C::kColumns);
  __syncthreads();
  const auto sum_of = [&](int32_t part, int32_t column) {
    return part < kMost ? sums[part][column] : read(part, column);
  };
#pragma unroll 1
  for (int32_t column = warp; column < g.columns; column += kDecodeWarps) {
    float top = -INFINITY, sum = 0;
    bool marked = false;
#pragma unroll 1
    for (int32_t part = lane; part < parts; part += 32) top = fmaxf(top, sum_of(part, column).m);
#pragma unroll 1
    for (int d = 16; d > 0; d >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
#pragma unroll 1
    for (int32_t part = lane; part < parts; part += 32) {
      const PartialSum ml = sum_of(part, column);
      const float weight = weight_of(ml.m, top);
      if (part < kMost) sums[part][column].m = weight;
      marked |= ml.l < 0;
      if (!(ml.l <= 0)) sum += weight * ml.l;
    }
#pragma unroll 1
    for (int d = 16; d > 0; d >>= 1) sum += __shfl_xor_sync(~0u, sum, d);
    marked = __any_sync(~0u, marked) && top == -INFINITY;
    if (lane == 0) s.ml[0][column] = {top, marked ? -1 : sum};
  }
  __syncthreads();
  const int32_t quads = (a.v.dim + 3) / 4;
#pragma unroll 1
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < g.columns * quads; i += kDecodeThreads) {
    const int32_t column = i / quads, d = i % quads * 4;
    Quad q{s.ml[0][column].m, s.ml[0][column].l, make_float4(0, 0, 0, 0)};
    const float* from = a.scratch.o + (first + column) * (quads * 4) + d;
    const int64_t apart = rows * (quads * 4);
    const int32_t weighed = min(parts, kMost);
#pragma unroll 8
    for (int32_t part = 0; part < weighed; ++part)
      add_weighted(sums[part][column].m, __ldcg(reinterpret_cast<const float4*>(from + part * apart)), &q.o);
#pragma unroll 1
    for (int32_t part = weighed; part < parts; ++part)
      add_weighted(weight_of(read(part, column).m, q.m),
                   __ldcg(reinterpret_cast<const float4*>(from + part * apart)), &q.o);
    store_row(a, s.columns[column], d, q, s.stale);
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
  ask_for_queries<C>(a, s);
  feed.clear_padding();
  feed.start(~0u);
  int32_t begun = 0;
  // All columns at once; then, where a V that is not finite has crossed columns as 0 * NaN, each column over
  // its own keys alone.
  for (int32_t pass = -1; pass < g.columns; ++pass) {
    int stage = 0;
    int32_t stages = 0, done = 0;
    for (int32_t turn = 0;; ++turn) {
      if (turn >= C::kStages) {
        if (done == stages) break;
        device::copy_wait<C::kStages - 1>();
        __syncwarp();
        const uint32_t k = ring + stage * C::Ring::kStageBytes;
        sums.add(k, k + C::Ring::kSideBytes, s.notes[warp][stage]);
        __syncwarp();
        ++done;
      }
      stages += feed.issue(stage);
      stage = stage + 1 < C::kStages ? stage + 1 : 0;
      if (turn == C::kStages - 1 && pass < 0) {
        // Q was asked for before K and V: it comes with the first group of copies.
        device::copy_wait<C::kStages - 1>();
        __syncthreads();
        sums.load_queries(device::shared_address(s.q));
      }
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
      feed.rewind();
      feed.clear_padding();
      feed.start(1u << (pass + 1));
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
