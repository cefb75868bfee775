// Conversions between f32 and f16, bf16, against their definition: value of a code, nearest code of a value.
#include "core/float_formats.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "support/numbers.h"

namespace tamis {
namespace {

using testing::kInf;

struct Format {
  const char* name;
  int exponent_bits, mantissa_bits;
  float (*widen)(uint16_t);
  uint16_t (*narrow)(float);
  uint16_t (*nearest)(double);  // the tests' own encoder

  uint16_t infinity() const { return static_cast<uint16_t>(((1 << exponent_bits) - 1) << mantissa_bits); }
  bool is_nan(uint16_t code) const { return (code & 0x7FFF) > infinity(); }

  // What a code means (IEEE 754, 3.4), in double.
  double value(uint16_t code) const {
    const int exponent = (code & 0x7FFF) >> mantissa_bits, mantissa = code & ((1 << mantissa_bits) - 1);
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const double sign = code & 0x8000 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1) return mantissa == 0 ? sign * kInf : testing::kNaN;
    return exponent == 0
               ? sign * std::ldexp(mantissa, 1 - bias - mantissa_bits)
               : sign * std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
  }
};

// Always-inlined functions have no address of their own.
const Format kFormats[] = {
    {"f16", 5, 10, [](uint16_t x) { return f16_to_float(x); }, [](float x) { return float_to_f16(x); },
     testing::to_f16},
    {"bf16", 8, 7, [](uint16_t x) { return bf16_to_float(x); }, [](float x) { return float_to_bf16(x); },
     testing::to_bf16},
};

class FloatFormats : public ::testing::TestWithParam<Format> {};
INSTANTIATE_TEST_SUITE_P(Each, FloatFormats, ::testing::ValuesIn(kFormats),
                         [](const auto& format) { return std::string(format.param.name); });

TEST_P(FloatFormats, EveryCodeWidensToItsValueAndBack) {
  const Format& f = GetParam();
  for (int i = 0; i < 65536; ++i) {
    const uint16_t code = static_cast<uint16_t>(i);
    const float x = f.widen(code);
    if (f.is_nan(code)) {
      ASSERT_TRUE(std::isnan(x)) << i;
      ASSERT_EQ(std::signbit(x), code >= 0x8000) << i;
      const uint16_t back = f.narrow(x);
      ASSERT_TRUE(f.is_nan(back)) << i;
      ASSERT_EQ(back >= 0x8000, code >= 0x8000) << i;
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(x), std::bit_cast<uint32_t>(static_cast<float>(f.value(code)))) << i;
      ASSERT_EQ(f.narrow(x), code) << i;
    }
  }
}

TEST_P(FloatFormats, HalfwayCasesGoToTheEvenCode) {
  const Format& f = GetParam();
  for (uint16_t code = 0; code + 1 < f.infinity(); ++code) {
    // The midpoint of two neighbours has one bit more than they have: exact in f32.
    const float middle = static_cast<float>((f.value(code) + f.value(code + 1)) / 2);
    const uint16_t even = code % 2 == 0 ? code : code + 1;
    ASSERT_EQ(f.narrow(middle), even) << code;
    ASSERT_EQ(f.narrow(-middle), even | 0x8000) << code;
    ASSERT_EQ(f.narrow(std::nextafter(middle, 0.f)), code) << code;
    ASSERT_EQ(f.narrow(std::nextafter(middle, INFINITY)), code + 1) << code;
  }
}

TEST_P(FloatFormats, FarValuesBecomeInfinite) {
  const Format& f = GetParam();
  const uint16_t largest = f.infinity() - 1;
  // Half a unit above the largest code the values round to infinity, ties included.
  const double unit = f.value(largest) - f.value(largest - 1);
  const float border = static_cast<float>(f.value(largest) + unit / 2);
  EXPECT_EQ(f.narrow(std::nextafter(border, 0.f)), largest);
  EXPECT_EQ(f.narrow(border), f.infinity());
  EXPECT_EQ(f.narrow(std::numeric_limits<float>::max()), f.infinity());
  EXPECT_EQ(f.narrow(INFINITY), f.infinity());
  EXPECT_EQ(f.narrow(-border), f.infinity() | 0x8000);
  EXPECT_EQ(f.narrow(-INFINITY), f.infinity() | 0x8000);
}

TEST_P(FloatFormats, TinyValuesKeepTheirSign) {
  const Format& f = GetParam();
  EXPECT_EQ(f.narrow(0.f), 0);
  EXPECT_EQ(f.narrow(-0.f), 0x8000);
  EXPECT_EQ(f.narrow(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(f.narrow(-std::numeric_limits<float>::denorm_min()), 0x8000);
}

TEST_P(FloatFormats, NaNStaysNaNWhateverItsPayload) {
  const Format& f = GetParam();
  // Payloads in the low bits only would be cut to an infinity.
  for (const uint32_t payload :
       {1u, 0x1000u, 0x1FFFu, 0x2000u, 0x7FFFu, 0x8000u, 0xFFFFu, 0x10000u, 0x400000u, 0x7FFFFFu})
    for (const uint32_t sign : {0u, 0x80000000u}) {
      const uint16_t code = f.narrow(std::bit_cast<float>(sign | 0x7F800000u | payload));
      EXPECT_TRUE(f.is_nan(code)) << payload;
      EXPECT_EQ(code >> 15, sign >> 31) << payload;
    }
}

TEST_P(FloatFormats, ValuesAcrossTheWholeRangeGoToTheNearestCode) {
  const Format& f = GetParam();
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 2003) {  // a prime: all exponents, odd mantissas
    const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (std::isnan(x)) continue;
    ASSERT_EQ(f.narrow(x), f.nearest(x)) << x;
  }
}

}  // namespace
}  // namespace tamis
