// Numbers as tests store them: encoders and decoders of their own, so that no test leans on the code it
// tests.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "tamis/cache.h"

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

inline double load(const void* data, DType dtype, int64_t offset) {
  if (dtype == DType::kF32) return static_cast<const float*>(data)[offset];
  const uint32_t bits = static_cast<const uint16_t*>(data)[offset];
  if (dtype == DType::kBF16) return std::bit_cast<float>(bits << 16);
  const int e = static_cast<int>(bits >> 10 & 31), m = static_cast<int>(bits & 1023);
  const double size = e == 31  ? (m == 0 ? kInf : kNaN)
                      : e == 0 ? std::ldexp(m, -24)
                               : std::ldexp(1024 + m, e - 25);
  return bits & 0x8000 ? -size : size;
}

// Non-negative finite codes of a float format in order are its non-negative numbers in order, and the
// distance between neighbours doubles with every exponent after the first: so all values follow from the
// smallest by adding, which is exact in float64. No exponent is ever taken apart here.
inline std::vector<double> values_in_order(int mantissa_bits, int exponents, double smallest) {
  std::vector<double> values;
  double x = 0, step = smallest;
  for (int e = 0; e < exponents; ++e) {
    if (e > 1) step *= 2;
    for (int m = 0; m < 1 << mantissa_bits; ++m, x += step) values.push_back(x);
  }
  return values;
}

inline bool is_fp8(Format format) { return format == Format::kFp8E4M3 || format == Format::kFp8E5M2; }

// The value of every code of a quantized format, by the code's bits: 256 of them, 16 for int4.
inline std::vector<double> make_code_values(Format format) {
  std::vector<double> values;
  if (format == Format::kInt4) {
    for (int code = 0; code < 16; ++code) values.push_back(code < 8 ? code : code - 16);
  } else if (format == Format::kInt8) {
    for (int code = 0; code < 256; ++code) values.push_back(code < 128 ? code : code - 256);
  } else {
    if (format == Format::kFp8E4M3) {
      values = values_in_order(3, 16, 0x1p-9);
      values[127] = kNaN;
    } else {
      values = values_in_order(2, 31, 0x1p-16);
      values.insert(values.end(), {kInf, kNaN, kNaN, kNaN});
    }
    for (int code = 0; code < 128; ++code) values.push_back(-values[code]);
  }
  return values;
}

inline const std::vector<double>& code_values(Format format) {
  static const std::vector<double> all[] = {{},
                                            make_code_values(Format::kInt8),
                                            make_code_values(Format::kFp8E4M3),
                                            make_code_values(Format::kFp8E5M2),
                                            make_code_values(Format::kInt4)};
  return all[static_cast<int>(format)];
}

// The code nearest to x, the largest for what is beyond them. What is not finite becomes NaN in fp8 and the
// most negative code in int8 and int4.
inline int nearest_code(Format format, double x) {
  if (!std::isfinite(x)) return is_fp8(format) ? 0x7F : format == Format::kInt8 ? 0x80 : 8;
  const std::vector<double>& values = code_values(format);
  int best = 0;
  for (int code = 1; code < static_cast<int>(values.size()); ++code)
    if (std::fabs(values[code] - x) < std::fabs(values[best] - x)) best = code;
  return best;
}

}  // namespace tamis::testing
