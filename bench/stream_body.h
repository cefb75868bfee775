// The loops of stream.h for one instruction set. Included once by each stream_*.cpp, which sets TAMIS_ISA;
// every name lives in that namespace, so that no code made for one can be linked into another.
#pragma once

#include <cstring>

#include "stream.h"

#ifndef TAMIS_ISA
#error "TAMIS_ISA names the namespace of the instruction set this file is compiled for"
#endif

namespace tamis::bench::TAMIS_ISA {

#if defined(__AVX512F__)
inline constexpr int kBytes = 64, kRows = 12;  // 24 accumulators of 32 registers
#elif defined(__AVX2__)
inline constexpr int kBytes = 32, kRows = 6;  // 12 of 16
#else
inline constexpr int kBytes = 16, kRows = 6;
#endif
inline constexpr int kLine = 64, kLanes = kBytes / 4;

typedef uint64_t Words __attribute__((vector_size(kBytes)));
typedef float Floats __attribute__((vector_size(kBytes)));

template <class V>
[[gnu::always_inline]] inline V load(const void* p) {
  V v;
  memcpy(&v, p, sizeof v);
  return v;
}

[[gnu::always_inline]] inline void add_line(const std::byte* p, Words* sum) {
  for (int i = 0; i < kLine / kBytes; ++i) *sum += load<Words>(p + i * kBytes);
}

template <bool kPrefetch>
uint64_t read_pieces(const Pieces& pieces, int64_t begin, int64_t end, int64_t ahead) {
  Words sums[4] = {};
  const int64_t last = static_cast<int64_t>(pieces.at.size()) - 1;
  for (int64_t i = begin; i < end; ++i) {
    const std::byte* next = pieces.at[i + ahead < last ? i + ahead : last];
    for (int64_t row = 0; row < pieces.rows; ++row) {
      const std::byte* p = pieces.at[i] + row * pieces.row_stride;
      const std::byte* n = next + row * pieces.row_stride;
      int64_t byte = 0;
      for (; byte + 4 * kLine <= pieces.row_bytes; byte += 4 * kLine)
        for (int u = 0; u < 4; ++u) {
          if constexpr (kPrefetch) __builtin_prefetch(n + byte + u * kLine);
          add_line(p + byte + u * kLine, &sums[u]);
        }
      for (; byte < pieces.row_bytes; byte += kLine) {
        if constexpr (kPrefetch) __builtin_prefetch(n + byte);
        add_line(p + byte, &sums[0]);
      }
    }
  }
  const Words sum = sums[0] + sums[1] + sums[2] + sums[3];
  uint64_t total = 0;
  for (int i = 0; i < kBytes / 8; ++i) total += sum[i];
  return total;
}

inline uint64_t read(const Pieces& pieces, int64_t begin, int64_t end, int64_t ahead) {
  return ahead > 0 ? read_pieces<true>(pieces, begin, end, ahead) : read_pieces<false>(pieces, begin, end, 0);
}

inline void product(const float* a, int64_t a_stride, const float* b, float* c, int64_t c_stride,
                    int64_t depth) {
  Floats sums[kRows][2] = {};
  for (int64_t k = 0; k < depth; ++k) {
    const Floats left = load<Floats>(b + k * 2 * kLanes), right = load<Floats>(b + k * 2 * kLanes + kLanes);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const Floats x = a[r * a_stride + k] - Floats{};
      sums[r][0] += x * left;
      sums[r][1] += x * right;
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int half = 0; half < 2; ++half) {
      float* to = c + r * c_stride + half * kLanes;
      const Floats sum = load<Floats>(to) + sums[r][half];
      memcpy(to, &sum, sizeof sum);
    }
}

}  // namespace tamis::bench::TAMIS_ISA
