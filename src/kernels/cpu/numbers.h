// Sizes, and rows of plain tensors as the kernels want them.
#pragma once

#include <cstring>

#include "core/elements.h"

namespace tamis::cpu {

constexpr int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

// The `dim` numbers at `offset` as f32, with zeros up to `padded`.
inline void load_row(const TensorView& t, int64_t offset, int64_t dim, int64_t padded, float* to) {
  const int64_t step = t.stride[t.rank - 1];
  for (int64_t d = 0; d < dim; ++d) to[d] = load_float(t, offset + d * step);
  for (int64_t d = dim; d < padded; ++d) to[d] = 0;
}

// Products of bf16 pairs stand in for f32 ones where all that enters them is bf16 already.
inline bool pairs_up(const TensorView& t) { return t.dtype == DType::kBF16 && t.stride[t.rank - 1] == 1; }

// The same of a tensor that pairs up, as bits.
inline void load_pairs(const TensorView& t, int64_t offset, int64_t dim, int64_t units, uint32_t* to) {
  memset(to, 0, 4 * static_cast<size_t>(units));
  memcpy(to, static_cast<const uint16_t*>(t.data) + offset, 2 * static_cast<size_t>(dim));
}

}  // namespace tamis::cpu
