// Elements of plain tensors, one at a time.
#pragma once

#include "core/float_formats.h"
#include "tamis/tensor.h"

namespace tamis::cpu {

// f32, f16 or bf16.
inline float load_float(const TensorView& t, int64_t offset) {
  if (t.dtype == DType::kF32) return static_cast<const float*>(t.data)[offset];
  const uint16_t bits = static_cast<const uint16_t*>(t.data)[offset];
  return t.dtype == DType::kF16 ? f16_to_float(bits) : bf16_to_float(bits);
}

inline void store_float(const MutableTensorView& t, int64_t offset, float x) {
  if (t.dtype == DType::kF32)
    static_cast<float*>(t.data)[offset] = x;
  else
    static_cast<uint16_t*>(t.data)[offset] = t.dtype == DType::kF16 ? float_to_f16(x) : float_to_bf16(x);
}

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
