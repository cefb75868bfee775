// Online softmax of a warp's 16 query rows over a tile of keys, in the registers that the products of a
// warpgroup leave: this thread has two rows, lane / 4 and that + 8, and of each 8 keys two. Source:
// FlashAttention-2 (arXiv 2307.08691), Algorithm 1, but the maximum is looked for only where it must be:
// weights are exp2(s - m) with the m at hand as long as a thread's sums stay below a bound, which tells that
// no score has outgrown m by much.
#pragma once

#include "kernels/cuda/decode/combine.cuh"
#include "kernels/cuda/prefill/config.cuh"

namespace tamis::cuda {

// What this thread's two rows have come to. m: 0, or a score as it is, not yet in base 2.
struct RowSums {
  float m[2], l[2];
  uint32_t any;  // bit i: row i has selected some key
};

template <class C>
class Softmax {
 public:
  static constexpr int kScores = C::kKeys / 2, kWeights = C::kKeys / 4, kWords = C::kKeys / 32;
  using T = typename C::T;
  using Note = TileNote<C::kKeys>;
  using Scores = float[kScores];
  using Weights = uint32_t[kWeights];
  // Weights are at most a sum, and what they are rounded to ends at 65504 or far beyond.
  static constexpr float kBound = T::kLift > 0 ? 32768.f : 1048576.f;
  // A row begins with m = 0, and stays with it where this much is summed in the first tile: then what weights
  // are rounded to still has all its digits for those that count.
  static constexpr float kLeast = T::kLift > 0 ? 128.f : 9.094947e-13f;  // 2^-40
  // What is added to a row's scores is rounded, and that changes weights by 2^-19 of themselves below this.
  // Rows that need more are looked at in every tile.
  static constexpr float kLargestBase = 128;

  __device__ explicit Softmax(const PrefillArgs& args)
      : a_(args), lane_(static_cast<int>(threadIdx.x % 32)) {}

  // Which of its columns this thread's two rows see: of each of its pairs of scores, from the first on, bits
  // 8 k + 2 w and the next one, for pair k of 32-column word w.
  using Sights = uint32_t[2];

  // Of a masked tile. rows: of the warp.
  __device__ void look(const Note& note, const PrefillItem& item, const Column* rows, Sights& sights,
                       RowSums& sums) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t sight[kWords], any = 0;
      sight_of(note, item, rows[lane_ / 4 + 8 * i], sight);
      sights[i] = 0;
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        any |= sight[w];
        sights[i] |= (sight[w] >> (lane_ % 4 * 2) & 0x03030303) << (2 * w);
      }
      if (any != 0) sums.any |= 1u << i;
    }
  }

  // -inf where a row does not see a key. By choice and not by arithmetic: a score may be NaN.
  static __device__ void mask(const Sights& sights, Scores& s) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int w = 0; w < kWords; ++w)
#pragma unroll
        for (int k = 0; k < 4; ++k)
