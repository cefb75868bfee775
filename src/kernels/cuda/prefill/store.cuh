// Where a warp's 16 finished rows go: to the result, or, where the row's keys were split, to its partial
// state; the warp that brings the last part joins them in their order. Rows whose sums are not finite are
// left to another kernel: a value that one row selects may be NaN, and has then met the others of the tile as
// 0 * NaN.
#pragma once

#include "kernels/cuda/prefill/softmax.cuh"

namespace tamis::cuda {

template <class C>
class Store {
 public:
  using T = typename C::T;
  using Sums = float[C::kParts][C::kPart];

  __device__ explicit Store(const PrefillArgs& args) : a_(args), lane_(static_cast<int>(threadIdx.x % 32)) {}

  // Of the warp: `rows`, `ended` as Softmax::finish() left them (where results that go out as boxes are not
  // finite, row 0 of it becomes a mark for finish_boxes()), and in `staging` 16 rows of kDim elements of
  // shared memory, in halves of kLineBytes, which may be read until boxes_wait_read(). `o` is not divided
  // yet. first_row: of the tile.
  __device__ void store(const PrefillItem& item, const Column* rows, PartialSum* ended, int first_row,
                        const Sums& o, char* staging) const {
    float inverse[2];
    if (item.out_boxed) {
      inverses(ended, 16, inverse);
      return store_boxes(rows, ended, o, inverse, staging);
    }
    const int32_t live = min(16, item.group.columns - first_row);
    if (live <= 0) return;
    if (item.task.part >= 0) return store_part(item, rows, ended, first_row, live, o);
    const bool known = inverses(ended, live, inverse);
    if (__any_sync(~0u, !known || !finite(live, o))) {
      if (lane_ == 0) leave(item, first_row, live);
      return;
    }
    const bool stale = is_stale(a_.step.out.slots, item.group.request);
    if (lane_ < live) end_row(rows[lane_], ended[lane_], stale);
    if (stale) return;
    if (a_.step.out.wide)
      store_staged(rows, live, o, inverse, staging);
    else
      store_any(rows, live, o, inverse, staging);
  }

  // Of a whole row tile whose results went out as boxes, by one warp and while others are already at the
  // next: LSE, and rows whose sums are not finite.
  __device__ void finish_boxes(const PrefillItem& item, const Column* rows, const PartialSum* ended) const {
    if (!item.out_boxed) return;
#pragma unroll 1
    for (int at = lane_; at < kPrefillRows; at += 32) {
      const uint32_t wrong = __ballot_sync(~0u, ended[at].l < 0);
      if ((wrong >> (lane_ & 16) & 0xFFFF) == 0)
        end_row(rows[at], ended[at], false);
      else if (at % kBoxRows == 0)
        leave(item, at, kBoxRows);
    }
  }

 private:
  // 1 / l of this thread's rows; false where they are to be summed again.
  __device__ bool inverses(const PartialSum* ended, int32_t live, float (&inverse)[2]) const {
    bool known = true;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float l = ended[lane_ / 4 + 8 * i].l;
      known = known && (l >= 0 || lane_ / 4 + 8 * i >= live);
      inverse[i] = l > 0 ? __fdividef(1.f, l) : 0;
    }
    return known;
  }

  __device__ void end_row(const Column& row, const PartialSum& ended, bool stale) const {
    const DecodeOut& out = a_.step.out;
    if (!stale && out.lse != nullptr)
      out.lse[row.query * out.lse_query + row.head * out.lse_head] =
          ended.l > 0 ? ended.m * kLn2 + logf(ended.l) : -INFINITY;
    if (a_.step.counters == nullptr) return;
    if (stale) atomicAdd(&a_.step.counters->stale_rows, 1ull);
    if (ended.l == 0) atomicAdd(&a_.step.counters->empty_rows, 1ull);
  }

  // Of the rows that exist, which are all that can have met anything.
  __device__ bool finite(int32_t live, const Sums& o) const {
    float worst[2] = {0, 0};
#pragma unroll
    for (int p = 0; p < C::kParts; ++p)
#pragma unroll
      for (int k = 0; k < C::kPart; ++k) worst[k / 2 % 2] = fmaf(o[p][k], 0.f, worst[k / 2 % 2]);
    return (worst[0] == 0 || lane_ / 4 >= live) && (worst[1] == 0 || lane_ / 4 + 8 >= live);
  }

