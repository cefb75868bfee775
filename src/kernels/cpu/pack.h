// Rows of K or V brought into the shape a product wants: as f32 one below the other, as a panel of columns,
// or as pairs of bf16.
#pragma once

#include "kernels/cpu/args.h"
#include "kernels/cpu/panel.h"
#include "kernels/cpu/products.h"

namespace tamis::cpu::TAMIS_ISA {

TAMIS_INLINE constexpr int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

TAMIS_INLINE int bits_of(Element element) {
  switch (element) {
    case Element::kF32:
      return 32;
    case Element::kF16:
    case Element::kBF16:
      return 16;
    case Element::kInt4:
      return 4;
    case Element::kInt8:
    case Element::kE4M3:
    case Element::kE5M2:
      break;
  }
  return 8;
}

TAMIS_INLINE int64_t row_bytes(const Side& side) { return side.head_dim * bits_of(side.element) / 8; }

// Rows of a tile, and the next tile's to be asked for meanwhile.
TAMIS_INLINE Columns columns_of(const Side& side, const Row* rows, int count, const Row* next,
                                int next_count) {
  return {rows, count, next, next_count, bits_of(side.element), row_bytes(side)};
}

// A row's elements have gaps, or its scales have.
TAMIS_INLINE bool strided(const Side& side) {
  const int bits = bits_of(side.element) < 8 ? 8 : bits_of(side.element);  // two int4 are one byte
  return side.dim * 8 != bits || side.scale_dim > 1 || side.scale_dim < 0;
}

// Calls f with the loader of a side's elements.
template <class F>
TAMIS_INLINE void with_loader(const Side& side, const F& f) {
  const auto scaled = [&](auto type) {
    using T = decltype(type);
    if (side.scale_dim == 0)
      f(ScaledRow<T>{});
    else
      f(ScaledChannels<T>{});
  };
  switch (side.element) {
    case Element::kF32:
      return f(Plain<F32>{});
    case Element::kF16:
      return f(Plain<F16>{});
    case Element::kBF16:
      return f(Plain<BF16>{});
    case Element::kInt8:
      return scaled(Int8{});
    case Element::kE4M3:
      return scaled(E4M3{});
    case Element::kE5M2:
      return scaled(E5M2{});
    case Element::kInt4:
      return scaled(Int4{});
  }
}

// One element of a row with gaps.
TAMIS_INLINE float element_of(const Side& side, const Row& row, int64_t d) {
  const auto first = [&](auto type, int64_t at) { return widen_some(type, row.data + at, 1)[0]; };
  const float scale = row.scale == nullptr ? 1.f : row.scale[d * side.scale_dim];
  switch (side.element) {
    case Element::kF32:
      return first(F32{}, d * side.dim);
    case Element::kF16:
      return first(F16{}, d * side.dim);
    case Element::kBF16:
      return first(BF16{}, d * side.dim);
    case Element::kInt8:
      return first(Int8{}, d * side.dim) * scale;
    case Element::kE4M3:
      return first(E4M3{}, d * side.dim) * scale;
    case Element::kE5M2:
      return first(E5M2{}, d * side.dim) * scale;
    case Element::kInt4:
      break;
  }
  char pair[4 * W] = {};  // both numbers of the byte
  pair[0] = row.data[d / 2 * side.dim];
  return widen(Int4{}, pair)[d & 1] * scale;
}

// Copies one row as f32, zero from head_dim up to a multiple of W.
TAMIS_INLINE void widen_row(const Side& side, const Row& row, float* to) {
  const int64_t padded = round_up(side.head_dim, W);
  if (strided(side)) {
    for (int64_t d = 0; d < padded; ++d) to[d] = d < side.head_dim ? element_of(side, row, d) : 0;
    return;
  }
  with_loader(side, [&](auto loader) {
    using Load = decltype(loader);
    int64_t d = 0;
    for (; d + W <= side.head_dim; d += W) store(to + d, Load::load(row, d));
    if (d < side.head_dim) store(to + d, Load::load_some(row, d, static_cast<int>(side.head_dim - d)));
  });
}

// Copies `columns.count` rows to `to`, `stride` floats apart, asking for the next tile's rows meanwhile.
inline void widen_rows(const Side& side, const Columns& columns, float* to, int64_t stride) {
  for (int c = 0; c < columns.count; ++c) {
    if (c < columns.next_count) prefetch_row(columns.next[c].data, columns.next_bytes);
    widen_row(side, columns.row[c], to + c * stride);
  }
}

// Whether a row of f32, zero up to a multiple of W, holds numbers only.
TAMIS_INLINE bool finite(const float* row, int64_t dim) {
  Vec zero = {};
  for (int64_t d = 0; d < dim; d += W) {
    const Vec x = load(row + d);
    zero += x - x;  // 0, or NaN once anything is Inf or NaN
  }
  return sum(zero) == 0;
}

// The rows that are not finite, as bits.
inline uint64_t bad_rows(const float* rows, int64_t stride, int count, int64_t dim) {
  uint64_t bad = 0;
  for (int c = 0; c < count; ++c)
    if (!finite(rows + c * stride, dim)) bad |= uint64_t{1} << c;
  return bad;
}

// Transposes f32 rows, `stride` apart, into panel[d * kTile + c]; columns from `count` up to a vector are 0.
inline void transpose_rows(const float* rows, int64_t stride, int count, int64_t dim, float* panel) {
  const char* at[kTile];
  for (int c = 0; c < count; ++c) at[c] = reinterpret_cast<const char*>(rows + c * stride);
  transpose_units(at, count, dim, static_cast<int>(round_up(count, W)), reinterpret_cast<uint32_t*>(panel),
                  kTile);
}

#if defined(__AVX512BF16__)
// Rows of bf16 as a panel of pairs along the head: panel[(d / 2) * kTile + c]. head_dim is even.
inline void transpose_pairs(const Side& side, const Columns& columns, uint32_t* panel) {
  const char* at[kTile];
  for (int c = 0; c < columns.count; ++c) {
    if (c < columns.next_count) prefetch_row(columns.next[c].data, columns.next_bytes);
    at[c] = columns.row[c].data;
  }
  transpose_units(at, columns.count, side.head_dim / 2, static_cast<int>(round_up(columns.count, W)), panel,
                  kTile);
}

// Neighbouring rows of bf16 as pairs: panel[(c / 2) * stride + d]. The partner of an odd last row is 0.
// Returns the rows that are not finite.
inline uint64_t join_pairs(const Side& side, const Columns& columns, uint32_t* panel, int64_t stride) {
  uint64_t bad = 0;
  const auto bits = [&](int c, int64_t d) {
    const char* at = columns.row[c].data + 2 * d;
    if (d + W <= side.head_dim) return widen_bits(at);
    alignas(64) char padded[4 * W] = {};
    memcpy(padded, at, static_cast<size_t>(2 * (side.head_dim - d)));
    return widen_bits(padded);
  };
  for (int c = 0; c < columns.count; c += 2) {
    for (int i = c; i < c + 2 && i < columns.next_count; ++i)
      prefetch_row(columns.next[i].data, columns.next_bytes);
    UintVec top_low = {}, top_high = {};  // the largest magnitude met
    for (int64_t d = 0; d < side.head_dim; d += W) {
      const UintVec low = bits(c, d), high = c + 1 < columns.count ? bits(c + 1, d) : UintVec{};
      const UintVec pair = low | high << 16;
      memcpy(panel + c / 2 * stride + d, &pair, sizeof pair);
      const UintVec a = low & 0x7FFF, b = high & 0x7FFF;
      top_low = a > top_low ? a : top_low;
      top_high = b > top_high ? b : top_high;
    }
    for (int i = 0; i < W; ++i) {
      if (top_low[i] >= 0x7F80) bad |= uint64_t{1} << c;
      if (top_high[i] >= 0x7F80) bad |= uint64_t{2} << c;
    }
  }
  return bad;
}

TAMIS_INLINE UintVec widen_halves(__m256bh x) {
  return reinterpret_cast<UintVec>(_mm512_maskz_cvtepu16_epi32(0xFFFF, reinterpret_cast<__m256i>(x)));
}

// W numbers as bf16, rounded to nearest even.
TAMIS_INLINE void store_halves(uint16_t* to, Vec x) {
  const __m256bh half = _mm512_cvtneps_pbh(x);
  memcpy(to, &half, sizeof half);
}
#endif

}  // namespace tamis::cpu::TAMIS_ISA
