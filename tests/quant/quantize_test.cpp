// quantize and dequantize against their definition: every format, scale kind, layout and placement.
#include <gtest/gtest.h>

#include "quant/kv.h"
#include "support/expect.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

// Two requests with slack in their last pages, two heads of unlike sizes, one channel that is always 0.
TestProblem sample(int64_t page_size, Layout layout, DType dtype = DType::kF32,
                   Placement placement = Placement::kDense) {
  return TestProblem({.kv_len = {6, 9},
                      .q_heads = 2,
                      .kv_heads = 2,
                      .head_dim = 6,
                      .v_head_dim = 4,
                      .dtype = dtype,
                      .page_size = page_size,
                      .layout = layout,
                      .placement = placement,
                      .k = [](int64_t b, int64_t t, int64_t h,
                              int64_t d) { return d == 3 ? 0 : noise(5, b, t, h, d) * (h == 0 ? 1 : 40); },
                      .v = kv_noise(6)});
}

// The mask of committed tokens as quantize() takes it.
struct Mask {
  explicit Mask(const TestProblem& t) {
    const Result<std::vector<uint8_t>> used = used_slots(t.problem);
    EXPECT_TRUE(used.ok()) << used.status().message();
    bytes = *used;
    const TensorView& k = t.problem.cache.k;
    const Extents e = extents(k, t.problem.cache.layout);
    view = k.rank == 4 ? dense_view(bytes.data(), DType::kU8, {e.pages, e.tokens})
                       : dense_view(bytes.data(), DType::kU8, {e.tokens});
    tokens = e.tokens;
  }
  bool used(const Place& at) const { return bytes[at.page * tokens + at.token] != 0; }
  std::vector<uint8_t> bytes;
  TensorView view;
  int64_t tokens = 0;
};

// The definition: scale = largest magnitude of the group over the largest code, codes the nearest ones.
void expect_quantized(const TensorView& x, Layout layout, const Mask& mask, const Quantized& q) {
  const Format format = q.quantization.format;
  std::map<Group, double> largest;
  const Extents e = extents(x, layout);
  for_each_place(e, [&](const Place& at) {
    double& top = largest[group_of(q.quantization.kind, at)];
    if (mask.used(at)) top = std::max(top, std::fabs(plain_value(x, layout, at)));
  });
  for_each_place(e, [&](const Place& at) {
    const double top = largest[group_of(q.quantization.kind, at)];
    const float scale = scale_value(q.quantization, layout, at);
    ASSERT_FLOAT_EQ(scale, static_cast<float>(top == 0 ? 1 : top / largest_code(format)));
    const double code = code_value(format, q.codes, layout, at);
    if (!mask.used(at)) {
      ASSERT_EQ(code, 0) << "an unused slot";
      return;
    }
    const double exact = plain_value(x, layout, at) / static_cast<double>(scale);
    ASSERT_LE(std::fabs(exact - code), half_step(format, code) * (1 + 1e-5)) << exact << " became " << code;
  });
  EXPECT_EQ(q.saturated_codes, 0);
}

// All that needs no look at values: what describe() says of the quantized problem.
Result<Shape> described(const Problem& p, const Quantized& k, const Quantized& v) {
  Problem quantized = p;
  quantized.cache.k = k.codes;
  quantized.cache.v = v.codes;
  quantized.cache.k_quant = k.quantization;
  quantized.cache.v_quant = v.quantization;
  return describe(quantized);
}

void expect_definition(const TestProblem& t) {
  const Mask mask(t);
  const CacheView& c = t.problem.cache;
  for (const Format format : kFormats)
    for (const ScaleKind kind : kKinds) {
      if (per_page(kind) && c.k.rank == 3) continue;
      const QuantizeOptions options{.layout = c.layout, .used = mask.view, .name = "k"};
      const Result<Quantized> k = quantize(c.k, format, kind, options);
      const Result<Quantized> v = quantize(c.v, format, kind, options);
      ASSERT_TRUE(k.ok()) << k.status().message();
      ASSERT_TRUE(v.ok()) << v.status().message();
      SCOPED_TRACE(label(format, kind));
      expect_quantized(c.k, c.layout, mask, *k);
      expect_quantized(c.v, c.layout, mask, *v);
      const Result<Shape> shape = described(t.problem, *k, *v);
      ASSERT_TRUE(shape.ok()) << shape.status().message();
      EXPECT_EQ(shape->k_bits, format == Format::kInt4 ? 4 : 8);
    }
}

TEST(Quantize, EveryFormatAndKind) {
  for (const int64_t page : {4, 0})
    for (const Layout layout : {Layout::kNHD, Layout::kHND}) expect_definition(sample(page, layout));
}

