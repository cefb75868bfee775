// Section 8: K and V as codes under scales.
#include <gtest/gtest.h>

#include "support/expect.h"
#include "support/problems.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

constexpr Format kFormats[] = {Format::kInt8, Format::kFp8E4M3, Format::kFp8E5M2, Format::kInt4};
constexpr ScaleKind kKinds[] = {ScaleKind::kTensor,  ScaleKind::kHead,        ScaleKind::kPage,
                                ScaleKind::kChannel, ScaleKind::kPageChannel, ScaleKind::kToken};

bool needs_pages(ScaleKind kind) { return kind == ScaleKind::kPage || kind == ScaleKind::kPageChannel; }

// ---- by hand: dense arrays, their extents and their indices written out here once more

struct Hand {
  Format format;
  ScaleKind kind;
  bool hnd, paged;
};

std::ostream& operator<<(std::ostream& out, const Hand& x) {
  return out << "format " << static_cast<int>(x.format) << " kind " << static_cast<int>(x.kind)
             << (x.hnd ? " HND" : " NHD") << (x.paged ? " paged" : " contiguous");
}

constexpr int64_t kPages = 3, kPage = 4, kHeads = 2, kDim = 6, kSlots = kPages * kPage;

// Some code for each number: all bits get used, NaN and infinities do not.
int code_of(Format format, int64_t slot, int64_t head, int64_t dim) {
  const int code = static_cast<int>((slot * 97 + head * 41 + dim * 29 + 3) % 256);
  if (format == Format::kInt4) return code % 16;
  return format == Format::kInt8 || std::isfinite(code_values(format)[code]) ? code : 0x35;
}

struct Arrays {
  std::vector<uint8_t> codes;
  std::vector<float> scale;
  std::vector<double> numbers;  // [slot][head][dim]
};

Arrays by_hand(const Hand& x) {
  const bool int4 = x.format == Format::kInt4;
  Arrays a;
  a.codes.assign(kSlots * kHeads * (int4 ? kDim / 2 : kDim), 0);
  const int64_t sizes[] = {
      1, kHeads, kPages * kHeads, kHeads * kDim, kPages * kHeads * kDim, kSlots * kHeads};
  for (int64_t i = 0; i < sizes[static_cast<int>(x.kind)]; ++i)
    a.scale.push_back((i % 2 ? -0.01f : 0.01f) * static_cast<float>(i + 3));
  for (int64_t slot = 0; slot < kSlots; ++slot)
    for (int64_t h = 0; h < kHeads; ++h)
      for (int64_t d = 0; d < kDim; ++d) {
        const int64_t page = slot / kPage, token = slot % kPage;
        const int64_t row = !x.hnd    ? slot * kHeads + h
                            : x.paged ? (page * kHeads + h) * kPage + token
                                      : h * kSlots + slot;
        const int code = code_of(x.format, slot, h, d);
        if (int4) {
          a.codes[row * (kDim / 2) + d / 2] |= static_cast<uint8_t>(d % 2 ? code * 16 : code);
        } else {
          a.codes[row * kDim + d] = static_cast<uint8_t>(code);
        }
        const int64_t places[] = {0, h, page * kHeads + h, h * kDim + d, (page * kHeads + h) * kDim + d, row};
        a.numbers.push_back(code_values(x.format)[code] *
                            static_cast<double>(a.scale[places[static_cast<int>(x.kind)]]));
      }
  return a;
}

TensorView codes_view(const Hand& x, const Arrays& a) {
  const DType dtypes[] = {DType::kF32, DType::kI8, DType::kF8E4M3, DType::kF8E5M2, DType::kU8};
  const DType dtype = dtypes[static_cast<int>(x.format)];
  const int64_t last = x.format == Format::kInt4 ? kDim / 2 : kDim;
  if (x.paged)
    return x.hnd ? dense_view(a.codes.data(), dtype, {kPages, kHeads, kPage, last})
                 : dense_view(a.codes.data(), dtype, {kPages, kPage, kHeads, last});
  return x.hnd ? dense_view(a.codes.data(), dtype, {kHeads, kSlots, last})
               : dense_view(a.codes.data(), dtype, {kSlots, kHeads, last});
}

TensorView scale_view(const Hand& x, const Arrays& a) {
  const auto view = [&](std::initializer_list<int64_t> shape) {
    return dense_view(a.scale.data(), DType::kF32, shape);
  };
  switch (x.kind) {
    case ScaleKind::kTensor:
      return view({});
    case ScaleKind::kHead:
      return view({kHeads});
    case ScaleKind::kPage:
      return view({kPages, kHeads});
    case ScaleKind::kChannel:
      return view({kHeads, kDim});
    case ScaleKind::kPageChannel:
      return view({kPages, kHeads, kDim});
    case ScaleKind::kToken:
      break;
  }
  if (!x.paged) return x.hnd ? view({kHeads, kSlots}) : view({kSlots, kHeads});
  return x.hnd ? view({kPages, kHeads, kPage}) : view({kPages, kPage, kHeads});
}

