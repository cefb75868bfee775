// Storage formats as bits: conversions between f32 and f16, bf16. Rounding to nearest, ties to even; NaN
// stays NaN.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/hd.h"

namespace tamis {

TAMIS_HD inline uint32_t float_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

TAMIS_HD inline float bits_float(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

TAMIS_HD inline float bf16_to_float(uint16_t bits) { return bits_float(uint32_t{bits} << 16); }

TAMIS_HD inline uint16_t float_to_bf16(float x) {
  const uint32_t bits = float_bits(x);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return static_cast<uint16_t>(bits >> 16 | 0x40);  // quiet, sign kept
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

TAMIS_HD inline float f16_to_float(uint16_t half) {
  const uint32_t sign = uint32_t{half} >> 15 << 31, magnitude = half & 0x7FFF;
  if (magnitude >= 0x7C00) return bits_float(sign | 0x7F800000 | (magnitude & 0x3FF) << 13);
  // The exponent field moves from bias 15 to 127 by one exact product, which also normalizes subnormals.
  return bits_float(sign | float_bits(bits_float(magnitude << 13) * 0x1p112f));
}

TAMIS_HD inline uint16_t float_to_f16(float x) {
  const uint32_t bits = float_bits(x), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return static_cast<uint16_t>(sign | 0x7E00);
  if (magnitude >= 0x477FF000) return static_cast<uint16_t>(sign | 0x7C00);  // rounds to 2^16 or more
  if (magnitude < 0x38800000) {
    // Subnormal in f16: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits of the sum.
    const float shifted = bits_float(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (float_bits(shifted) - 0x3F000000));
  }
  return static_cast<uint16_t>(sign | (magnitude - 0x38000000 + 0xFFF + (magnitude >> 13 & 1)) >> 13);
}

}  // namespace tamis