#pragma unroll
          for (int j = 0; j < 2; ++j)
            if ((sights[i] >> (8 * k + 2 * w + j) & 1) == 0) s[w * 16 + k * 4 + i * 2 + j] = -INFINITY;
  }

  // Scores that are capped or slanted, in base 2.
  __device__ void bend(const Note& note, const Column* rows, Scores& s) const {
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

  // A tile's weights and their sums, with the m at hand; false where for some row of the warp it does not
  // serve, or a thread's sum is below `least`.
  __device__ bool add(const Scores& s, Weights& p, RowSums& sums, float least) const {
    float l[2];
    const bool small = weigh_by_base(s, sums, p, l);
    if (!__all_sync(~0u, small && l[0] < kBound && l[1] < kBound && l[0] >= least && l[1] >= least))
      return false;  // NaN is not
    sums.l[0] += l[0];
    sums.l[1] += l[1];
    return true;
  }

  // The same with the maxima of these scores as well. factor: for what was summed before.
  __device__ void add_raised(const Scores& s, Weights& p, RowSums& sums, const Column* rows,
                             float (&factor)[2]) const {
    raise(s, sums, rows, factor);
    // The maximum is taken off before the scale is put on: what is left is then exact for the largest score,
    // whose weight is a power of 2 however large scores are, and loses nothing where weights are rounded.
    const float m[2] = {base_of(sums.m[0]), base_of(sums.m[1])}, c = scale();
    float l[2];
    weigh([&](int k, int i) { return fmaf(s[k] - m[i], c, T::kLift); }, p, l);
    sums.l[0] += l[0];
    sums.l[1] += l[1];
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
        ended[lane_ / 4 + 8 * i] = {any ? fmaf(sums.m[i], scale(), -T::kLift) : -INFINITY, odd   ? -1
                                                                                           : any ? sums.l[i]
                                                                                                 : 0};
    }
  }

 private:
  __device__ float scale() const { return C::kBent ? 1.f : a_.scale2; }

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

  // Maxima of a tile's scores to the rows', and what was summed before to the new ones.
  __device__ void raise(const Scores& s, RowSums& sums, const Column* rows, float (&factor)[2]) const {
    float top[2];
    maxima(s, top);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float m = fmaxf(sums.m[i], top[i]);
      // A row that does not exist needs no maximum, and would ask for one at every tile.
      if (m == -INFINITY && rows[lane_ / 4 + 8 * i].query < 0) m = 0;
      factor[i] = sums.m[i] == -INFINITY ? 1 : device::exp2_fast((sums.m[i] - m) * scale());
      sums.m[i] = m;
      sums.l[i] *= factor[i];
    }
  }

  // False where what is added to scores is too large to be rounded.
  __device__ bool weigh_by_base(const Scores& s, const RowSums& sums, Weights& p, float (&l)[2]) const {
    const float c = scale(), base[2] = {fmaf(-sums.m[0], c, T::kLift), fmaf(-sums.m[1], c, T::kLift)};
    weigh([&](int k, int i) { return fmaf(s[k], c, base[i]); }, p, l);
    return fabsf(base[0]) < kLargestBase && fabsf(base[1]) < kLargestBase;
  }

  // exp2(f(k, i)) of a row i's score k as the left side of the next product, and this thread's part of their
  // sums.
  template <class F>
  __device__ static void weigh(const F& f, Weights& p, float (&l)[2]) {
    float a[2] = {0, 0}, b[2] = {0, 0};
#pragma unroll
    for (int k = 0; k < kScores / 4; ++k)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float x = device::exp2_fast(f(4 * k + 2 * i, i)),
                    y = device::exp2_fast(f(4 * k + 2 * i + 1, i));
        a[i] += x;
        b[i] += y;
        p[2 * k + i] = T::pair(x, y);
      }
    l[0] = a[0] + b[0];
    l[1] = a[1] + b[1];
  }

  // Of 16 columns each, two of them a word: which of them a row sees.
  __device__ static void sight_of(const Note& note, const PrefillItem& item, const Column& row,
                                  uint32_t (&sight)[kWords]) {
    const bool live = row.query >= 0;
    const auto* listed = reinterpret_cast<const uint32_t*>(note.listed[live ? row.list - item.list : 0]);
#pragma unroll
    for (int w = 0; w < kWords; ++w) sight[w] = live ? listed[w] : 0;
    if (!note.ends && !note.adds) return;
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      const int32_t low = note.base[2 * w], high = note.base[2 * w + 1];
      sight[w] &= tokens_below16(row.end, low) | tokens_below16(row.end, high) << 16;
    }
    if (!note.adds) return;
#pragma unroll
    for (int g = 0; g < C::kKeys / 16; ++g) {
      const int32_t base = note.base[g];
      const uint32_t more = note.seen[g] & (tokens_below16(row.sink_end, base) |
                                            token_range16(row.window_begin, row.window_end, base));
      sight[g / 2] |= more << (g % 2 * 16);
    }
  }

  const PrefillArgs& a_;
  const int lane_;
};

}  // namespace tamis::cuda
