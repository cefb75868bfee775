// Numbers as tests store them: f32, f16 and bf16 encoders of their own, so that no test leans on the code it
// tests.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "tamis/tensor.h"

namespace tamis::testing {

inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kInf = std::numeric_limits<double>::infinity();

inline uint16_t to_bf16(double x) {
  if (std::isnan(x)) return 0x7FC0;
  const uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(x));
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);  // to nearest, ties to even
}

inline uint16_t to_f16(double x) {
  if (std::isnan(x)) return 0x7E00;
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  x = std::fabs(x);
  if (x >= 65520) return sign | 0x7C00;
  const int exponent = x < 0x1p-14 ? -14 : std::ilogb(x);
  // The carry of a mantissa that rounds up to 2^11 runs into the exponent, as it should.
  const int mantissa = static_cast<int>(std::nearbyint(std::ldexp(x, 10 - exponent)));
  return static_cast<uint16_t>(sign | (((exponent + 14) << 10) + mantissa));
}

// Writes element `offset` of an f32, f16 or bf16 array.
inline void store(void* data, DType dtype, int64_t offset, double x) {
  if (dtype == DType::kF32) {
    static_cast<float*>(data)[offset] = static_cast<float>(x);
  } else {
    static_cast<uint16_t*>(data)[offset] = dtype == DType::kF16 ? to_f16(x) : to_bf16(x);
  }
}

}  // namespace tamis::testing
