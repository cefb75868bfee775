// The two products of a tile, for R query rows at once: scores q . k, and the weighted sum of V rows.
#pragma once

#include "kernels/cpu/args.h"
#include "kernels/cpu/vec.h"

namespace tamis::cpu::TAMIS_ISA {

// Rows whose accumulators fit the registers: R x 4 of them, and 5 more vectors.
inline constexpr int kRows = W == 16 ? 4 : 2;

// Asks for a row ahead of use, into the second-level cache: in an NHD cache the rows of one head lie a power
// of two apart, so that the first level has room for a few of them only.
TAMIS_INLINE void prefetch_row(const char* row, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at, 0, 2);
}

// s[r * kTile + j] = q_r . k_j for four columns j. q is zero behind `dim` up to a multiple of W.
template <int R, class Load>
TAMIS_INLINE void scores_of_four(Load, const float* q, int64_t q_stride, const Row* k, int64_t dim,
                                 float* s) {
  Vec acc[R][4] = {};
  int64_t d = 0;
  const auto add = [&](const Vec* x) {
    for (int r = 0; r < R; ++r) {
      const Vec y = load(q + r * q_stride + d);
      for (int j = 0; j < 4; ++j) acc[r][j] = madd(y, x[j], acc[r][j]);
    }
  };
  for (; d + W <= dim; d += W) {
    Vec x[4];
    for (int j = 0; j < 4; ++j) x[j] = Load::load(k[j], d);
    add(x);
  }
  if (d < dim) {
    Vec x[4];
    for (int j = 0; j < 4; ++j) x[j] = Load::load_some(k[j], d, static_cast<int>(dim - d));
    add(x);
  }
  for (int r = 0; r < R; ++r) {
    const Vec4 four = sums(acc[r][0], acc[r][1], acc[r][2], acc[r][3]);
    memcpy(s + r * kTile, &four, sizeof four);
  }
}

// Columns of a product: where their rows are, and where the next tile's rows are (null: none), to be asked
// for early.
struct Columns {
  const Row* row;
  int count;
  const Row* next;
  int next_count;
  int64_t next_bits, next_bytes;  // of one element, of one row
};

// Asks for elements [d, d + count) of the next tile's row c: as much as is used of this tile meanwhile, so
// that memory is kept busy through the whole product and not in one burst.
TAMIS_INLINE void prefetch_part(const Columns& x, int c, int64_t d, int64_t count) {
  prefetch_row(x.next[c].data + d * x.next_bits / 8, count * x.next_bits / 8);
}

template <int R, class Load>
void scores(Load loader, const float* q, int64_t q_stride, const Columns& k, int64_t dim, float* s) {
  for (int c = 0; c < k.count; c += 4) {
    for (int j = c; j < c + 4 && j < k.next_count; ++j) prefetch_row(k.next[j].data, k.next_bytes);
    scores_of_four<R>(loader, q, q_stride, k.row + c, dim, s + c);
  }
}

// N vectors of O for R rows: o_r = o_r * scale_r + sum over columns p_rc v_c.
template <int R, int N, class Load>
TAMIS_INLINE void weigh_slice(Load, const float* p, const Columns& v, int64_t d, const float* scale, float* o,
                              int64_t o_stride) {
  Vec acc[R][N];
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) acc[r][n] = load(o + r * o_stride + d + n * W) * scale[r];
  for (int c = 0; c < v.count; ++c) {
    if (c < v.next_count) prefetch_part(v, c, d, N * W);
    Vec x[N];
    for (int n = 0; n < N; ++n) x[n] = Load::load(v.row[c], d + n * W);
    for (int r = 0; r < R; ++r)
      for (int n = 0; n < N; ++n) acc[r][n] = madd(splat(p[r * kTile + c]), x[n], acc[r][n]);
  }
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) store(o + r * o_stride + d + n * W, acc[r][n]);
}

// The last dim - d < W elements.
template <int R, class Load>
TAMIS_INLINE void weigh_tail(Load, const float* p, const Columns& v, int64_t d, int64_t dim,
                             const float* scale, float* o, int64_t o_stride) {
  const int count = static_cast<int>(dim - d);
  for (int r = 0; r < R; ++r) {
    Vec acc = widen_some(F32{}, o + r * o_stride + d, count) * scale[r];
    for (int c = 0; c < v.count; ++c)
      acc = madd(splat(p[r * kTile + c]), Load::load_some(v.row[c], d, count), acc);
    memcpy(o + r * o_stride + d, &acc, sizeof(float) * static_cast<size_t>(count));
  }
}

template <int R, class Load>
void weigh(Load loader, const float* p, const Columns& v, int64_t dim, const float* scale, float* o) {
  int64_t d = 0;
  for (; d + 4 * W <= dim; d += 4 * W) weigh_slice<R, 4>(loader, p, v, d, scale, o, dim);
  for (; d + W <= dim; d += W) weigh_slice<R, 1>(loader, p, v, d, scale, o, dim);
  if (d < dim) weigh_tail<R>(loader, p, v, d, dim, scale, o, dim);
}