TEST(Quantize, HalfPrecisionAndAnyStrides) {
  for (const DType dtype : {DType::kF16, DType::kBF16})
    for (const Placement how :
         {Placement::kGaps, Placement::kSpread, Placement::kReversed, Placement::kInterleaved})
      expect_definition(sample(4, Layout::kHND, dtype, how));
}

TEST(Quantize, PlacementChangesNoBit) {
  for (const int64_t page : {4, 0}) {
    const TestProblem dense = sample(page, Layout::kNHD);
    const Mask mask(dense);
    const Result<Quantized> want =
        quantize(dense.problem.cache.k, Format::kInt4, ScaleKind::kToken, {.used = mask.view});
    ASSERT_TRUE(want.ok());
    for (const Placement how : {Placement::kGaps, Placement::kReversed, Placement::kInterleaved}) {
      const TestProblem t = sample(page, Layout::kNHD, DType::kF32, how);
      const Result<Quantized> got =
          quantize(t.problem.cache.k, Format::kInt4, ScaleKind::kToken, {.used = mask.view});
      ASSERT_TRUE(got.ok());
      EXPECT_EQ(got->code_bytes, want->code_bytes);
      EXPECT_EQ(got->scales, want->scales);
    }
  }
}

// NaN in every unused slot, which is where a fresh cache has it.
TEST(Quantize, UnusedSlotsHaveNoSay) {
  TestProblem t = sample(4, Layout::kNHD);
  const Mask mask(t);
  const TensorView k = t.problem.cache.k;
  const Result<Quantized> poisoned =
      quantize(k, Format::kInt8, ScaleKind::kPage, {.used = mask.view, .name = "k"});
  ASSERT_TRUE(poisoned.ok()) << poisoned.status().message();
  for (int64_t slot = 0; slot < t.slots(); ++slot)
    if (!mask.bytes[slot]) t.put_k(slot, 1e30);
  const Result<Quantized> huge = quantize(k, Format::kInt8, ScaleKind::kPage, {.used = mask.view});
  ASSERT_TRUE(huge.ok());
  EXPECT_EQ(huge->code_bytes, poisoned->code_bytes);
  EXPECT_EQ(huge->scales, poisoned->scales);
  const Result<Quantized> all = quantize(k, Format::kInt8, ScaleKind::kPage);
  ASSERT_TRUE(all.ok());
  EXPECT_NE(all->scales, poisoned->scales) << "without a mask every slot counts";
}

TEST(Quantize, UsedValuesThatAreNotFiniteAreRefusedByName) {
  for (const double bad : {kNaN, kInf, -kInf}) {
    TestProblem t = sample(4, Layout::kHND);
    const Mask mask(t);
    t.put_v(t.slot(1, 5), 1, 2, bad);
    const Result<Quantized> v = quantize(t.problem.cache.v, Format::kFp8E5M2, ScaleKind::kHead,
                                         {.layout = Layout::kHND, .used = mask.view, .name = "v"});
    EXPECT_EQ(v.status().code(), Code::kInvalidArgument);
    EXPECT_EQ(v.status().message().rfind("v: ", 0), 0u) << v.status().message();
    EXPECT_TRUE(says(v.status(), "in slot " + std::to_string(t.slot(1, 5)) + ", head 1, dimension 2"));
  }
  const TestProblem t = sample(4, Layout::kNHD);
  EXPECT_FALSE(quantize(t.problem.cache.k, Format::kInt8, ScaleKind::kTensor).ok())
      << "no mask: NaN of unused slots counts";
}

TEST(Quantize, WrongArgumentsAreRefused) {
  const TestProblem t = sample(4, Layout::kNHD), rows = sample(0, Layout::kNHD);
  const TensorView& k = t.problem.cache.k;
  TensorView odd = k, flat = k, none = k;
  odd.shape[3] = 5;
  flat.rank = 2;
  none.data = nullptr;
  const std::vector<uint8_t> bytes(1000, 0);
  struct Wrong {
    const char* words;
    TensorView x;
    Format format;
    ScaleKind kind;
    TensorView used;
  };
  const Wrong wrongs[] = {
      {"format: is plain", k, Format::kPlain, ScaleKind::kTensor, {}},
      {"x: tensor is missing", {}, Format::kInt8, ScaleKind::kTensor, {}},
      {"x: head size 5 is odd", odd, Format::kInt4, ScaleKind::kTensor, {}},
      {"x: rank 2", flat, Format::kInt8, ScaleKind::kTensor, {}},
      {"x: has elements but no memory", none, Format::kInt8, ScaleKind::kTensor, {}},
      {"x: a scale per page", rows.problem.cache.k, Format::kInt8, ScaleKind::kPage, {}},
      {"x: dtype I8",
       dense_view(bytes.data(), DType::kI8, {2, 2, 2, 2}),
       Format::kInt8,
       ScaleKind::kHead,
       {}},
      {"used: dtype I32", k, Format::kInt8, ScaleKind::kHead, dense_view(bytes.data(), DType::kI32, {5, 4})},
      {"used: shape is not [", k, Format::kInt8, ScaleKind::kHead,
       dense_view(bytes.data(), DType::kU8, {5, 3})},
      {"used: shape is not [", rows.problem.cache.k, Format::kInt8, ScaleKind::kHead,
       dense_view(bytes.data(), DType::kU8, {5, 3})},
  };
  for (const Wrong& w : wrongs) {
    const Status s = quantize(w.x, w.format, w.kind, {.used = w.used}).status();
    EXPECT_EQ(s.code(), Code::kInvalidArgument) << w.words;
    EXPECT_EQ(s.message().rfind(w.words, 0), 0u) << s.message() << " / " << w.words;
  }
}

