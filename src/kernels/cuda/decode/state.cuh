// The online softmax of one warp, keys on the m side: S[16 keys, 8 columns] = K Q^T, O^T[Dv, 8 columns] +=
// V^T P^T, both by mma m16n8k16. Thread (g, j) = (lane / 4, lane % 4) holds keys g and g + 8 of columns 2j
// and 2j + 1. Scores are kept in base 2. Source: FlashAttention-2 (arXiv 2307.08691), Algorithm 1; a rescale
// only where the maximum has grown by more than 2^8 (FlashAttention-4's rule).
#pragma once

#include "kernels/cuda/decode/feed.cuh"

namespace tamis::cuda {

inline constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

// The maximum in an exponent is finite by construction: before the first finite score it counts as 0.
__device__ inline float base_of(float m) { return m == -INFINITY ? 0 : m; }

template <class T, int kDim, int kTiles, bool kMany, Feeding kFeeding>
class State {
 public:
  static constexpr int kSteps = kDim / 16;

  __device__ State(const DecodeArgs& args, const Column* columns, int32_t live_columns)
      : a_(args), columns_(columns), live_columns_(live_columns), lane_(static_cast<int>(threadIdx.x % 32)) {
    plain_ = args.score.softcap == 0 && args.score.slopes == nullptr;
    reset();
  }

  // Q as the right side of S, from rows of shared memory that are permuted as those of the ring.
  __device__ void load_queries(uint32_t rows) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const int row = t * 8 + (lane_ & 7);
      const uint32_t at = rows + row * kDim * 2 + (((lane_ >> 3) ^ (row & 7)) << 4);
#pragma unroll
      for (int c = 0; c < 2 * kSteps; c += 4) {
        uint32_t f[4];
        device::load_matrix(f, at ^ (c << 4));
#pragma unroll
        for (int i = 0; i < 4; ++i) q_[t][c + i] = f[i];
      }
    }
  }

  __device__ void reset() {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int s = 0; s < kSteps; ++s) o_[t][s][0] = o_[t][s][1] = o_[t][s][2] = o_[t][s][3] = 0;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        m_[t][i] = -INFINITY;
        l_[t][i] = 0;
      }
    }
    any_ = 0;
  }

  // Takes in one stage.
  __device__ void add(uint32_t k, uint32_t v, const StageNote& note) {
    float s[kTiles][4];
    scores(k, s);
    if (plain_) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int i = 0; i < 4; ++i) s[t][i] *= scale_;
    } else {
      bend(note, s);
    }
    mask(note, s);
    uint32_t p[kTiles][2];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      rescale(t, s[t]);
      const float mu0 = base_of(m_[t][0]) - T::kLift, mu1 = base_of(m_[t][1]) - T::kLift;
      s[t][0] = device::exp2_fast(s[t][0] - mu0);
      s[t][1] = device::exp2_fast(s[t][1] - mu1);
      s[t][2] = device::exp2_fast(s[t][2] - mu0);
      s[t][3] = device::exp2_fast(s[t][3] - mu1);
      l_[t][0] += s[t][0] + s[t][2];
      l_[t][1] += s[t][1] + s[t][3];
      p[t][0] = device::transpose_matrix(T::pair(s[t][0], s[t][1]));
      p[t][1] = device::transpose_matrix(T::pair(s[t][2], s[t][3]));
    }
    // A row of the ring is permuted in pieces of 16 bytes, and a step over 16 elements flips bits of the
    // piece.
    const int matrix = lane_ >> 3, row = (lane_ & 7) + ((matrix & 2) << 2);
    const uint32_t at = v + row * kDim * 2 + (((matrix & 1) ^ (row & 7)) << 4);
