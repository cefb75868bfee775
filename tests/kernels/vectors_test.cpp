// kernels/cpu/vec.h and pack.h on every instruction set: all codes of all formats, transpositions, sums,
// masks and the functions of the softmax.
#include <array>
#include <cmath>
#include <limits>

#include "core/float_formats.h"
#include "kernels/vectors_support.h"
#include "support/numbers.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/
using cpu::Element;
using cpu::Side;

INSTANTIATE_TEST_SUITE_P(Each, Vectors, ::testing::ValuesIn(vector_tables()),
                         [](const auto& isa) { return std::string(isa.param->name); });

constexpr int kMost = 16;  // numbers of the widest vector

// Equal bit for bit, but that a NaN may be any.
::testing::AssertionResult same(float got, double want) {
  const auto x = static_cast<float>(want);
  if (std::isnan(got) && std::isnan(x)) return ::testing::AssertionSuccess();
  if (float_bits(got) == float_bits(x)) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << got << ", not " << x;
}

// Compiled with the same options, or these tests would be about other code.
TEST_P(Vectors, AreThoseOfTheLibrary) {
  const cpu::Isa* isa = cpu::find_isa(v().name);
  ASSERT_NE(isa, nullptr);
  EXPECT_EQ(v().width, isa->width);
  EXPECT_EQ(v().panel_pairs != nullptr, isa->pairs);
  EXPECT_EQ(v().join_pairs != nullptr, isa->pairs);
}

struct Coding {
  Element element;
  int bits;
  double (*value)(uint32_t code);
};

double value_of(Format format, uint32_t code) { return code_values(format)[code]; }

const Coding kCodings[] = {
    {Element::kF16, 16,
     [](uint32_t code) { return static_cast<double>(f16_to_float(static_cast<uint16_t>(code))); }},
    {Element::kBF16, 16,
     [](uint32_t code) { return static_cast<double>(bf16_to_float(static_cast<uint16_t>(code))); }},
    {Element::kInt8, 8, [](uint32_t code) { return value_of(Format::kInt8, code); }},
    {Element::kE4M3, 8, [](uint32_t code) { return value_of(Format::kFp8E4M3, code); }},
    {Element::kE5M2, 8, [](uint32_t code) { return value_of(Format::kFp8E5M2, code); }},
    {Element::kInt4, 4, [](uint32_t code) { return value_of(Format::kInt4, code); }},
};

// `codes` as they lie in memory.
std::vector<unsigned char> packed(const std::vector<uint32_t>& codes, int bits) {
  std::vector<unsigned char> bytes((codes.size() * bits + 7) / 8);
  for (size_t i = 0; i < codes.size(); ++i)
    for (int bit = 0; bit < bits; ++bit)
      if (codes[i] >> bit & 1)
        bytes[(i * bits + bit) / 8] |= static_cast<unsigned char>(1 << (i * bits + bit) % 8);
  return bytes;
}

TEST_P(Vectors, EveryCodeOfEveryFormatInEveryLane) {
  for (const Coding& c : kCodings)
    for (uint32_t first = 0; first < 1u << c.bits; ++first) {
      if (c.bits == 16 && first % 16 != 0 && first % 4099 != 0) continue;  // each code once, not in each lane
      std::vector<uint32_t> codes;
      for (int i = 0; i < width(); ++i) codes.push_back((first + i) & ((1u << c.bits) - 1));
      float got[kMost];
      v().widen(c.element, packed(codes, c.bits).data(), got);
      for (int i = 0; i < width(); ++i)
        ASSERT_TRUE(same(got[i], c.value(codes[i]))) << c.bits << ' ' << codes[i];
    }
}

// Fewer than a vector: exactly so many bytes are there (a sanitizer sees more being read), zeros follow.
TEST_P(Vectors, TheFirstFewOfARow) {
  for (const Coding& c : kCodings)
    for (int count = c.bits == 4 ? 2 : 1; count < width(); count += c.bits == 4 ? 2 : 1) {
      std::vector<uint32_t> codes;
      for (int i = 0; i < count; ++i) codes.push_back((0xA7 + 37 * i) & ((1u << c.bits) - 1));
      const std::vector<unsigned char> bytes = packed(codes, c.bits);
      float got[kMost];
      v().widen_some(c.element, bytes.data(), count, got);
      for (int i = 0; i < width(); ++i)
        ASSERT_TRUE(same(got[i], i < count ? c.value(codes[i]) : 0.0)) << c.bits << ' ' << count << ' ' << i;
    }
}