TEST(Quantize, ExtentsBeyondAnyMemoryAreRefused) {
  const float x = 1;
  TensorView view = dense_view(&x, DType::kF32, {1, 4, 2, 6});
  view.stride = {};
  for (const int64_t pages : {int64_t{1} << 60, int64_t{1} << 61, int64_t{1} << 46}) {
    view.shape[0] = pages;
    EXPECT_EQ(quantize(view, Format::kInt8, ScaleKind::kTensor).status().code(), Code::kCapacityExceeded);
  }
  view.shape[0] = 1;
  EXPECT_EQ(quantize(view, static_cast<Format>(9), ScaleKind::kTensor).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(quantize(view, Format::kInt8, static_cast<ScaleKind>(9)).status().code(), Code::kInvalidArgument);
}

TEST(UsedSlots, AreTheCommittedTokens) {
  for (const int64_t page : {4, 0}) {
    TestProblem t = sample(page, Layout::kNHD);
    if (page > 0) t.table(1, 1) = 77777;  // names no page: passed over
    const Result<std::vector<uint8_t>> used = used_slots(t.problem);
    ASSERT_TRUE(used.ok()) << used.status().message();
    std::vector<uint8_t> want(t.slots(), 0);
    for (int64_t token = 0; token < 6; ++token) want[t.slot(0, token)] = 1;
    for (int64_t token = 0; token < 9; ++token)
      if (page == 0 || token / page != 1) want[t.slot(1, token)] = 1;
    EXPECT_EQ(*used, want);
  }
}

TEST(Dequantize, IsCodeTimesScale) {
  for (const int64_t page : {4, 0})
    for (const Layout layout : {Layout::kNHD, Layout::kHND}) {
      const TestProblem t = sample(page, layout);
      const Mask mask(t);
      for (const Format format : kFormats)
        for (const ScaleKind kind : kKinds) {
          if (per_page(kind) && page == 0) continue;
          const Result<Quantized> q =
              quantize(t.problem.cache.k, format, kind, {.layout = layout, .used = mask.view});
          ASSERT_TRUE(q.ok());
          const Result<Dequantized> x = dequantize(q->codes, layout, q->quantization);
          ASSERT_TRUE(x.ok()) << x.status().message();
          for_each_place(extents(t.problem.cache.k, layout), [&](const Place& at) {
            const double want = code_value(format, q->codes, layout, at) *
                                static_cast<double>(scale_value(q->quantization, layout, at));
            ASSERT_EQ(plain_value(x->view, layout, at), static_cast<float>(want)) << label(format, kind);
          });
          // Once more finds the same codes: the largest value of a group is kept exactly enough.
          const Result<Quantized> again =
              quantize(x->view, format, kind, {.layout = layout, .used = mask.view});
          ASSERT_TRUE(again.ok());
          EXPECT_EQ(again->code_bytes, q->code_bytes) << label(format, kind);
        }
    }
}

TEST(Dequantize, ReadsCodesAndScalesOfAnyStrides) {
  // [2, 3, 2, 4] codes with every other byte unused and pages backwards, scales [2, 2] transposed.
  std::vector<uint8_t> bytes(2 * 3 * 2 * 8);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i);
  TensorView codes = dense_view(bytes.data() + 48, DType::kI8, {2, 3, 2, 4});
  codes.stride = {-48, 16, 8, 2};
  const std::vector<float> scales{1, 2, 4, 8};
  Quantization q{Format::kInt8, ScaleKind::kPage, dense_view(scales.data(), DType::kF32, {2, 2})};
  q.scale.stride = {1, 2};
  const Result<Dequantized> x = dequantize(codes, Layout::kNHD, q);
  ASSERT_TRUE(x.ok()) << x.status().message();
  EXPECT_EQ(x->values.size(), 48u);
  EXPECT_EQ(x->view.at<float>({0, 0, 0, 0}), 48.f);
  EXPECT_EQ(x->view.at<float>({1, 2, 1, 3}), (2 * 16 + 8 + 6) * 8.f);
  EXPECT_EQ(x->view.at<float>({0, 1, 1, 2}), (48 + 16 + 8 + 4) * 4.f);
}

