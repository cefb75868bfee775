// Products of many rows: C [rows, columns] = A [rows, depth] * B [depth, columns], with B packed so that a
// step of the sum is one load for W columns. Scores, the weighted sum and every product of the backward are
// this one loop over different panels.
//
// A step takes one f32 of A and of each column (F32Step), or a pair of neighbouring bf16 (BF16Step, where the
// instruction set has it). Each element of C is summed in the order of the depth, whatever rows or columns
// stand beside it.
#pragma once

#include <type_traits>

#include "kernels/cpu/vec.h"

namespace tamis::cpu::TAMIS_ISA {

// Registers of a micro tile: kPanelRows x kPanelVectors sums, one row of B, one element of A.
#if defined(__AVX512F__)
inline constexpr int kPanelRows = 6, kPanelVectors = 4;
#else
inline constexpr int kPanelRows = 6, kPanelVectors = 2;
#endif

struct F32Step {
  using Unit = float;
  static constexpr int kDepth = 1;
  TAMIS_INLINE static Vec madd(Vec sum, float a, Vec b) {
    return tamis::cpu::TAMIS_ISA::madd(splat(a), b, sum);
  }
};

#if defined(__AVX512BF16__)
struct BF16Step {
  using Unit = uint32_t;
  static constexpr int kDepth = 2;
  TAMIS_INLINE static Vec madd(Vec sum, uint32_t a, Vec b) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(a))),
                            reinterpret_cast<__m512bh>(b));
  }
};
#endif

// A: element (row, step) at data[row * row_stride + step * step_stride]; strides in units.
template <class Unit>
struct PanelLeft {
  const Unit* data;
  int64_t row_stride, step_stride;
};

// B: units of step `s` at data + s * stride, padded with zeros to whole vectors.
template <class Unit>
struct PanelRight {
  const Unit* data;
  int64_t stride, steps;
};

// What the sums start from.
enum class Start { kZero, kScaled, kAdd };  // kScaled: C of each row times its scale

template <class Step, Start kStart, int R, int N>
TAMIS_INLINE void panel_tile(const PanelLeft<typename Step::Unit>& a,
                             const PanelRight<typename Step::Unit>& b, const float* scale, float* c,
                             int64_t c_stride, int tail) {
  Vec sum[R][N];
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) {
      if constexpr (kStart == Start::kZero) {
        sum[r][n] = Vec{};
      } else {
        const float* at = c + r * c_stride + n * W;
        const Vec old = tail == 0 ? load(at) : widen_some(F32{}, at, tail);
        sum[r][n] = kStart == Start::kScaled ? old * scale[r] : old;
      }
    }
  for (int64_t s = 0; s < b.steps; ++s) {
    Vec x[N];
    for (int n = 0; n < N; ++n) memcpy(&x[n], b.data + s * b.stride + n * W, sizeof x[n]);
    for (int r = 0; r < R; ++r) {
      const typename Step::Unit y = a.data[r * a.row_stride + s * a.step_stride];
      for (int n = 0; n < N; ++n) sum[r][n] = Step::madd(sum[r][n], y, x[n]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) {
      float* at = c + r * c_stride + n * W;
      if (tail == 0)
        store(at, sum[r][n]);
      else
        memcpy(at, &sum[r][n], sizeof(float) * static_cast<size_t>(tail));
    }
}

template <class Step, Start kStart, int N>
TAMIS_INLINE void panel_rows(const PanelLeft<typename Step::Unit>& a, int64_t rows,
                             const PanelRight<typename Step::Unit>& b, const float* scale, float* c,
                             int64_t c_stride, int tail = 0) {
  int64_t r = 0;
  const auto rows_from = [&](auto count) {
    constexpr int R = decltype(count)::value;
    for (; r + R <= rows; r += R)
      panel_tile<Step, kStart, R, N>({a.data + r * a.row_stride, a.row_stride, a.step_stride}, b,
                                     kStart == Start::kScaled ? scale + r : nullptr, c + r * c_stride,
                                     c_stride, tail);
  };
  rows_from(std::integral_constant<int, kPanelRows>{});
  rows_from(std::integral_constant<int, 2>{});
  rows_from(std::integral_constant<int, 1>{});
}

// C has room for `columns` numbers a row and no more; B for whole vectors.
template <class Step, Start kStart>
void panel(const PanelLeft<typename Step::Unit>& a, int64_t rows, PanelRight<typename Step::Unit> b,
           const float* scale, float* c, int64_t c_stride, int64_t columns) {
  int64_t n = 0;
  for (; n + kPanelVectors * W <= columns; n += kPanelVectors * W, b.data += kPanelVectors * W)
    panel_rows<Step, kStart, kPanelVectors>(a, rows, b, scale, c + n, c_stride);
  for (; n + W <= columns; n += W, b.data += W)
    panel_rows<Step, kStart, 1>(a, rows, b, scale, c + n, c_stride);
  if (n < columns)
    panel_rows<Step, kStart, 1>(a, rows, b, scale, c + n, c_stride, static_cast<int>(columns - n));
}

// to[u * stride + c] = unit u of row c, for `units` units of `count` rows of 32-bit units, padded with zeros
// to `columns` (a multiple of W): the transposition that makes scores a panel product.
TAMIS_INLINE void transpose_units(const char* const* rows, int count, int64_t units, int columns,
                                  uint32_t* to, int64_t stride) {
  for (int c = 0; c < columns; c += W) {
    const int here = count - c < W ? count - c : W;
    int64_t u = 0;
    if (here == W)
      for (; u + W <= units; u += W) {
        UintVec block[W];
        for (int i = 0; i < W; ++i) memcpy(&block[i], rows[c + i] + 4 * u, sizeof block[i]);
        transpose_square(block);
        for (int i = 0; i < W; ++i) memcpy(to + (u + i) * stride + c, &block[i], sizeof block[i]);
      }
    for (; u < units; ++u)
      for (int i = 0; i < W; ++i) {
        uint32_t unit = 0;
        if (i < here) memcpy(&unit, rows[c + i] + 4 * u, sizeof unit);
        to[u * stride + c + i] = unit;
      }
  }
}

}  // namespace tamis::cpu::TAMIS_ISA
