// Elements of plain tensors (f32, f16, bf16), one at a time.
#pragma once

#include "core/float_formats.h"
#include "tamis/tensor.h"

namespace tamis {

inline constexpr DType kPlainFloats[] = {DType::kF32, DType::kF16, DType::kBF16};

inline bool is_plain_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

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

}  // namespace tamis