// One query a token that sees nothing else: O is V, and with one dimension of q set, LSE is that of K.
void check_by_hand(const Hand& x) {
  const Arrays a = by_hand(x);
  TestProblem t({.kv_len = {kSlots},
                 .q_len = {kSlots},
                 .q_heads = kHeads,
                 .kv_heads = kHeads,
                 .head_dim = kDim,
                 .v_head_dim = kDim,
                 .page_size = x.paged ? kPage : 0,
                 .table = x.paged ? Rows{{2, 0, 1}} : Rows{},
                 .slack = 0,
                 .layout = x.hnd ? Layout::kHND : Layout::kNHD,
                 .q = [](int64_t i, int64_t, int64_t d) { return d == i % kDim ? 1.0 : 0.0; }});
  t.problem.mask.causal = false;
  t.problem.score.scale = 1;
  Rows rows;
  for (int32_t token = 0; token < kSlots; ++token) rows.push_back({token});
  t.csr(rows);
  CacheView& cache = t.problem.cache;
  cache.k = cache.v = codes_view(x, a);
  cache.k_quant = cache.v_quant = {x.format, x.kind, scale_view(x, a)};
  const reference::Answer got = answer(t.problem);
  ASSERT_EQ(got.output.lse.size(), kSlots * kHeads);
  for (int64_t i = 0; i < kSlots; ++i)
    for (int64_t h = 0; h < kHeads; ++h) {
      const double* want = &a.numbers[(t.slot(0, i) * kHeads + h) * kDim];
      EXPECT_EQ(got.output.lse[i * kHeads + h], want[i % kDim]) << x << " token " << i << " head " << h;
      for (int64_t d = 0; d < kDim; ++d)
        EXPECT_EQ(got.output.out[(i * kHeads + h) * kDim + d], want[d])
            << x << " token " << i << " head " << h << " dim " << d;
    }
}

TEST(ReferenceQuantized, EveryFormatUnderEveryScale) {
  for (const Format format : kFormats)
    for (const ScaleKind kind : kKinds)
      for (const bool hnd : {false, true})
        for (const bool paged : {false, true})
          if (paged || !needs_pages(kind)) check_by_hand({format, kind, hnd, paged});
}

// ---- against the same numbers stored plainly

struct Stored {
  Format k, v;
  ScaleKind k_kind, v_kind;
  int64_t page_size = 16;
  Layout layout = Layout::kNHD;
  Placement placement = Placement::kDense;
};

Spec spec_of(const Stored& s) {
  return {.kv_len = {50, 37},
          .q_len = {3, 2},
          .q_heads = 6,
          .kv_heads = 2,
          .head_dim = 8,
          .v_head_dim = 4,
          .page_size = s.page_size,
          .layout = s.layout,
          .placement = s.placement,
          .q = q_noise(1),
          .k = kv_noise(2),
          .v = kv_noise(3)};
}

void set_up(TestProblem& t) {
  t.problem.mask = {.window = 3, .sink = 1};
  t.csr({{30, 31}, {5}, {}, {36, 2, 17}, {20, 21, 22}});
  t.d_out(q_noise(5)).d_lse([](int64_t i, int64_t h) { return noise(6, i, h, 0); });
}

// Scales are powers of two and codes short, so the plain f32 problem holds exactly the same numbers.
void check_against_plain(const Stored& s) {
  TestProblem t(spec_of(s));
  if (s.k != Format::kPlain) t.quantize_k(s.k, s.k_kind);
  if (s.v != Format::kPlain) t.quantize_v(s.v, s.v_kind);
  Spec plain_spec = spec_of(s);
  plain_spec.k = [&](int64_t b, int64_t at, int64_t h, int64_t d) { return t.k_at(t.slot(b, at), h, d); };
  plain_spec.v = [&](int64_t b, int64_t at, int64_t h, int64_t d) { return t.v_at(t.slot(b, at), h, d); };
  TestProblem plain(plain_spec);
  for (TestProblem* problem : {&t, &plain}) set_up(*problem);
  const reference::Answer a = answer(t.problem), want = answer(plain.problem);
  EXPECT_TRUE(same_answer(a, want));
  EXPECT_TRUE(same_gradients(gradients(t.problem), gradients(plain.problem)));
  t.poison_outside(a.sets);
  EXPECT_TRUE(same_answer(answer(t.problem), want)) << "poisoned outside";
  EXPECT_TRUE(same_gradients(gradients(t.problem), gradients(plain.problem))) << "poisoned outside";
}

