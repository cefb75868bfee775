// Online softmax of a warp's 16 query rows over a tile of keys, in the registers that the products of a
// warpgroup leave: this thread has two rows, lane / 4 and that + 8, and of each 8 keys two. Source:
// FlashAttention-2 (arXiv 2307.08691), Algorithm 1, but the maximum is looked for only where it must be:
// weights are exp2(s - m) with the m at hand as long as a thread's sums stay below a bound, which tells that
// no score has outgrown m by much.
#pragma once

#include "kernels/cuda/decode/combine.cuh"
#include "kernels/cuda/prefill/config.cuh"

namespace tamis::cuda {

// What this thread's two rows have come to. m: a score as it is, not yet in base 2.
struct RowSums {
  float m[2], l[2];
  uint32_t any;  // bit i: row i has selected some key
};

template <class C>
class Softmax {
 public:
  static constexpr int kScores = C::kKeys / 2, kWeights = C::kKeys / 4;
  using T = typename C::T;
  using Scores = float[kScores];
  using Weights = uint32_t[kWeights];
  // Weights are at most a sum, and what they are rounded to ends at 65504 or far beyond.
  static constexpr float kBound = T::kLift > 0 ? 32768.f : 1048576.f;

  __device__ explicit Softmax(const PrefillArgs& args)
      : a_(args), lane_(static_cast<int>(threadIdx.x % 32)) {}

  // Scores to their final form but for the scale, and -inf where a row does not see a key. rows: of the warp.
  __device__ void prepare(const TileNote<C::kKeys>& note, const PrefillItem& item, const Column* rows,
                          Scores& s, RowSums& sums) const {
    if constexpr (C::kBent) bend(note, rows, s);
    if (!note.masked) {
      sums.any = 3;
      return;
    }
    mask(note, item, rows[lane_ / 4], 0, s, sums);
    mask(note, item, rows[lane_ / 4 + 8], 1, s, sums);
  }

  // The first tile of a row.
  __device__ void begin(const Scores& s, Weights& p, RowSums& sums, const Column* rows) const {
    float top[2];
    maxima(s, top);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // A row that does not exist needs no maximum, and would ask for one at every tile.
      sums.m[i] = top[i] == -INFINITY && rows[lane_ / 4 + 8 * i].query < 0 ? 0 : top[i];
    }
    weigh(s, p, sums.m, sums.l);
  }

