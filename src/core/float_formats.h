// Storage formats as bits: conversions between f32 and f16, bf16, fp8 e4m3 and e5m2, int8 and int4. Rounding
// to nearest, ties to even, everywhere.
//
//            beyond the largest value             NaN
//   f16 bf16 infinity                             stays NaN
//   fp8      the largest value, 448 or 57344;     stays NaN
//            infinities too
//   int8     clamped to [-128, 127]               0
//   int4     clamped to [-8, 7]                   0
//
// Infinities saturate in e5m2 as well, which has codes for them: it is what cvt.rn.satfinite does, so host
// and device agree, and one rule holds for both kinds. The ..._saturates functions tell when the code is not
// the nearest one of an endless range, and for the integers also when a NaN was lost.
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

// ---- fp8 (OFP8, Open Compute Project 2023). e4m3 is "FN": no infinities, 0x7F and 0xFF are NaN.

inline constexpr float kLargestE4M3 = 448.f, kLargestE5M2 = 57344.f;

TAMIS_HD inline float e4m3_to_float(uint8_t code) {
  const uint32_t sign = uint32_t{code} >> 7 << 31, magnitude = code & 0x7F;
  if (magnitude == 0x7F) return bits_float(sign | 0x7FC00000);
  // From bias 7 to 127, as for f16.
  return bits_float(sign | float_bits(bits_float(magnitude << 20) * 0x1p120f));
}

TAMIS_HD inline uint8_t float_to_e4m3(float x) {
  const uint32_t bits = float_bits(x), sign = bits >> 24 & 0x80, magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return static_cast<uint8_t>(sign | 0x7F);
  if (magnitude >= 0x43E00000) return static_cast<uint8_t>(sign | 0x7E);  // 448
  if (magnitude < 0x3C800000) {
    // Below 2^-6, the subnormals: adding 2^14 leaves the rounded multiple of 2^-9 in the low bits of the sum.
    const float shifted = bits_float(magnitude) + 0x1p14f;
    return static_cast<uint8_t>(sign | (float_bits(shifted) - 0x46800000));
  }
  return static_cast<uint8_t>(sign | (magnitude - 0x3C000000 + 0x7FFFF + (magnitude >> 20 & 1)) >> 20);
}

// 464, halfway to a next value of 480, still rounds to 448, whose mantissa is even.
TAMIS_HD inline bool e4m3_saturates(float x) {
  const uint32_t magnitude = float_bits(x) & 0x7FFFFFFF;
  return magnitude > 0x43E80000 && magnitude <= 0x7F800000;
}

TAMIS_HD inline float e5m2_to_float(uint8_t code) {
  return f16_to_float(static_cast<uint16_t>(code << 8));  // f16 with a shorter mantissa
}

TAMIS_HD inline uint8_t float_to_e5m2(float x) {
  const uint32_t bits = float_bits(x), sign = bits >> 24 & 0x80, magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return static_cast<uint8_t>(sign | 0x7E);
  if (magnitude >= 0x47600000) return static_cast<uint8_t>(sign | 0x7B);  // 57344
  if (magnitude < 0x38800000) {
    const float shifted = bits_float(magnitude) + 0x1p7f;  // below 2^-14: multiples of 2^-16
    return static_cast<uint8_t>(sign | (float_bits(shifted) - 0x43000000));
  }
  return static_cast<uint8_t>(sign | (magnitude - 0x38000000 + 0xFFFFF + (magnitude >> 21 & 1)) >> 21);
}

// 61440, halfway to a next value of 65536, would round there, since the mantissa of 57344 is odd.
TAMIS_HD inline bool e5m2_saturates(float x) {
  const uint32_t magnitude = float_bits(x) & 0x7FFFFFFF;
  return magnitude >= 0x47700000 && magnitude <= 0x7F800000;
}

// ---- Integers

// `low` and `high` are integers below 2^22 in magnitude: adding 1.5 * 2^23 then leaves no bits behind the
// point.
TAMIS_HD inline int32_t float_to_clamped_int(float x, float low, float high) {
  if (!(x == x)) return 0;
  const float clamped = x < low ? low : x > high ? high : x;
  return static_cast<int32_t>(float_bits(clamped + 0x1.8p23f) - 0x4B400000);
}

TAMIS_HD inline int8_t float_to_int8(float x) {
  return static_cast<int8_t>(float_to_clamped_int(x, -128.f, 127.f));
}
TAMIS_HD inline bool int8_saturates(float x) { return !(x >= -128.5f && x < 127.5f); }

TAMIS_HD inline int8_t float_to_int4(float x) {
  return static_cast<int8_t>(float_to_clamped_int(x, -8.f, 7.f));
}
TAMIS_HD inline bool int4_saturates(float x) { return !(x >= -8.5f && x < 7.5f); }

// Two codes a byte, the first in the low nibble; only the low four bits of each are taken.
TAMIS_HD inline uint8_t pack_nibbles(int32_t first, int32_t second) {
  return static_cast<uint8_t>((first & 15) | (second & 15) << 4);
}
// Code `which` (0 or 1) of a byte, -8 to 7.
TAMIS_HD inline int32_t nibble_of(uint8_t byte, int64_t which) {
  return ((byte >> (4 * which) & 15) ^ 8) - 8;
}

}  // namespace tamis
