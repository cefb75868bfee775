// What follows the sums: states of warps are joined, then those of parts, then a row is stored. Always in the
// order of warps and of parts, so the same schedule gives the same bits.
#pragma once

#include "kernels/cuda/decode/state.cuh"

namespace tamis::cuda {

// A finished row: its maximum and sum (PartialSum), and four neighbouring elements of its numerator.
struct Quad {
  float m, l;
  float4 o;

  __device__ float lse() const { return l == 0 ? -INFINITY : l < 0 ? NAN : m * kLn2 + logf(l); }
  __device__ float4 out() const {
    if (l == 0) return make_float4(0, 0, 0, 0);
    if (l < 0) return make_float4(NAN, NAN, NAN, NAN);
    return make_float4(o.x / l, o.y / l, o.z / l, o.w / l);
  }
};

// The weight of a state's numerator under the common maximum. An empty state has maximum -inf, so weight 0;
// its numerator was written and is 0.
__device__ inline float weight_of(float m, float top) { return device::exp2_fast(m - base_of(top)); }

__device__ inline void add_weighted(float weight, const float4& from, float4* to) {
  to->x += weight * from.x;
  to->y += weight * from.y;
  to->z += weight * from.z;
  to->w += weight * from.w;
}

// Whether the slot of a request no longer is the one it was admitted with. A slot that does not exist never
// is.
__device__ inline bool is_stale(const DecodeSlots& s, int32_t request) {
  if (s.slot == nullptr) return false;
  const int32_t slot = s.slot[request];
  if (slot == -1) return false;
  if (slot < 0 || slot >= s.slots) return true;
  // Read once for a row, before its first store.
  return device::load_acquire(s.live + slot) != s.generation[request];
}

// Two elements of a row. A mean of f16 values is no larger than they are, but for its rounded weights, with
// which it could come to infinity in f16.
__device__ inline uint32_t out_pair(const DecodeOut& out, float low, float high) {
  if (out.dtype == DType::kBF16) return device::BF16::pair(low, high);
  const auto held = [&](float x) {
    return fabsf(x) > out.most && fabsf(x) < INFINITY ? copysignf(out.most, x) : x;
  };
  return device::F16::pair(held(low), held(high));
}

// Elements d .. d + 3 of a row; head sizes are multiples of 8.
__device__ inline void store_out(const DecodeOut& out, int64_t query, int64_t head, int32_t d,
                                 const float4& x) {
  char* row = out.data + query * out.query + head * out.head;
  if (out.dtype == DType::kF32) {
    float* to = reinterpret_cast<float*>(row) + d;
    if (out.aligned) {
      *reinterpret_cast<float4*>(to) = x;
      return;
    }
    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
    return;
  }
  const uint2 pairs = make_uint2(out_pair(out, x.x, x.y), out_pair(out, x.z, x.w));
  uint16_t* to = reinterpret_cast<uint16_t*>(row) + d;
  if (out.aligned) {
    *reinterpret_cast<uint2*>(to) = pairs;
    return;
  }
  to[0] = static_cast<uint16_t>(pairs.x), to[1] = static_cast<uint16_t>(pairs.x >> 16);
  to[2] = static_cast<uint16_t>(pairs.y), to[3] = static_cast<uint16_t>(pairs.y >> 16);
}

// A finished row: its part of out, by the thread of d == 0 also lse and the counts.
__device__ inline void store_row(const DecodeArgs& a, const Column& c, int32_t d, const Quad& q, bool stale) {
  if (!stale) {
    store_out(a.out, c.query, c.head, d, q.out());
    if (d == 0 && a.out.lse != nullptr)
      a.out.lse[c.query * a.out.lse_query + c.head * a.out.lse_head] = q.lse();
  }
  if (d != 0 || a.counters == nullptr) return;
  if (stale) atomicAdd(&a.counters->stale_rows, 1ull);
  if (q.l == 0) atomicAdd(&a.counters->empty_rows, 1ull);
}

// A refused batch: every row becomes NaN, but for those whose slot was reused. Nothing but the query offsets
// is read, and where those may be the offence, `all` rows are filled.
__device__ inline void refuse(const DecodeArgs& a, bool all) {
  const int64_t live = all ? a.out.total_q : clamp64(a.q.cu_q[a.out.requests], 0, a.out.total_q),
                rows = live * a.q.q_heads;
  const int64_t ctas = int64_t{gridDim.x} * gridDim.y, cta = blockIdx.x + int64_t{blockIdx.y} * gridDim.x;
  for (int64_t r = cta; r < rows; r += ctas) {
    const int64_t query = r / a.q.q_heads, head = r % a.q.q_heads;
    if (a.out.slots.slot != nullptr && a.out.requests > 0) {
      // The first request that ends behind the query, or the last. cu_q may be in no order: then it is some
      // request, found by offsets that there are.
      int32_t request = 0;
      for (int32_t last = a.out.requests - 1; request < last;) {
        const int32_t middle = request + (last - request) / 2;
        if (a.q.cu_q[middle + 1] <= query)
          request = middle + 1;
        else
          last = middle;
      }
      if (is_stale(a.out.slots, request)) continue;
    }
    const float4 nan = make_float4(NAN, NAN, NAN, NAN);
    for (int32_t d = static_cast<int32_t>(threadIdx.x) * 4; d < a.v.dim;
         d += static_cast<int32_t>(blockDim.x) * 4)
      store_out(a.out, query, head, d, nan);
    if (threadIdx.x == 0 && a.out.lse != nullptr)
      a.out.lse[query * a.out.lse_query + head * a.out.lse_head] = NAN;
  }
}

// A batch with this verdict: nothing is computed. What only `run` can see, poll() is told.
__device__ inline void turn_down(const DecodeArgs& a, int32_t code) {
  if (code == static_cast<int32_t>(Code::kStalePlan) && blockIdx.x == 0 && blockIdx.y == 0 &&
      threadIdx.x == 0)
    a.control->verdict = {code, -1, -1, -1, 0};
  refuse(a, code == static_cast<int32_t>(Code::kInvalidArgument));
}

}  // namespace tamis::cuda
