// Conversions between f32 and fp8, against their definition (OFP8): value of a code, nearest code of a value.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#if __has_include(<cuda_fp8.h>)
#include <cuda_fp8.h>
#define TAMIS_HAS_CUDA_FP8 1
#endif

#include "core/float_formats.h"
#include "support/numbers.h"

namespace tamis {
namespace {

using testing::kInf;

struct Fp8 {
  const char* name;
  int exponent_bits, mantissa_bits;
  uint8_t largest;   // code of the largest finite value
  uint8_t infinity;  // 0: the format has none
  float (*widen)(uint8_t);
  uint8_t (*narrow)(float);
  bool (*saturates)(float);
  int cuda;  // __nv_fp8_interpretation_t

  bool is_nan(uint8_t code) const {
    return (code & 0x7F) > largest && !(infinity && (code & 0x7F) == infinity);
  }
  double value(uint8_t code) const {
    const int exponent = (code & 0x7F) >> mantissa_bits, mantissa = code & ((1 << mantissa_bits) - 1);
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const double sign = code & 0x80 ? -1 : 1;
    if (infinity && (code & 0x7F) == infinity) return sign * kInf;
    if (is_nan(code)) return testing::kNaN;
    return exponent == 0
               ? sign * std::ldexp(mantissa, 1 - bias - mantissa_bits)
               : sign * std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
  }
  // The value after the largest, if the exponents went on: where rounding up from the largest would go.
  double beyond() const { return 2 * value(largest) - value(largest - 1); }
};

const Fp8 kKinds[] = {
    {"e4m3", 4, 3, 0x7E, 0, [](uint8_t x) { return e4m3_to_float(x); },
     [](float x) { return float_to_e4m3(x); }, [](float x) { return e4m3_saturates(x); }, 0},
    {"e5m2", 5, 2, 0x7B, 0x7C, [](uint8_t x) { return e5m2_to_float(x); },
     [](float x) { return float_to_e5m2(x); }, [](float x) { return e5m2_saturates(x); }, 1},
};

class Fp8Formats : public ::testing::TestWithParam<Fp8> {};
INSTANTIATE_TEST_SUITE_P(Each, Fp8Formats, ::testing::ValuesIn(kKinds),
                         [](const auto& kind) { return std::string(kind.param.name); });

TEST_P(Fp8Formats, TheLargestValuesAreTheStandards) {
  const Fp8& f = GetParam();
  EXPECT_EQ(f.widen(f.largest), f.mantissa_bits == 3 ? 448.f : 57344.f);
  EXPECT_EQ(f.widen(f.largest), f.mantissa_bits == 3 ? kLargestE4M3 : kLargestE5M2);
  EXPECT_TRUE(std::isnan(f.widen(0x7F)) && std::isnan(f.widen(0xFF)));
}

TEST_P(Fp8Formats, EveryCodeWidensToItsValueAndBack) {
  const Fp8& f = GetParam();
  for (int i = 0; i < 256; ++i) {
    const uint8_t code = static_cast<uint8_t>(i);
    const float x = f.widen(code);
    if (f.is_nan(code)) {
      EXPECT_TRUE(std::isnan(x)) << i;
      EXPECT_EQ(std::signbit(x), code >= 0x80) << i;
      EXPECT_TRUE(f.is_nan(f.narrow(x))) << i;
      EXPECT_EQ(f.narrow(x) >= 0x80, code >= 0x80) << i;
      continue;
    }
    EXPECT_EQ(std::bit_cast<uint32_t>(x), std::bit_cast<uint32_t>(static_cast<float>(f.value(code)))) << i;
    if (std::isfinite(x)) {
      EXPECT_EQ(f.narrow(x), code) << i;
    }
  }
}

TEST_P(Fp8Formats, HalfwayCasesGoToTheEvenCode) {
  const Fp8& f = GetParam();
  for (uint8_t code = 0; code < f.largest; ++code) {
    const float middle = static_cast<float>((f.value(code) + f.value(code + 1)) / 2);
    const uint8_t even = code % 2 == 0 ? code : code + 1;
    for (const int sign : {0, 0x80}) {
      const float s = sign ? -1.f : 1.f;
      EXPECT_EQ(f.narrow(s * middle), even | sign) << int{code};
      EXPECT_EQ(f.narrow(s * std::nextafter(middle, 0.f)), code | sign) << int{code};
      EXPECT_EQ(f.narrow(s * std::nextafter(middle, INFINITY)), (code + 1) | sign) << int{code};
      EXPECT_FALSE(f.saturates(s * middle));
    }
  }
}

TEST_P(Fp8Formats, WhatLiesBeyondBecomesTheLargestValue) {
  const Fp8& f = GetParam();
  const float top = f.widen(f.largest), border = static_cast<float>((top + f.beyond()) / 2);
  for (const float x : {std::nextafter(top, INFINITY), border, std::nextafter(border, INFINITY),
                        static_cast<float>(f.beyond()), 1e30f, std::numeric_limits<float>::max(), INFINITY}) {
    EXPECT_EQ(f.narrow(x), f.largest) << x;
    EXPECT_EQ(f.narrow(-x), f.largest | 0x80) << x;
    EXPECT_EQ(f.saturates(x), f.saturates(-x)) << x;
  }
  // Rounding down to the largest is no saturation; the tie goes to an even mantissa.
  EXPECT_FALSE(f.saturates(top));
  EXPECT_FALSE(f.saturates(std::nextafter(border, 0.f)));
  EXPECT_EQ(f.saturates(border), f.largest % 2 == 1);
  EXPECT_TRUE(f.saturates(std::nextafter(border, INFINITY)));
  EXPECT_TRUE(f.saturates(INFINITY));
}

TEST_P(Fp8Formats, TinyValuesKeepTheirSign) {
  const Fp8& f = GetParam();
  for (const float x : {0.f, std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::min()}) {
    EXPECT_EQ(f.narrow(x), 0);
    EXPECT_EQ(f.narrow(-x), 0x80);
    EXPECT_FALSE(f.saturates(x));
  }
}

TEST_P(Fp8Formats, NaNStaysNaNWhateverItsPayload) {
  const Fp8& f = GetParam();
  for (const uint32_t payload : {1u, 0x1000u, 0xFFFFFu, 0x100000u, 0x200000u, 0x400000u, 0x7FFFFFu})
    for (const uint32_t sign : {0u, 0x80000000u}) {
      const float x = std::bit_cast<float>(sign | 0x7F800000u | payload);
      EXPECT_TRUE(f.is_nan(f.narrow(x))) << payload;
      EXPECT_EQ(f.narrow(x) >> 7, sign >> 31) << payload;
      EXPECT_FALSE(f.saturates(x)) << "nothing is lost";
    }
}

TEST_P(Fp8Formats, ValuesAcrossTheWholeRangeGoToTheNearestCode) {
  const Fp8& f = GetParam();
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 20011) {  // a prime: all exponents, odd mantissas
    const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (std::isnan(x)) continue;
    // The definition once more: the nearest of all finite codes, of two equally near ones the even one.
    const uint8_t got = f.narrow(x);
    ASSERT_EQ(got >= 0x80, std::signbit(x)) << x;
    const double off = std::fabs(f.value(got) - x);
    const uint8_t magnitude = got & 0x7F;
    if (std::fabs(x) >= f.value(f.largest)) {
      ASSERT_EQ(magnitude, f.largest) << x;
      continue;
    }
    for (const int other : {magnitude - 1, magnitude + 1}) {
      if (other < 0 || other > f.largest) continue;
      const double theirs = std::fabs(f.value(static_cast<uint8_t>(other)) - std::fabs(x));
      ASSERT_TRUE(off < theirs || (off == theirs && magnitude % 2 == 0)) << x;
    }
  }
}

#ifdef TAMIS_HAS_CUDA_FP8
// The toolkit's own conversion, in the mode the hardware has (cvt.rn.satfinite).
TEST_P(Fp8Formats, AgreesWithCuda) {
  const Fp8& f = GetParam();
  const auto kind = static_cast<__nv_fp8_interpretation_t>(f.cuda);
  ASSERT_EQ(f.cuda == 0, kind == __NV_E4M3);
  const auto compare = [&](float x) {
    const uint8_t want = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, kind);
    if (std::isnan(x)) return f.is_nan(f.narrow(x)) && f.is_nan(want);  // the toolkit drops the sign
    return f.narrow(x) == want;
  };
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 2003)
    ASSERT_TRUE(compare(std::bit_cast<float>(static_cast<uint32_t>(bits)))) << bits;
  for (uint32_t top = 0; top < 4096; ++top)  // every upper part, just below, at and above each border
    for (const uint32_t low : {0u, 1u, 0x7FFFFu, 0x80000u, 0x80001u, 0xFFFFFu})
      ASSERT_TRUE(compare(std::bit_cast<float>(top << 20 | low))) << top << ' ' << low;
  for (int code = 0; code < 256; ++code) {
    const __half_raw half = __nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(code), kind);
    const float want = f16_to_float(half.x), got = f.widen(static_cast<uint8_t>(code));
    ASSERT_TRUE(got == want || (std::isnan(got) && std::isnan(want))) << code;
  }
}
#endif

}  // namespace
}  // namespace tamis