  // Called by one lane. Has the rows summed again, alone, when this kernel has ended.
  __device__ void leave(const PrefillItem& item, int first_row, int32_t live) const {
    const uint32_t at = atomicAdd(a_.work.redo_count, 1u);
    a_.work.redo[at] = {item.task_at, (static_cast<int32_t>(item.group.first_row) + first_row) / 16};
    if (a_.step.counters != nullptr)
      atomicAdd(&a_.step.counters->rows_redone, static_cast<unsigned long long>(live));
  }

  // Pairs of 16 bits, put together to pieces of 16 bytes in shared memory.
  template <class F>
  __device__ void stage(const Sums& o, const float (&inverse)[2], uint32_t to, const F& pair) const {
    const int row = lane_ & 15;
#pragma unroll
    for (int k = 0; k < C::kDim / 16; ++k) {
      const float* x = o[k * 8 / C::kPart] + k * 8 % C::kPart;
      uint32_t r[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) r[i] = pair(x[2 * i] * inverse[i & 1], x[2 * i + 1] * inverse[i & 1]);
      const int piece = 2 * k % 8 + (lane_ >> 4);
      device::store_matrix(to + k / 4 * C::kLineBytes + row * 128 + ((piece ^ (row & 7)) << 4), r);
    }
  }

  // 16 rows as the copy engine takes them, which is on its way when this ends. What is not finite is for
  // finish_boxes() to find: a mean of finite values is finite, but in f16 where it is rounded beyond the
  // largest number.
  __device__ void store_boxes(const Column* rows, PartialSum* ended, const Sums& o, const float (&inverse)[2],
                              char* staging) const {
    const uint32_t from = device::shared_address(staging);
    uint32_t odd[4] = {0, 0, 0, 0};
    int at = 0;
    stage(o, inverse, from, [&](float low, float high) {
      const uint32_t pair = T::pair(low, high);
      odd[at % 4] = T::add_nought(odd[at % 4], pair);
      ++at;
      return pair;
    });
    device::fence_async();
    const bool wrong = __any_sync(~0u, ((odd[0] | odd[1] | odd[2] | odd[3]) & 0x7FFF7FFF) != 0);
    if (lane_ == 0) {
      if (wrong) ended->l = -1;
#pragma unroll
      for (int half = 0; half < C::kHalves; ++half)
        if (half * 64 < a_.step.v.dim)
          device::store_box(a_.out.map, from + half * C::kLineBytes, half * 64, rows->head, rows->query, 0,
                            0);
    }
    device::boxes_commit();
  }

  __device__ void store_staged(const Column* rows, int32_t live, const Sums& o, const float (&inverse)[2],
                               char* staging) const {
    stage(o, inverse, device::shared_address(staging),
          [&](float low, float high) { return out_pair(a_.step.out, low, high); });
    __syncwarp();
    constexpr int kPieces = C::kDim / 8;
#pragma unroll 4
    for (int i = lane_; i < live * kPieces; i += 32) {
      const int line = i / kPieces, piece = i % kPieces;
      if (piece * 8 >= a_.step.v.dim) continue;
      *reinterpret_cast<uint4*>(row_of(rows[line]) + piece * 16) = *reinterpret_cast<const uint4*>(
          staging + piece / 8 * C::kLineBytes + line * 128 + ((piece % 8 ^ (line & 7)) << 4));
    }
    __syncwarp();
  }

  __device__ char* row_of(const Column& row) const {
    return a_.step.out.data + row.query * a_.step.out.query + row.head * a_.step.out.head;
  }