// Rows with and without gaps, under one scale and under one for each dimension, the scales with gaps too.
TEST_P(Vectors, RowsUnderScales) {
  for (const Coding& c : kCodings)
    for (const int dim : {1, 2, 5, 8, 15, 16, 17, 34, 67})
      for (const int gap : {1, 2, -1})
        for (const int scale_dim : {0, 1, 3, -1}) {
          const bool halves = c.bits == 4, scaled = c.bits < 16;
          if ((halves && dim % 2 != 0) || (!scaled && scale_dim != 0)) continue;
          std::vector<uint32_t> codes;
          for (int d = 0; d < dim; ++d) codes.push_back((0x35 + 29 * d) & ((1u << c.bits) - 1));
          const std::vector<unsigned char> dense = packed(codes, c.bits);
          const int unit = c.bits == 16 ? 2 : 1, units = static_cast<int>(dense.size()) / unit;
          std::vector<unsigned char> bytes(static_cast<size_t>((units - 1) * std::abs(gap) + 1) * unit, 0x7F);
          const int first = gap < 0 ? (units - 1) * -gap : 0;
          for (int i = 0; i < units; ++i)
            std::copy_n(&dense[i * unit], unit, &bytes[(first + i * gap) * unit]);
          std::vector<float> scales(static_cast<size_t>((dim - 1) * std::abs(scale_dim) + 1), NAN);
          const int first_scale = scale_dim < 0 ? (dim - 1) * -scale_dim : 0;
          for (int d = 0; d < dim; ++d)
            scales[first_scale + d * scale_dim] = std::ldexp(1.f, scale_dim == 0 ? -3 : d % 5 - 2);
          Side side{};
          side.dim = int64_t{gap} * unit;
          side.head_dim = dim;
          side.element = c.element;
          side.scale = scaled ? scales.data() : nullptr;
          side.scale_dim = scaled ? scale_dim : 0;
          const int padded = (dim + width() - 1) / width() * width();
          std::vector<float> got(static_cast<size_t>(padded) + 1, -7.f);
          v().widen_row(side, &bytes[first * unit], scaled ? &scales[first_scale] : nullptr, got.data());
          for (int d = 0; d < dim; ++d) {
            const double scale = scaled ? static_cast<double>(scales[first_scale + d * scale_dim]) : 1;
            ASSERT_TRUE(same(got[d], c.value(codes[d]) * scale))
                << c.bits << " bits, dim " << d << " of " << dim << ", gap " << gap << ", scales "
                << scale_dim;
          }
          for (int d = dim; d < padded; ++d) ASSERT_EQ(float_bits(got[d]) << 1, 0u) << d;
          ASSERT_EQ(got[padded], -7.f);
        }
}

// The padding of a row stays zero also under a scale that is not finite.
TEST_P(Vectors, NoScaleReachesThePadding) {
  const std::vector<unsigned char> codes(3, 1);
  const float scale = std::numeric_limits<float>::infinity();
  Side side{};
  side.dim = 1;
  side.head_dim = 3;
  side.element = Element::kInt8;
  side.scale = &scale;
  float got[kMost];
  v().widen_row(side, codes.data(), &scale, got);
  for (int d = 0; d < width(); ++d) EXPECT_EQ(got[d], d < 3 ? scale : 0.f) << d;
}

TEST_P(Vectors, Squares) {
  const int w = width();
  std::vector<uint32_t> square(static_cast<size_t>(w * w));
  for (int i = 0; i < w * w; ++i) square[i] = 0x9E3779B9u * static_cast<uint32_t>(i + 1);
  const std::vector<uint32_t> from = square;
  v().transpose_square(square.data());
  for (int i = 0; i < w; ++i)
    for (int j = 0; j < w; ++j) ASSERT_EQ(square[i * w + j], from[j * w + i]) << i << ' ' << j;
}

TEST_P(Vectors, RowsAcross) {
  const int w = width();
  for (const int count : {1, 2, 3, w - 1, w, w + 1, 3 * w, 63, 64})
    for (const int units : {1, 2, w - 1, w, w + 3, 2 * w + 1}) {
      if (count > 64) continue;
      const int columns = (count + w - 1) / w * w, stride = columns + 5;
      std::vector<std::vector<uint32_t>> rows;  // of exactly their length
      std::vector<const char*> at;
      for (int c = 0; c < count; ++c) {
        rows.emplace_back();
        for (int u = 0; u < units; ++u) rows.back().push_back(static_cast<uint32_t>(1000 * c + u + 1));
      }
      for (const auto& row : rows) at.push_back(reinterpret_cast<const char*>(row.data()));
      std::vector<uint32_t> to(static_cast<size_t>(units * stride), 0xDEADBEEF);
      v().transpose_units(at.data(), count, units, columns, to.data(), stride);
      for (int u = 0; u < units; ++u)
        for (int c = 0; c < stride; ++c)
          ASSERT_EQ(to[u * stride + c], c < count     ? rows[c][u]
                                        : c < columns ? 0
                                                      : 0xDEADBEEF)
              << count << " rows of " << units << ": " << c << ' ' << u;
    }
}

