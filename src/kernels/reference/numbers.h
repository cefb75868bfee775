// Stored numbers as float64, decoded from their bits: written out here so that the judge shares no conversion
// with the kernels.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "tamis/tensor.h"

namespace tamis::reference {

// A float of `exponent` and `mantissa` bits with the IEEE 754 meaning of all its codes.
inline double decode_float(uint32_t bits, int exponent, int mantissa) {
  const int bias = (1 << (exponent - 1)) - 1, top = (1 << exponent) - 1;
  const double sign = (bits >> (exponent + mantissa)) & 1 ? -1 : 1;
  const int e = static_cast<int>(bits >> mantissa) & top;
  const double m = static_cast<double>(bits & ((1u << mantissa) - 1));
  if (e == top) return m == 0 ? sign * INFINITY : NAN;
  if (e == 0) return sign * std::ldexp(m, 1 - bias - mantissa);
  return sign * std::ldexp(m + std::ldexp(1.0, mantissa), e - bias - mantissa);
}

// Element `offset` of an f32, f16 or bf16 tensor.
inline double load_float(const TensorView& t, int64_t offset) {
  if (t.dtype == DType::kF32) return static_cast<const float*>(t.data)[offset];
  const uint16_t bits = static_cast<const uint16_t*>(t.data)[offset];
  if (t.dtype == DType::kF16) return decode_float(bits, 5, 10);
  const uint32_t wide = uint32_t{bits} << 16;  // bf16 is the upper half of an f32
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

// OCP E4M3: the top exponent is an exponent like any other, only its last mantissa is NaN; no infinities.
inline double decode_e4m3(uint8_t code) {
  const double sign = code & 0x80 ? -1 : 1;
  const int e = code >> 3 & 15, m = code & 7;
  if (e == 15 && m == 7) return NAN;
  return sign * (e == 0 ? std::ldexp(m, -9) : std::ldexp(8 + m, e - 10));
}

// OCP E5M2 is the upper half of an f16.
inline double decode_e5m2(uint8_t code) { return decode_float(code, 5, 2); }

// One of the two signed 4-bit codes of a byte, the low one first.
inline double decode_int4(uint8_t byte, bool second) {
  const int nibble = second ? byte >> 4 : byte & 15;
  return nibble < 8 ? nibble : nibble - 16;
}

}  // namespace tamis::reference
