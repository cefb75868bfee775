// Decoding of stored numbers, every code of both 16-bit formats.
#include "kernels/reference/numbers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace tamis::reference {
namespace {

// Non-negative finite codes in order are the non-negative numbers in order, and the distance between
// neighbours doubles with every exponent after the first: so all values follow from the smallest by adding,
// which is exact in float64. No exponent is ever taken apart here.
std::vector<double> values_in_order(int mantissa_bits, int exponent_bits, double smallest) {
  const int per_exponent = 1 << mantissa_bits, exponents = (1 << exponent_bits) - 1;
  std::vector<double> values;
  double x = 0, step = smallest;
  for (int e = 0; e < exponents; ++e) {
    if (e > 1) step *= 2;
    for (int m = 0; m < per_exponent; ++m, x += step) values.push_back(x);
  }
  return values;
}

void check_all_codes(DType dtype, int mantissa_bits, int exponent_bits, double smallest) {
  std::vector<uint16_t> codes(65536);
  for (int i = 0; i < 65536; ++i) codes[i] = static_cast<uint16_t>(i);
  const TensorView t = dense_view(codes.data(), dtype, {65536});
  const std::vector<double> values = values_in_order(mantissa_bits, exponent_bits, smallest);
  const int infinity = static_cast<int>(values.size());
  for (int code = 0; code < 32768; ++code) {
    const double positive = load_float(t, code), negative = load_float(t, code + 32768);
    if (code < infinity) {
      ASSERT_EQ(positive, values[code]) << code;
      ASSERT_EQ(negative, -values[code]) << code;
      ASSERT_FALSE(std::signbit(positive)) << code;
      ASSERT_TRUE(std::signbit(negative)) << code << ": minus zero is not zero";
    } else if (code == infinity) {
      ASSERT_EQ(positive, INFINITY);
      ASSERT_EQ(negative, -INFINITY);
    } else {
      ASSERT_TRUE(std::isnan(positive) && std::isnan(negative)) << code;
    }
  }
}

TEST(ReferenceNumbers, AllCodesOfF16) { check_all_codes(DType::kF16, 10, 5, 0x1p-24); }
TEST(ReferenceNumbers, AllCodesOfBF16) { check_all_codes(DType::kBF16, 7, 8, 0x1p-133); }

TEST(ReferenceNumbers, WellKnownCodes) {
  const uint16_t codes[] = {0x3C00, 0x7BFF, 0x0400, 0x3555, 0xC000, 0x3F80, 0x7F7F, 0x4049};
  const TensorView f16 = dense_view(codes, DType::kF16, {8}), bf16 = dense_view(codes, DType::kBF16, {8});
  EXPECT_EQ(load_float(f16, 0), 1.0);
  EXPECT_EQ(load_float(f16, 1), 65504.0);
  EXPECT_EQ(load_float(f16, 2), 0x1p-14);
  EXPECT_EQ(load_float(f16, 3), 0.333251953125);
  EXPECT_EQ(load_float(f16, 4), -2.0);
  EXPECT_EQ(load_float(bf16, 5), 1.0);
  EXPECT_EQ(load_float(bf16, 6), 0x1.FEp127);
  EXPECT_EQ(load_float(bf16, 7), 3.140625);
}

TEST(ReferenceNumbers, F32IsItself) {
  const float values[] = {-0.0f, 0x1p-149f, 3.0f, -INFINITY, NAN};
  const TensorView t = dense_view(values, DType::kF32, {5});
  EXPECT_TRUE(std::signbit(load_float(t, 0)));
  EXPECT_EQ(load_float(t, 1), 0x1p-149);
  EXPECT_EQ(load_float(t, 2), 3.0);
  EXPECT_EQ(load_float(t, 3), -INFINITY);
  EXPECT_TRUE(std::isnan(load_float(t, 4)));
}

}  // namespace
}  // namespace tamis::reference