TEST_P(Vectors, SumsAndMasks) {
  const int w = width();
  float x[4 * kMost], four[4];
  for (int i = 0; i < 4 * w; ++i) x[i] = static_cast<float>((i * 37) % 101 - 50);
  v().sums(x, four);
  for (int k = 0; k < 4; ++k) {
    float sum = 0, top = -1e9f;
    for (int i = 0; i < w; ++i) sum += x[k * w + i], top = std::max(top, x[k * w + i]);
    EXPECT_EQ(four[k], sum);
    EXPECT_EQ(v().sum(x + k * w), sum);
    EXPECT_EQ(v().max_of(x + k * w), top);
  }
  for (int lane = 0; lane < w; ++lane) {
    float one[kMost], got[kMost];
    for (int i = 0; i < w; ++i) one[i] = -3;
    one[lane] = 2;
    EXPECT_EQ(v().max_of(one), 2.f) << lane;
    v().select(1u << lane, x, one, got);
    for (int i = 0; i < w; ++i) EXPECT_EQ(got[i], i == lane ? x[i] : one[i]) << lane << ' ' << i;
    v().select(~(1u << lane), x, one, got);
    for (int i = 0; i < w; ++i) EXPECT_EQ(got[i], i == lane ? one[i] : x[i]) << lane << ' ' << i;
  }
  EXPECT_EQ(v().pack_bits(0xF0F0, 0xFF00), 0xF0u);
  EXPECT_EQ(v().pack_bits(~uint64_t{0}, 0), 0u);
  EXPECT_EQ(v().pack_bits(0x8000000000000001, 0x8000000000000003), 5u);
  EXPECT_EQ(v().pack_bits(0x123456789ABCDEF0, ~uint64_t{0}), 0x123456789ABCDEF0u);
}

TEST_P(Vectors, RowsThatAreNotFinite) {
  const int dim = 2 * width() + 3, stride = 3 * width();
  for (const double bad : {kNaN, kInf, -kInf})
    for (const int place : {0, width(), dim - 1}) {
      std::vector<float> rows(static_cast<size_t>(64 * stride), 3e38f);
      for (int c = 0; c < 64; ++c)
        for (int d = dim; d < stride; ++d) rows[c * stride + d] = 0;
      EXPECT_EQ(v().bad_rows(rows.data(), stride, 64, dim), 0u);
      for (const int c : {0, 31, 63}) rows[c * stride + place] = static_cast<float>(bad);
      EXPECT_EQ(v().bad_rows(rows.data(), stride, 64, dim), 0x8000000080000001u) << bad << ' ' << place;
    }
}

// Calls f(x, result) for many x.
template <class F>
void values(void (*of)(const float*, float*), int width, double from, double to, const F& f) {
  constexpr int kSteps = 40000;
  for (int step = 0; step < kSteps; step += width) {
    float x[kMost], y[kMost];
    for (int i = 0; i < width; ++i) x[i] = static_cast<float>(from + (to - from) * (step + i) / kSteps);
    of(x, y);
    for (int i = 0; i < width; ++i) f(static_cast<double>(x[i]), static_cast<double>(y[i]));
  }
}

TEST_P(Vectors, Exponentials) {
  const auto close = [](double x, double y) { ASSERT_NEAR(y, std::exp(x), 2.5e-7 * std::exp(x)) << x; };
  values(v().exp_negative, width(), -87.2, 0, close);
  values(v().exp_negative, width(), 0, 88, close);  // a backward may go so far
  values(v().exp_negative, width(), -200, -87.4, [](double x, double y) { ASSERT_EQ(y, 0) << x; });
  float x[kMost] = {0, -std::numeric_limits<float>::infinity(), NAN, -3e38f}, y[kMost];
  v().exp_negative(x, y);
  EXPECT_EQ(y[0], 1.f);
  EXPECT_EQ(y[1], 0.f);
  EXPECT_TRUE(std::isnan(y[2]));
  EXPECT_EQ(y[3], 0.f);
}

TEST_P(Vectors, HyperbolicTangents) {
  const auto close = [](double x, double y) {
    ASSERT_NEAR(y, std::tanh(x), 4e-7 * std::fabs(std::tanh(x)) + 1e-30) << x;
  };
  for (const double reach : {1.0, 20.0, 1000.0}) values(v().tanh, width(), -reach, reach, close);
  float x[kMost] = {0, std::numeric_limits<float>::infinity(), NAN, -1e38f}, y[kMost];
  v().tanh(x, y);
  EXPECT_EQ(y[0], 0.f);
  EXPECT_EQ(y[1], 1.f);
  EXPECT_TRUE(std::isnan(y[2]));
  EXPECT_EQ(y[3], -1.f);
}

}  // namespace
}  // namespace tamis