  // Another tile. False, with `factor`, where what was summed before has to be scaled.
  __device__ bool add(const Scores& s, Weights& p, RowSums& sums, float (&factor)[2]) const {
    float l[2];
    weigh(s, p, sums.m, l);
    bool held = true;
    if (__any_sync(~0u,
                   !(l[0] < kBound && l[1] < kBound && sums.m[0] > -INFINITY && sums.m[1] > -INFINITY))) {
      float top[2];
      maxima(s, top);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float m = fmaxf(sums.m[i], top[i]);
        factor[i] = sums.m[i] == -INFINITY ? 1 : device::exp2_fast((sums.m[i] - m) * scale());
        sums.m[i] = m;
        sums.l[i] *= factor[i];
      }
      weigh(s, p, sums.m, l);
      held = false;
    }
    sums.l[0] += l[0];
    sums.l[1] += l[1];
    return held;
  }

  // Joins the sums of the four threads of a row, and leaves them for when the rows are stored. ended: of the
  // warp.
  __device__ void finish(RowSums& sums, PartialSum* ended) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int d = 1; d < 4; d <<= 1) sums.l[i] += __shfl_xor_sync(~0u, sums.l[i], d);
      const bool any = sums.any >> i & 1;
      // Keys were selected, and yet nothing was summed: their scores are all -inf, or some are no numbers.
      const bool odd = any && !(sums.l[i] > 0 && sums.l[i] < INFINITY);
      if (lane_ % 4 == 0)
        ended[lane_ / 4 + 8 * i] = {any ? sums.m[i] * scale() - T::kLift : -INFINITY, odd   ? -1
                                                                                      : any ? sums.l[i]
                                                                                            : 0};
    }
  }

 private:
  __device__ float scale() const { return C::kBent ? 1.f : a_.step.score.scale * kLog2E; }  // to base 2

  // The rows' maxima.
  __device__ void maxima(const Scores& s, float (&top)[2]) const {
    float x[2][2] = {{-INFINITY, -INFINITY}, {-INFINITY, -INFINITY}};
#pragma unroll
    for (int k = 0; k < kScores; k += 4)
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 2; ++j) x[i][j] = fmaxf(x[i][j], s[k + 2 * i + j]);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      top[i] = fmaxf(x[i][0], x[i][1]);
#pragma unroll
      for (int d = 1; d < 4; d <<= 1) top[i] = fmaxf(top[i], __shfl_xor_sync(~0u, top[i], d));
    }
  }

  // Weights of two rows' scores, as the left side of the next product, and this thread's part of their sums.
  // The maximum is taken off before the scale is put on: what is left is then exact for the largest score,
  // whose weight is a power of 2 however large scores are, and loses nothing where weights are rounded.
  __device__ void weigh(const Scores& s, Weights& p, const float (&m)[2], float (&l)[2]) const {
    const float m0 = base_of(m[0]), m1 = base_of(m[1]), c = scale();
    float a0 = 0, b0 = 0, a1 = 0, b1 = 0;
#pragma unroll
    for (int k = 0; k < kScores / 4; ++k) {
      const float w = device::exp2_fast(fmaf(s[4 * k] - m0, c, T::kLift)),
                  x = device::exp2_fast(fmaf(s[4 * k + 1] - m0, c, T::kLift)),
                  y = device::exp2_fast(fmaf(s[4 * k + 2] - m1, c, T::kLift)),
                  z = device::exp2_fast(fmaf(s[4 * k + 3] - m1, c, T::kLift));
      a0 += w;
      b0 += x;
      a1 += y;
      b1 += z;
      p[2 * k] = T::pair(w, x);
      p[2 * k + 1] = T::pair(y, z);
    }
    l[0] = a0 + b0;
    l[1] = a1 + b1;
  }

  __device__ void bend(const TileNote<C::kKeys>& note, const Column* rows, Scores& s) const {
    const DecodeScore& score = a_.step.score;
    const float inverse_cap = 1 / score.softcap;
#pragma unroll
    for (int k = 0; k < kScores; ++k) {
      const int column = k / 4 * 8 + lane_ % 4 * 2 + k % 2;
      float x = s[k] * score.scale;
      if (score.softcap > 0) x = score.softcap * tanhf(x * inverse_cap);
      if (score.slopes != nullptr) {
        const Column& row = rows[lane_ / 4 + k / 2 % 2 * 8];
        x -= row.slope * static_cast<float>(abs(row.pos - (note.base[column / 16] + column % 16)));
      }
      s[k] = x * kLog2E;
    }
  }

  // One row of this thread's. By choice and not by arithmetic: a score may be NaN.
  __device__ void mask(const TileNote<C::kKeys>& note, const PrefillItem& item, const Column& row, int i,
                       Scores& s, RowSums& sums) const {
    const int32_t end = row.end, sink_end = row.sink_end, window_begin = row.window_begin,
                  window_end = row.window_end;
    const uint16_t* listed = note.listed[row.query >= 0 ? row.list - item.list : 0];
    uint32_t any = 0;
#pragma unroll
    for (int g = 0; g < C::kKeys / 16; ++g) {
      const int32_t base = note.base[g];
      uint32_t bits = listed[g] & token_range16(0, end, base);
      if (sink_end > base) bits |= token_range16(0, sink_end, base) & note.seen[g];
      if (window_end > base) bits |= token_range16(window_begin, window_end, base) & note.seen[g];
      any |= bits;
      bits >>= lane_ % 4 * 2;
#pragma unroll
      for (int k = 0; k < 2; ++k)
#pragma unroll
        for (int j = 0; j < 2; ++j)
          if ((bits >> (8 * k + j) & 1) == 0) s[g * 8 + k * 4 + i * 2 + j] = -INFINITY;
    }
    if (any != 0) sums.any |= 1u << i;
  }

  const PrefillArgs& a_;
  const int lane_;
};

}  // namespace tamis::cuda
