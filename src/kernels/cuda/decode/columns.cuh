// The query rows a CTA computes: columns of the products, since keys are on the m side. Rows of a group are
// numbered as in plan/rows.h: lists, then queries of the bundle, then query heads.
#pragma once

#include "core/bits.h"
#include "kernels/cuda/decode/args.h"

namespace tamis::cuda {

// n / by; log2: of `by`, or -1. Page sizes are powers of two nearly always.
__device__ inline int32_t quotient(uint32_t n, int32_t log2, int64_t by) {
  return static_cast<int32_t>(log2 >= 0 ? n >> log2 : n / static_cast<uint32_t>(by));
}

struct Column {
  int32_t query, head;  // query -1: no such row
  int32_t list, pos;
  // What its query sees (core/bits.h); tokens fit 32 bits.
  int32_t end, sink_end, window_begin, window_end;
  float slope;

  __device__ bool sees(int32_t t, bool listed) const {
    return t < end && (listed || t < sink_end || (t >= window_begin && t < window_end));
  }
  __device__ uint64_t sees_of(uint64_t listed, int64_t base) const {
    return set_bits(listed, {end, sink_end, window_begin, window_end}, base);
  }
};

// The bundle of a task, and which of its query rows are here.
struct Group {
  int32_t request, first_query, queries, kv_head, kv_len;
  int32_t base_slot, position;  // of DeviceBundle
  int64_t first_row;            // of the group, computed by column 0
  int32_t columns;              // rows here, at most the tile's
};

__device__ inline Column column_of(const DecodeArgs& a, const Group& g, int32_t column) {
  Column c{.query = -1,
           .head = 0,
           .list = 0,
           .pos = -1,
           .end = 0,
           .sink_end = 0,
           .window_begin = 0,
           .window_end = 0,
           .slope = 0};
  if (column >= g.columns) return c;
  // Short divisions: a group's rows fit 32 bits.
  const uint32_t row = static_cast<uint32_t>(g.first_row + column),
                 heads = static_cast<uint32_t>(a.list_heads);
  const uint32_t of_list = static_cast<uint32_t>(g.queries) * heads;
  const uint32_t list = row / of_list, in_list = row - list * of_list, query = in_list / heads;
  c.list = static_cast<int32_t>(list);
  c.query = g.first_query + static_cast<int32_t>(query);
  c.head = g.kv_head * a.q.group + static_cast<int32_t>(list * heads + in_list - query * heads);
  const int64_t pos = a.q.q_pos != nullptr ? a.q.q_pos[c.query] : g.position + c.query;
  const Sight s = sight_of(pos, g.kv_len, a.score.causal, a.score.window, a.score.sink);
  c.pos = static_cast<int32_t>(pos);
  c.end = static_cast<int32_t>(s.end);
  c.sink_end = static_cast<int32_t>(s.sink_end);
  if (s.window_begin < s.window_end) {
    c.window_begin = static_cast<int32_t>(s.window_begin);
    c.window_end = static_cast<int32_t>(s.window_end);
  }
  if (a.score.slopes != nullptr) c.slope = a.score.slopes[c.head];
  return c;
}

// 16 bytes of a query row; zero where there is no row or no element. Rows may start on any 4 bytes.
__device__ inline uint4 query_piece(const DecodeArgs& a, const Column& c, int32_t piece) {
  if (c.query < 0 || piece * 8 >= a.q.head_dim) return make_uint4(0, 0, 0, 0);
  const char* at = a.q.data + c.query * a.q.stride_query + c.head * a.q.stride_head + piece * 16;
  if (a.q.aligned) return __ldg(reinterpret_cast<const uint4*>(at));
  const uint32_t* words = reinterpret_cast<const uint32_t*>(at);
  return make_uint4(__ldg(words), __ldg(words + 1), __ldg(words + 2), __ldg(words + 3));
}

}  // namespace tamis::cuda