#pragma unroll
    for (int c = 0; c < kSteps; ++c) {
      uint32_t f[4];
      device::load_matrix_transposed(f, at ^ (c << 5));
#pragma unroll
      for (int t = 0; t < kTiles; ++t) T::multiply(o_[t][c], f, p[t][0], p[t][1]);
    }
  }

  // Ends the sums over keys: l is complete in every lane, and tells an empty set (0) from one whose scores
  // are all -inf (-1).
  __device__ void finish() {
    if (kMany)
      for (int d = 4; d < 32; d <<= 1) any_ |= __shfl_xor_sync(~0u, any_, d);
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        for (int d = 4; d < 32; d <<= 1) l_[t][i] += __shfl_xor_sync(~0u, l_[t][i], d);
        const bool any = kMany ? any_ >> (t * 8 + lane_ % 4 * 2 + i) & 1 : any_ != 0;
        if (m_[t][i] == -INFINITY && any && l_[t][i] == 0) l_[t][i] = -1;
      }
  }

  // Whether some numerator is not finite, in any column.
  __device__ bool finite() const {
    float worst = 0;
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int c = 0; c < kSteps; ++c)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (c * 16 + lane_ / 4 + (i >> 1) * 8 < a_.v.dim) worst += o_[t][c][i] * 0.f;
    return worst == 0;
  }

  // Writes the columns of `which` to memory shared by the CTA: o [column][kDim + 4], and (m, l).
  __device__ void store(float* o, PartialSum* ml, uint32_t which) const {
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int column = t * 8 + lane_ % 4 * 2 + i;
        if (column >= live_columns_ || (which >> column & 1) == 0) continue;
        float* to = o + column * (kDim + 4) + lane_ / 4;
#pragma unroll
        for (int c = 0; c < kSteps; ++c) {
          to[c * 16] = o_[t][c][i];
          to[c * 16 + 8] = o_[t][c][2 + i];
        }
        if (lane_ < 4) ml[column] = {m_[t][i] - T::kLift, l_[t][i]};
      }
  }

  float scale_ = 0;  // to base 2, where nothing else is done to a score

 private:
  __device__ void scores(uint32_t k, float (&s)[kTiles][4]) const {
    float other[kTiles][4];
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[t][i] = other[t][i] = 0;
    const int row = lane_ & 15, high = lane_ >> 4;
    const uint32_t at = k + row * kDim * 2 + ((high ^ (row & 7)) << 4);
#pragma unroll
    for (int c = 0; c < kSteps; ++c) {
      uint32_t f[4];
      device::load_matrix(f, at ^ (c << 5));
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
        T::multiply(c & 1 ? other[t] : s[t], f, q_[t][2 * c], q_[t][2 * c + 1]);
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[t][i] += other[t][i];
  }

  // Scores that are capped or slanted.
  __device__ void bend(const StageNote& note, float (&s)[kTiles][4]) const {
    const bool gathered = kFeeding == Feeding::kTokens || (kFeeding == Feeding::kEither && a_.tokens);
    const int g = lane_ / 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = g + (i >> 1) * 8;
      const int32_t token = gathered ? note.token[key] : note.first + key;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const Column& column = columns_[t * 8 + lane_ % 4 * 2 + (i & 1)];
        float x = s[t][i] * a_.score.scale;
        if (a_.score.softcap > 0) x = a_.score.softcap * tanhf(x / a_.score.softcap);
        if (a_.score.slopes != nullptr) x -= column.slope * static_cast<float>(abs(column.pos - token));
        s[t][i] = x * kLog2E;
      }
    }
  }

  // Keys that a column does not select get -inf, by choice and not by arithmetic: a score may be NaN.
  __device__ void mask(const StageNote& note, float (&s)[kTiles][4]) {
    const int g = lane_ / 4;
    if constexpr (kMany) {
      const uint32_t low = note.columns[g], high = note.columns[g + 8];
      any_ |= low | high;
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (((i < 2 ? low : high) >> (t * 8 + lane_ % 4 * 2 + (i & 1)) & 1) == 0) s[t][i] = -INFINITY;
    } else {
      const uint32_t live = note.live;
      any_ |= live;
      if (live == 0xFFFF) return;
      const bool low = live >> g & 1, high = live >> (g + 8) & 1;
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (!(i < 2 ? low : high)) s[t][i] = -INFINITY;
    }
  }

  __device__ void rescale(int t, const float (&s)[4]) {
    float x0 = fmaxf(s[0], s[2]), x1 = fmaxf(s[1], s[3]);
    if (!__any_sync(~0u, x0 > m_[t][0] + 8 || x1 > m_[t][1] + 8)) return;
    for (int d = 4; d < 32; d <<= 1) {
      x0 = fmaxf(x0, __shfl_xor_sync(~0u, x0, d));
      x1 = fmaxf(x1, __shfl_xor_sync(~0u, x1, d));
    }
    x0 = fmaxf(x0, m_[t][0]);
    x1 = fmaxf(x1, m_[t][1]);
    // Nothing was summed yet where the maximum was -inf.
    const float f0 = m_[t][0] == -INFINITY ? 1 : device::exp2_fast(m_[t][0] - x0);
    const float f1 = m_[t][1] == -INFINITY ? 1 : device::exp2_fast(m_[t][1] - x1);
    m_[t][0] = x0;
    m_[t][1] = x1;
    l_[t][0] *= f0;
    l_[t][1] *= f1;
#pragma unroll
    for (int c = 0; c < kSteps; ++c) {
      o_[t][c][0] *= f0;
      o_[t][c][1] *= f1;
      o_[t][c][2] *= f0;
      o_[t][c][3] *= f1;
    }
  }

  const DecodeArgs& a_;
  const Column* columns_;
  const int32_t live_columns_;
  const int lane_;
  bool plain_;
  uint32_t q_[kTiles][2 * kSteps];
  float o_[kTiles][kSteps][4], m_[kTiles][2], l_[kTiles][2];
  uint32_t any_;
};

}  // namespace tamis::cuda
