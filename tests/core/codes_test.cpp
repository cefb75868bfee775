// Integer codes, packing of int4, and the scale of a group.
#include "core/codes.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace tamis {
namespace {

struct Integer {
  const char* name;
  int low, high;
  int (*narrow)(float);
  bool (*saturates)(float);
};

const Integer kKinds[] = {
    {"int8", -128, 127, [](float x) { return int{float_to_int8(x)}; },
     [](float x) { return int8_saturates(x); }},
    {"int4", -8, 7, [](float x) { return int{float_to_int4(x)}; }, [](float x) { return int4_saturates(x); }},
};

class IntegerCodes : public ::testing::TestWithParam<Integer> {};
INSTANTIATE_TEST_SUITE_P(Each, IntegerCodes, ::testing::ValuesIn(kKinds),
                         [](const auto& kind) { return std::string(kind.param.name); });

TEST_P(IntegerCodes, EveryCodeAndEveryTie) {
  const Integer& f = GetParam();
  for (int code = f.low; code <= f.high; ++code) {
    const float x = static_cast<float>(code);
    EXPECT_EQ(f.narrow(x), code);
    EXPECT_FALSE(f.saturates(x));
    if (code == f.high) continue;
    const float middle = x + 0.5f;
    EXPECT_EQ(f.narrow(middle), code % 2 == 0 ? code : code + 1) << code;
    EXPECT_EQ(f.narrow(std::nextafter(middle, -INFINITY)), code);
    EXPECT_EQ(f.narrow(std::nextafter(middle, INFINITY)), code + 1);
    EXPECT_FALSE(f.saturates(middle));
  }
}

TEST_P(IntegerCodes, Clamp) {
  const Integer& f = GetParam();
  const float high = static_cast<float>(f.high) + 0.5f, low = static_cast<float>(f.low) - 0.5f;
  // The even neighbours of the outer ties: high + 1 lies outside, low does not.
  EXPECT_TRUE(f.saturates(high));
  EXPECT_FALSE(f.saturates(std::nextafter(high, 0.f)));
  EXPECT_FALSE(f.saturates(low));
  EXPECT_TRUE(f.saturates(std::nextafter(low, -INFINITY)));
  for (const float x :
       {high, 1000.f, 2147483648.f, 5e9f, 1e30f, std::numeric_limits<float>::max(), INFINITY}) {
    EXPECT_EQ(f.narrow(x), f.high) << x;
    EXPECT_EQ(f.narrow(-x), f.low) << x;
  }
  for (const float x : {1000.f, 1e30f, INFINITY}) EXPECT_TRUE(f.saturates(x) && f.saturates(-x)) << x;
}

TEST_P(IntegerCodes, NaNIsZeroAndCountsAsLost) {
  EXPECT_EQ(GetParam().narrow(NAN), 0);
  EXPECT_EQ(GetParam().narrow(-NAN), 0);
  EXPECT_EQ(GetParam().narrow(std::bit_cast<float>(0x7FC01235u)), 0) << "whatever its payload";
  EXPECT_TRUE(GetParam().saturates(NAN));
}

TEST(Nibbles, EveryPairThereAndBack) {
  for (int first = -8; first < 8; ++first)
    for (int second = -8; second < 8; ++second) {
      const uint8_t byte = pack_nibbles(first, second);
      EXPECT_EQ(byte & 15, first & 15) << "the first code is in the low nibble";
      EXPECT_EQ(nibble_of(byte, 0), first);
      EXPECT_EQ(nibble_of(byte, 1), second);
    }
}

template <class Codes>
void expect_reaches_the_largest_code() {
  for (const float largest : {1.f, 3.f, 0.1f, 448.f, 1e-30f, 1e30f, 123.456f}) {
    const float scale = scale_for<Codes>(largest);
    EXPECT_EQ(Codes::decode(Codes::encode(largest / scale)), Codes::kLargest) << largest;
    EXPECT_EQ(Codes::decode(Codes::encode(-largest / scale)), -Codes::kLargest) << largest;
    EXPECT_FALSE(Codes::saturates(largest / scale) || Codes::saturates(-largest / scale)) << largest;
  }
  // The largest finite value: neither the scale nor what it gives back is infinite.
  const float huge = std::numeric_limits<float>::max();
  const float scale = scale_for<Codes>(huge);
  EXPECT_TRUE(std::isfinite(Codes::kLargest * scale));
  EXPECT_FALSE(Codes::saturates(huge / scale));
  EXPECT_EQ(scale_for<Codes>(0.f), 1.f);
  for (const float tiny : {std::numeric_limits<float>::denorm_min(), 1e-38f}) {
    EXPECT_EQ(scale_for<Codes>(tiny), std::numeric_limits<float>::min());
    EXPECT_FALSE(Codes::saturates(tiny / scale_for<Codes>(tiny)));
  }
}

TEST(Scale, TakesTheLargestValueToTheLargestCode) {
  expect_reaches_the_largest_code<Int8Codes>();
  expect_reaches_the_largest_code<Int4Codes>();
  expect_reaches_the_largest_code<E4M3Codes>();
  expect_reaches_the_largest_code<E5M2Codes>();
}

}  // namespace
}  // namespace tamis