TEST(Dequantize, WrongScalesAreRefused) {
  const std::vector<uint8_t> bytes(64);
  const std::vector<float> scales(64);
  const TensorView codes = dense_view(bytes.data(), DType::kI8, {2, 4, 2, 4});
  const auto refusal = [&](const Quantization& q) {
    return dequantize(codes, Layout::kNHD, q, "v").status().message();
  };
  EXPECT_EQ(refusal({Format::kInt8, ScaleKind::kHead, {}}), "v_scale: tensor is missing");
  EXPECT_EQ(refusal({Format::kInt8, ScaleKind::kToken, dense_view(scales.data(), DType::kF32, {2, 2, 4})}),
            "v_scale: shape is not [2,4,2]");
  EXPECT_EQ(refusal({Format::kInt8, ScaleKind::kTensor, dense_view(scales.data(), DType::kI32, {})}),
            "v_scale: dtype I32 is not one of F32");
  EXPECT_EQ(refusal({Format::kInt8, ScaleKind::kTensor, dense_view(nullptr, DType::kF32, {})}),
            "v_scale: has elements but no memory");
  EXPECT_EQ(refusal({Format::kFp8E4M3, ScaleKind::kTensor, dense_view(scales.data(), DType::kF32, {})}),
            "v: dtype I8 is not one of F8_E4M3");
  EXPECT_EQ(refusal({}), "v: dtype I8 is not one of F32 F16 BF16");
}

TEST(Dequantize, AProblemsPlainSideIsWidened) {
  const TestProblem t = sample(4, Layout::kNHD, DType::kBF16);
  const Mask mask(t);
  const Result<Quantized> k =
      quantize(t.problem.cache.k, Format::kInt8, ScaleKind::kHead, {.used = mask.view});
  ASSERT_TRUE(k.ok());
  Problem mixed = t.problem;
  mixed.cache.k = k->codes;
  mixed.cache.k_quant = k->quantization;
  const Result<DequantizedProblem> p = dequantized(mixed);
  ASSERT_TRUE(p.ok()) << p.status().message();
  EXPECT_TRUE(describe(p->problem).ok());
  for_each_place(extents(mixed.cache.v, Layout::kNHD), [&](const Place& at) {
    const double want = plain_value(mixed.cache.v, Layout::kNHD, at);
    const double got = plain_value(p->problem.cache.v, Layout::kNHD, at);
    ASSERT_TRUE(got == want || (std::isnan(got) && std::isnan(want)));
  });
  Problem broken = mixed;
  broken.cache.k_quant.scale = {};
  EXPECT_EQ(dequantized(broken).status().message(), "k_scale: tensor is missing");
}

TEST(PackInt4, ThereAndBack) {
  std::vector<int8_t> codes, back(256);
  for (int i = 0; i < 256; ++i) codes.push_back(static_cast<int8_t>((i * 7 + i / 16) % 16 - 8));
  std::vector<uint8_t> packed(128);
  ASSERT_TRUE(pack_int4(codes, packed).ok());
  EXPECT_EQ(packed[0], (codes[0] & 15) + (codes[1] & 15) * 16);
  ASSERT_TRUE(unpack_int4(packed, back).ok());
  EXPECT_EQ(back, codes);
}

TEST(PackInt4, Refusals) {
  std::vector<int8_t> codes{1, 8};
  std::vector<uint8_t> packed{42, 42};
  EXPECT_EQ(pack_int4(codes, {packed.data(), 1}).message(), "codes: 8 at 1 is outside [-8, 7]");
  EXPECT_EQ(pack_int4({codes.data(), 1}, {packed.data(), 1}).message(),
            "codes: 1 codes do not fill whole bytes");
  EXPECT_EQ(pack_int4(codes, packed).message(), "packed: 2 bytes for 2 codes");
  EXPECT_EQ(unpack_int4(packed, codes).message(), "codes: 2 codes for 2 bytes");
  EXPECT_EQ(packed, (std::vector<uint8_t>{42, 42}));
  EXPECT_EQ(codes, (std::vector<int8_t>{1, 8}));
}

}  // namespace
}  // namespace tamis