TEST(ReferenceQuantized, ForwardAndBackwardAreThoseOfTheDequantizedNumbers) {
  int i = 0;
  for (const Format k : kFormats)
    for (const Format v : kFormats)
      for (const ScaleKind kind : kKinds) {
        SCOPED_TRACE(++i);
        check_against_plain({k, v, kind, kKinds[i % 6]});
      }
}

TEST(ReferenceQuantized, OneSideAlone) {
  check_against_plain({Format::kInt4, Format::kPlain, ScaleKind::kToken, ScaleKind::kTensor});
  check_against_plain({Format::kPlain, Format::kFp8E5M2, ScaleKind::kTensor, ScaleKind::kPageChannel});
}

TEST(ReferenceQuantized, AnyStridesOfCodesAndScales) {
  int i = 0;
  for (const Placement placement :
       {Placement::kGaps, Placement::kSpread, Placement::kReversed, Placement::kInterleaved})
    for (const Layout layout : {Layout::kNHD, Layout::kHND})
      for (const int64_t page : {0, 7, 16})
        for (const ScaleKind kind : kKinds) {
          if (page == 0 && needs_pages(kind)) continue;
          SCOPED_TRACE(++i);
          check_against_plain({kFormats[i % 4], kFormats[i / 4 % 4], kind, kind, page, layout, placement});
        }
}

// ---- scales that are not finite (docs/faults.md, E3)

TestProblem with_scales(Format format, ScaleKind kind) {
  TestProblem t({.kv_len = {8}, .kv_heads = 1, .q = q_noise(1), .k = kv_noise(2), .v = kv_noise(3)});
  t.problem.mask.causal = false;
  t.quantize_k(format, kind).quantize_v(format, kind).csr({{0, 1, 3}});
  t.d_out(q_noise(4));
  return t;
}

TEST(FaultE3, AScaleOfUnselectedSlotsNeverArrives) {
  for (const Format format : kFormats)
    for (const ScaleKind kind : {ScaleKind::kToken, ScaleKind::kPage, ScaleKind::kPageChannel})
      for (const double bad : {kNaN, kInf}) {
        TestProblem t = with_scales(format, kind);
        const reference::Answer clean = answer(t.problem);
        const reference::Gradients clean_gradients = gradients(t.problem);
        const int64_t at = t.slot(0, 6);  // another page
        for (int64_t d = 0; d < 4; ++d) t.k_scale(at, 0, d) = t.v_scale(at, 0, d) = static_cast<float>(bad);
        EXPECT_TRUE(same_answer(answer(t.problem), clean));
        EXPECT_TRUE(same_gradients(gradients(t.problem), clean_gradients));
        t.csr({{0, 1, 3, 6}});
        EXPECT_TRUE(std::isnan(answer(t.problem).output.out[0])) << "selected, it does show";
      }
}

TEST(FaultE3, AScaleOfASelectedSlotSpoilsOnlyItsRow) {
  TestProblem t({.kv_len = {8}, .q_len = {2}, .q = q_noise(1), .k = kv_noise(2), .v = kv_noise(3)});
  t.problem.mask.causal = false;
  t.quantize_v(Format::kInt8, ScaleKind::kToken).csr({{0, 1}, {1, 2}});
  t.v_scale(t.slot(0, 2), 0, 0) = static_cast<float>(kNaN);
  const reference::Answer a = answer(t.problem);
  EXPECT_TRUE(std::isfinite(a.output.out[0]));
  EXPECT_TRUE(std::isnan(a.output.out[4]));
  EXPECT_TRUE(std::isfinite(a.output.lse[1])) << "V has no part in the sum of weights";
}

TEST(FaultE3, PoisonedCodesOfUnselectedSlots) {
  for (const Format format : {Format::kFp8E4M3, Format::kFp8E5M2}) {
    TestProblem t = with_scales(format, ScaleKind::kTensor);
    const reference::Answer clean = answer(t.problem);
    for (const int code : {0x7F, 0xFF, 0x7C})
      for (const int64_t token : {2, 4, 7})
        for (int64_t d = 0; d < 4; ++d) {
          t.put_k_code(t.slot(0, token), 0, d, code);
          t.put_v_code(t.slot(0, token), 0, d, code);
        }
    EXPECT_TRUE(same_answer(answer(t.problem), clean));
    t.put_v_code(t.slot(0, 3), 0, 2, 0x7F);
    const std::vector<double> out = answer(t.problem).output.out;
    EXPECT_TRUE(std::isnan(out[2]) && std::isfinite(out[1])) << "selected, it shows in its dimension";
  }
}

}  // namespace
}  // namespace tamis
