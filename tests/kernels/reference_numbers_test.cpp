// Decoding of stored numbers, every code of every format.
#include "kernels/reference/numbers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "support/numbers.h"

namespace tamis::reference {
namespace {

void check_all_codes(DType dtype, int mantissa_bits, int exponent_bits, double smallest) {
  std::vector<uint16_t> codes(65536);
  for (int i = 0; i < 65536; ++i) codes[i] = static_cast<uint16_t>(i);
  const TensorView t = dense_view(codes.data(), dtype, {65536});
  const std::vector<double> values =
      testing::values_in_order(mantissa_bits, (1 << exponent_bits) - 1, smallest);
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

void check_fp8(Format format, double (*decode)(uint8_t)) {
  const std::vector<double>& values = testing::code_values(format);
  for (int code = 0; code < 256; ++code) {
    const double x = decode(static_cast<uint8_t>(code));
    if (std::isnan(values[code])) {
      EXPECT_TRUE(std::isnan(x)) << code;
    } else {
      EXPECT_EQ(x, values[code]) << code;
      EXPECT_EQ(std::signbit(x), code >= 128) << code << ": also zero has a sign";
    }
  }
}

TEST(ReferenceNumbers, AllCodesOfE4M3) {
  check_fp8(Format::kFp8E4M3, decode_e4m3);
  int finite = 0;
  for (int code = 0; code < 256; ++code) finite += std::isfinite(decode_e4m3(static_cast<uint8_t>(code)));
  EXPECT_EQ(finite, 254) << "no infinities, two NaN";
  EXPECT_EQ(decode_e4m3(0x01), 0x1p-9);
  EXPECT_EQ(decode_e4m3(0x08), 0x1p-6);
  EXPECT_EQ(decode_e4m3(0x38), 1);
  EXPECT_EQ(decode_e4m3(0x7E), 448);
  EXPECT_EQ(decode_e4m3(0xFE), -448);
}

TEST(ReferenceNumbers, AllCodesOfE5M2) {
  check_fp8(Format::kFp8E5M2, decode_e5m2);
  EXPECT_EQ(decode_e5m2(0x01), 0x1p-16);
  EXPECT_EQ(decode_e5m2(0x04), 0x1p-14);
  EXPECT_EQ(decode_e5m2(0x3C), 1);
  EXPECT_EQ(decode_e5m2(0x7B), 57344);
  EXPECT_EQ(decode_e5m2(0xFC), -INFINITY);
}

TEST(ReferenceNumbers, AllBytesOfInt4) {
  for (int high = -8; high < 8; ++high)
    for (int low = -8; low < 8; ++low) {
      const uint8_t byte = static_cast<uint8_t>((high & 15) << 4 | (low & 15));
      EXPECT_EQ(decode_int4(byte, false), low);
      EXPECT_EQ(decode_int4(byte, true), high);
    }
}

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
