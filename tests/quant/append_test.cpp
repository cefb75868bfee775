// New tokens into a quantized cache: the scale that is there decides, nothing else is touched.
#include <gtest/gtest.h>

#include "quant/kv.h"
#include "support/expect.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

constexpr int64_t kPages = 3, kTokens = 4, kHeads = 2, kDim = 6;

// A cache of bytes 0x5A with scales 1, 2, 3, ... / 8.
struct Cache {
  Cache(Format format, ScaleKind kind, Layout order, bool paged) : layout(order) {
    const int64_t d = format == Format::kInt4 ? kDim / 2 : kDim;
    const DType dtype = format == Format::kInt8      ? DType::kI8
                        : format == Format::kInt4    ? DType::kU8
                        : format == Format::kFp8E4M3 ? DType::kF8E4M3
                                                     : DType::kF8E5M2;
    const int64_t tokens = paged ? kTokens : kPages * kTokens;
    const bool hnd = order == Layout::kHND;
    const int64_t a = hnd ? kHeads : tokens, b = hnd ? tokens : kHeads;
    bytes.assign(kPages * kTokens * kHeads * d, 0x5A);
    scales.resize(kPages * kTokens * kHeads * kDim);
    for (size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<float>(i % 5 + 1) / 8;
    c.codes = paged ? mutable_view(bytes.data(), dtype, {kPages, a, b, d})
                    : mutable_view(bytes.data(), dtype, {a, b, d});
    c.layout = layout;
    c.name = "k";
    const auto view = [&](std::initializer_list<int64_t> shape) {
      return mutable_view(scales.data(), DType::kF32, shape);
    };
    MutableTensorView s = kind == ScaleKind::kTensor        ? view({})
                          : kind == ScaleKind::kHead        ? view({kHeads})
                          : kind == ScaleKind::kPage        ? view({kPages, kHeads})
                          : kind == ScaleKind::kChannel     ? view({kHeads, kDim})
                          : kind == ScaleKind::kPageChannel ? view({kPages, kHeads, kDim})
                          : paged                           ? view({kPages, a, b})
                                                            : view({a, b});
    scale = {s.data, s.dtype, s.rank, s.shape, s.stride};
    c.quantization = {format, kind, scale};
    if (kind == ScaleKind::kToken) c.token_scale = s;
  }
  Cache(const Cache&) = delete;

  TensorView codes() const {
    return {c.codes.data, c.codes.dtype, c.codes.rank, c.codes.shape, c.codes.stride};
  }
  Place place(int64_t slot, int64_t head, int64_t d) const {
    return c.codes.rank == 4 ? Place{slot / kTokens, slot % kTokens, head, d} : Place{0, slot, head, d};
  }
  double code(int64_t slot, int64_t head, int64_t d) const {
    return code_value(c.quantization.format, codes(), layout, place(slot, head, d));
  }
  float scale_at(int64_t slot, int64_t head, int64_t d) const {
    return scale_value(c.quantization, layout, place(slot, head, d));
  }

  std::vector<uint8_t> bytes;
  std::vector<float> scales;
  TensorView scale;
  Layout layout;
  QuantizedCache c;
};

std::vector<float> noise_rows(int64_t n, double size = 1) {
  std::vector<float> rows;
  for (int64_t i = 0; i < n * kHeads * kDim; ++i)
    rows.push_back(static_cast<float>(size * noise(9, i, 0, 0)));
  return rows;
}

TEST(Append, WritesTheGivenSlotsAndNoOther) {
  const std::vector<int64_t> slots{7, -1, 0, 10};
  const std::vector<float> rows = noise_rows(4);
  for (const bool paged : {true, false})
    for (const Layout layout : {Layout::kNHD, Layout::kHND})
      for (const Format format : kFormats)
        for (const ScaleKind kind : kKinds) {
          if (per_page(kind) && !paged) continue;
          Cache cache(format, kind, layout, paged);
          const Cache before(format, kind, layout, paged);
          const Result<AppendCounts> counts =
              append_rows(cache.c, dense_view(rows.data(), DType::kF32, {4, kHeads, kDim}),
                          dense_view(slots.data(), DType::kI64, {4}));
          ASSERT_TRUE(counts.ok()) << counts.status().message();
          EXPECT_EQ(counts->rows, 3);
          EXPECT_EQ(counts->skipped, 1);
          int64_t beyond = 0;
          for (int64_t slot = 0; slot < kPages * kTokens; ++slot)
            for (int64_t head = 0; head < kHeads; ++head)
              for (int64_t d = 0; d < kDim; ++d) {
                const auto at = std::find(slots.begin(), slots.end(), slot);
                const float scale = cache.scale_at(slot, head, d);
                if (at == slots.end()) {
                  ASSERT_EQ(cache.code(slot, head, d), before.code(slot, head, d)) << label(format, kind);
                  ASSERT_EQ(scale, before.scale_at(slot, head, d));
                  continue;
                }
                if (kind != ScaleKind::kToken) {
                  ASSERT_EQ(scale, before.scale_at(slot, head, d));
                }
                const double x = rows[((at - slots.begin()) * kHeads + head) * kDim + d] / scale;
                const double code = cache.code(slot, head, d), top = largest_code(format);
                const bool integer = format == Format::kInt8 || format == Format::kInt4;
                const double floor = integer ? -top - 1 : -top;
                const double clamped = std::min(top, std::max(floor, x));
                beyond += x >= top + 0.5 || x < floor - 0.5;  // the sample has no fp8 value that large
                ASSERT_LE(std::fabs(code - clamped), half_step(format, code) * (1 + 1e-5)) << x;
              }
          EXPECT_EQ(counts->saturated, beyond) << label(format, kind);
          if (kind == ScaleKind::kToken) {
            EXPECT_EQ(beyond, 0) << "a token brings its scale";
          } else if (format == Format::kInt4) {
            EXPECT_GT(beyond, 0);
          }
        }
}

TEST(Append, FindsTheCodesOfQuantizeWhereTheScaleIsTheSame) {
  for (const Format format : kFormats)
    for (const ScaleKind kind : kKinds) {
      std::vector<float> x = noise_rows(kPages * kTokens, 3);
      const Result<Quantized> whole =
          quantize(dense_view(x.data(), DType::kF32, {kPages, kTokens, kHeads, kDim}), format, kind);
      ASSERT_TRUE(whole.ok());
      Cache cache(format, kind, Layout::kNHD, true);
      std::copy(whole->scales.begin(), whole->scales.end(), cache.scales.begin());
      if (kind == ScaleKind::kToken) std::fill(cache.scales.begin(), cache.scales.end(), 0.f);
      std::vector<int32_t> slots(kPages * kTokens);
      for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int32_t>(i);
      const Result<AppendCounts> counts =
          append_rows(cache.c, dense_view(x.data(), DType::kF32, {kPages * kTokens, kHeads, kDim}),
                      dense_view(slots.data(), DType::kI32, {kPages * kTokens}));
      ASSERT_TRUE(counts.ok()) << counts.status().message();
      EXPECT_EQ(counts->saturated, 0);
      EXPECT_EQ(cache.bytes, whole->code_bytes) << label(format, kind);
      EXPECT_TRUE(std::equal(whole->scales.begin(), whole->scales.end(), cache.scales.begin()));
    }
}

TEST(Append, ValuesBeyondTheScaleSaturateAndAreCounted) {
  for (const Format format : kFormats) {
    Cache cache(format, ScaleKind::kTensor, Layout::kNHD, true);
    cache.scales[0] = 0.5f;
    std::vector<float> row(kHeads * kDim, 0.f);
    const float top = static_cast<float>(largest_code(format)) * 0.5f;
    row[0] = 1e30f;
    row[1] = -1e30f;
    row[2] = top;  // the largest code itself: no loss
    row[3] = -top;
    const std::vector<int32_t> slot{5};
    const Result<AppendCounts> counts =
        append_rows(cache.c, dense_view(row.data(), DType::kF32, {1, kHeads, kDim}),
                    dense_view(slot.data(), DType::kI32, {1}));
    ASSERT_TRUE(counts.ok()) << counts.status().message();
    EXPECT_EQ(counts->saturated, 2);
    const double least = format == Format::kInt8   ? -128
                         : format == Format::kInt4 ? -8
                                                   : -largest_code(format);
    EXPECT_EQ(cache.code(5, 0, 0), largest_code(format));
    EXPECT_EQ(cache.code(5, 0, 1), least);
    EXPECT_EQ(cache.code(5, 0, 2), largest_code(format));
    EXPECT_EQ(cache.code(5, 0, 3), -largest_code(format));
  }
}

TEST(Append, ARefusalWritesNothing) {
  const std::vector<float> rows = noise_rows(2);
  struct Wrong {
    const char* words;
    std::function<void(Cache&, std::vector<float>&, std::vector<int64_t>&)> spoil;
  };
  const Wrong wrongs[] = {
      {"slots: 12 of row 1 is outside [0, 12)", [](auto&, auto&, auto& slots) { slots[1] = 12; }},
      {"slots: -2 of row 1 is outside [0, 12)", [](auto&, auto&, auto& slots) { slots[1] = -2; }},
      {"rows: nan in row 1, head 1, dimension 5 is not finite",
       [](auto&, auto& values, auto&) { values.back() = NAN; }},
      {"rows: -inf in row 1, head 0, dimension 0",
       [](auto&, auto& values, auto&) { values[12] = -INFINITY; }},
      {"k_scale: 0 of slot 9, head 0", [](auto& cache, auto&, auto&) { cache.scales[4] = 0; }},
      {"k_scale: nan of slot 9, head 1", [](auto& cache, auto&, auto&) { cache.scales[5] = NAN; }},
      {"k_scale: -1 of slot 9, head 1", [](auto& cache, auto&, auto&) { cache.scales[5] = -1; }},
      {"k: dtype U8", [](auto& cache, auto&, auto&) { cache.c.codes.dtype = DType::kU8; }},
      {"k: is a plain cache",
       [](auto& cache, auto&, auto&) { cache.c.quantization.format = Format::kPlain; }},
      {"k_scale: shape is not [3,2]", [](auto& cache, auto&, auto&) { cache.c.quantization.scale.rank = 1; }},
      {"token_scale: belongs",
       [](auto& cache, auto&, auto&) {
         cache.c.token_scale = mutable_view(cache.scales.data(), DType::kF32, {3, 4, 2});
       }},
      {"token_scale: tensor is missing",
       [](auto& cache, auto&, auto&) { cache.c.quantization.kind = ScaleKind::kToken; }},
      {"rows: shape is not [n,3,6]",
       [](auto& cache, auto&, auto&) {
         cache.c.codes.shape[2] = 3;
         cache.c.codes.shape[0] = 2;
       }},
  };
  for (const Wrong& wrong : wrongs) {
    Cache cache(Format::kInt8, ScaleKind::kPage, Layout::kNHD, true);
    std::vector<float> values = rows;
    std::vector<int64_t> slots{0, 9};
    wrong.spoil(cache, values, slots);
    const Status s = append_rows(cache.c, dense_view(values.data(), DType::kF32, {2, kHeads, kDim}),
                                 dense_view(slots.data(), DType::kI64, {2}))
                         .status();
    EXPECT_EQ(s.code(), Code::kInvalidArgument) << wrong.words;
    EXPECT_EQ(s.message().rfind(wrong.words, 0), 0u) << s.message();
    EXPECT_EQ(cache.bytes, std::vector<uint8_t>(cache.bytes.size(), 0x5A)) << wrong.words;
  }
  Cache cache(Format::kInt8, ScaleKind::kPage, Layout::kNHD, true);
  const std::vector<int64_t> slots{0, 9};
  const TensorView good = dense_view(rows.data(), DType::kF32, {2, kHeads, kDim});
  EXPECT_EQ(append_rows(cache.c, {}, dense_view(slots.data(), DType::kI64, {2})).status().message(),
            "rows: tensor is missing");
  EXPECT_EQ(append_rows(cache.c, good, dense_view(slots.data(), DType::kI64, {1})).status().message(),
            "slots: shape is not [2]");
  EXPECT_EQ(append_rows(cache.c, good, dense_view(slots.data(), DType::kF32, {2})).status().message(),
            "slots: dtype F32 is not one of I32 I64");
}

// A skipped row may hold anything.
TEST(Append, SkippedRowsAreNotLookedAt) {
  Cache cache(Format::kInt4, ScaleKind::kHead, Layout::kHND, true);
  const std::vector<float> rows(kHeads * kDim, NAN);
  const std::vector<int32_t> slots{-1};
  const Result<AppendCounts> counts =
      append_rows(cache.c, dense_view(rows.data(), DType::kF32, {1, kHeads, kDim}),
                  dense_view(slots.data(), DType::kI32, {1}));
  ASSERT_TRUE(counts.ok());
  EXPECT_EQ(counts->skipped, 1);
  EXPECT_EQ(counts->rows, 0);
  EXPECT_EQ(cache.bytes, std::vector<uint8_t>(cache.bytes.size(), 0x5A));
}

}  // namespace
}  // namespace tamis