  // Calls f(row of the warp, d, two elements from d on).
  template <class F>
  __device__ void for_pairs(int32_t live, const Sums& o, const F& f) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = lane_ / 4 + 8 * i;
      if (row >= live) continue;
#pragma unroll
      for (int k = 0; k < C::kDim / 8; ++k) {
        const float* x = o[k * 4 / C::kPart] + k * 4 % C::kPart + 2 * i;
        const int d = k * 8 + lane_ % 4 * 2;
        if (d < a_.step.v.dim) f(row, d, x[0], x[1]);
      }
    }
  }

  // Any dtype, any strides: 32 columns at a time through shared memory, as float32.
  __device__ void store_any(const Column* rows, int32_t live, const Sums& o, const float (&inverse)[2],
                            char* staging) const {
#pragma unroll
    for (int first = 0; first < C::kDim; first += 32) {
#pragma unroll
      for (int k = 0; k < 4; ++k)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int at = first / 2 + 4 * k + 2 * i, row = lane_ / 4 + 8 * i, quad = 2 * k + lane_ % 4 / 2;
          const float* x = o[at / C::kPart] + at % C::kPart;
          *reinterpret_cast<float2*>(staging + row * 128 + ((quad ^ (row & 7)) << 4) + lane_ % 2 * 8) =
              make_float2(x[0] * inverse[i], x[1] * inverse[i]);
        }
      __syncwarp();
#pragma unroll 1
      for (int i = lane_; i < live * 8; i += 32) {
        const int row = i / 8, d = first + i % 8 * 4;
        if (d >= a_.step.v.dim) continue;
        const float4 x = *reinterpret_cast<const float4*>(staging + row * 128 + ((i % 8 ^ (row & 7)) << 4));
        store_out(a_.step.out, rows[row].query, rows[row].head, d, x);
      }
      __syncwarp();
    }
  }

  __device__ void store_part(const PrefillItem& item, const Column* rows, const PartialSum* ended,
                             int first_row, int32_t live, const Sums& o) const {
    const DeviceScratch& scratch = a_.step.scratch;
    const int32_t quads = (a_.step.v.dim + 3) / 4;
    const int64_t first = item.group.first_row + first_row, base = item.task.part * scratch.rows + first;
    for_pairs(live, o, [&](int row, int d, float x, float y) {
      *reinterpret_cast<float2*>(scratch.o + (base + row) * (quads * 4) + d) = make_float2(x, y);
    });
    if (lane_ < live) scratch.ml[base + lane_] = ended[lane_];
    __syncwarp();
    uint32_t before = 0;
    const uint32_t parts = static_cast<uint32_t>(item.task.parts);
    if (lane_ == 0) {
      const int64_t at = int64_t{item.task.counter} * a_.row_tiles * kComputingWarps + first / 16;
      before = device::arrive(scratch.arrivals + at, parts - 1);
    }
    if (__shfl_sync(~0u, before, 0) == parts - 1) join_parts(item, rows, first_row, live, quads);
  }

  // As the decode kernel's: each lane four elements of a row at a time, all parts in their order.
  __device__ void join_parts(const PrefillItem& item, const Column* rows, int first_row, int32_t live,
                             int32_t quads) const {
    const DeviceScratch& scratch = a_.step.scratch;
    const int64_t base = item.task.first_part * scratch.rows + item.group.first_row + first_row;
    const bool stale = is_stale(a_.step.out.slots, item.group.request);
    bool right = true;
#pragma unroll 1
    for (int pass = 0; pass < 2; ++pass) {  // first whether all of it is right, then to the result
#pragma unroll 1
      for (int32_t i = lane_; i < live * quads; i += 32) {
        const int32_t row = i / quads, d = i - row * quads;
        const PartialSum* ml = scratch.ml + base + row;
        Quad q{-INFINITY, 0, make_float4(0, 0, 0, 0)};
#pragma unroll 1
        for (int32_t p = 0; p < item.task.parts; ++p) q.m = fmaxf(q.m, part_of(ml + p * scratch.rows).x);
#pragma unroll 1
        for (int32_t p = 0; p < item.task.parts; ++p) {
          const float2 part = part_of(ml + p * scratch.rows);
          const float weight = weight_of(part.x, q.m);
          right = right && part.y >= 0;
          q.l += weight * part.y;
          const float* o = scratch.o + ((base + p * scratch.rows + row) * quads + d) * 4;
          add_weighted(weight, __ldcg(reinterpret_cast<const float4*>(o)), &q.o);
        }
        right = right && q.l < INFINITY && q.o.x * 0 + q.o.y * 0 + q.o.z * 0 + q.o.w * 0 == 0;
        if (pass == 1) store_row(a_.step, rows[row], d * 4, q, stale);
      }
      if (pass == 0 && __any_sync(~0u, !right)) {
        if (lane_ == 0) leave(item, first_row, live);
        return;
      }
    }
  }
  static __device__ float2 part_of(const PartialSum* ml) {
    return __ldcg(reinterpret_cast<const float2*>(ml));
  }

  const PrefillArgs& a_;
  const int lane_;
};

}  // namespace tamis::cuda