#if defined(__AVX512BF16__)
// The same products of pairs of bf16, for rows that lie without gaps. 2 W elements a vector.

TAMIS_INLINE UintVec load_pairs(const char* row, int64_t d, int64_t dim) {
  UintVec x = {};
  if (d + 2 * W <= dim)
    memcpy(&x, row + 2 * d, sizeof x);
  else
    memcpy(&x, row + 2 * d, static_cast<size_t>(2 * (dim - d)));
  return x;
}

TAMIS_INLINE Vec add_pairs(Vec sum, UintVec a, UintVec b) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

// As scores(); q is zero behind `dim` up to a multiple of 2 W elements. dim is even.
template <int R>
void pair_scores(const uint32_t* q, int64_t q_stride, const Columns& k, int64_t dim, float* s) {
  for (int c = 0; c < k.count; c += 4) {
    for (int j = c; j < c + 4 && j < k.next_count; ++j) prefetch_row(k.next[j].data, k.next_bytes);
    Vec acc[R][4] = {};
    for (int64_t d = 0; d < dim; d += 2 * W) {
      UintVec x[4];
      for (int j = 0; j < 4; ++j) x[j] = load_pairs(k.row[c + j].data, d, dim);
      for (int r = 0; r < R; ++r) {
        UintVec y;
        memcpy(&y, q + r * q_stride + d / 2, sizeof y);
        for (int j = 0; j < 4; ++j) acc[r][j] = add_pairs(acc[r][j], y, x[j]);
      }
    }
    for (int r = 0; r < R; ++r) {
      const Vec4 four = sums(acc[r][0], acc[r][1], acc[r][2], acc[r][3]);
      memcpy(s + r * kTile + c, &four, sizeof four);
    }
  }
}

// O of N times 2 W elements for R rows. Interleaving two rows of V leaves the elements of a vector in another
// order, lanes of four by turns; O is brought into that order and back.
template <int R, int N>
TAMIS_INLINE void weigh_pair_slice(const uint32_t* p, int64_t p_stride, const Columns& v, int64_t d,
                                   const float* scale, float* o, int64_t o_stride) {
  UintVec low, high, first, second;  // natural to interleaved, and back
  for (uint32_t i = 0; i < W; ++i) {
    low[i] = i / 4 * 8 + i % 4;
    high[i] = low[i] + 4;
    first[i] = i / 8 * 4 + i % 4 + (i % 8 < 4 ? 0 : W);
    second[i] = first[i] + W / 2;
  }
  const auto mixed = [](Vec a, Vec b, UintVec which) {
    return reinterpret_cast<Vec>(shuffle(reinterpret_cast<UintVec>(a), reinterpret_cast<UintVec>(b), which));
  };
  Vec acc[R][2 * N];
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) {
      const float* at = o + r * o_stride + d + 2 * n * W;
      const Vec a = load(at) * scale[r], b = load(at + W) * scale[r];
      acc[r][2 * n] = mixed(a, b, low);
      acc[r][2 * n + 1] = mixed(a, b, high);
    }
  for (int c = 0; c < v.count; c += 2) {
    for (int i = c; i < c + 2 && i < v.next_count; ++i) prefetch_part(v, i, d, 2 * N * W);
    UintVec x[2 * N];
    for (int n = 0; n < N; ++n) {
      __m512i a, b = _mm512_setzero_si512();
      memcpy(&a, v.row[c].data + 2 * (d + 2 * n * W), sizeof a);
      if (c + 1 < v.count) memcpy(&b, v.row[c + 1].data + 2 * (d + 2 * n * W), sizeof b);
      x[2 * n] = reinterpret_cast<UintVec>(_mm512_unpacklo_epi16(a, b));
      x[2 * n + 1] = reinterpret_cast<UintVec>(_mm512_unpackhi_epi16(a, b));
    }
    for (int r = 0; r < R; ++r) {
      const UintVec y = UintVec{} + p[r * p_stride + c / 2];
      for (int n = 0; n < 2 * N; ++n) acc[r][n] = add_pairs(acc[r][n], y, x[n]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) {
      float* at = o + r * o_stride + d + 2 * n * W;
      store(at, mixed(acc[r][2 * n], acc[r][2 * n + 1], first));
      store(at + W, mixed(acc[r][2 * n], acc[r][2 * n + 1], second));
    }
}

// As weigh(), for a dim that is a multiple of 2 W.
template <int R>
void weigh_pairs(const uint32_t* p, int64_t p_stride, const Columns& v, int64_t dim, const float* scale,
                 float* o) {
  int64_t d = 0;
  for (; d + 4 * W <= dim; d += 4 * W) weigh_pair_slice<R, 2>(p, p_stride, v, d, scale, o, dim);
  for (; d < dim; d += 2 * W) weigh_pair_slice<R, 1>(p, p_stride, v, d, scale, o, dim);
}
#endif

}  // namespace tamis::cpu::TAMIS_ISA
