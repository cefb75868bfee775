// docs/faults.md, C6: one logical problem, stored in every way there is. Where the bytes lie changes no bit
// of the answer.
#include <gtest/gtest.h>

#include "support/expect.h"
#include "support/problems.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

struct Stored {
  int64_t page_size;
  Layout layout = Layout::kNHD;
  Placement placement = Placement::kDense;
  DType dtype = DType::kF32;
};

std::ostream& operator<<(std::ostream& out, const Stored& s) {
  return out << "page " << s.page_size << (s.layout == Layout::kHND ? " HND" : " NHD") << " placement "
             << static_cast<int>(s.placement) << " " << dtype_name(s.dtype);
}

// Two requests, grouped heads, Dv other than D, lists per KV head, poisoned wherever no set looks.
TestProblem stored(const Stored& how) {
  TestProblem t({.kv_len = {131, 70},
                 .q_len = {3, 2},
                 .q_heads = 6,
                 .kv_heads = 2,
                 .head_dim = 8,
                 .v_head_dim = 5,
                 .dtype = how.dtype,
                 .page_size = how.page_size,
                 .layout = how.layout,
                 .placement = how.placement,
                 .q = q_noise(11),
                 .k = kv_noise(12),
                 .v = kv_noise(13)});
  t.problem.candidates.index_heads = 2;
  t.problem.mask = {.causal = true, .window = 5, .sink = 2};
  t.csr({{60, 61, 130}, {0, 64}, {}, {15, 16, 17}, {127, 128}, {48, 99}, {69}, {63, 64}, {1}, {47, 48, 49}})
      .alibi({0.5, 0, 1, 0.25, 2, 0.125});
  Result<reference::Sets> sets = reference::build_sets(t.problem);
  EXPECT_TRUE(sets.ok()) << sets.status().message();
  if (sets.ok()) t.poison_outside(*sets);
  return t;
}

const reference::Answer& canonical() {
  static const reference::Answer a = answer(stored({.page_size = 16}).problem);
  return a;
}

void expect_canonical(const Stored& how) {
  const TestProblem t = stored(how);
  EXPECT_TRUE(same_answer(answer(t.problem), canonical())) << how;
}

TEST(FaultC6, TheCanonicalAnswerIsFiniteAndNotTrivial) {
  for (const double x : canonical().output.out) EXPECT_TRUE(std::isfinite(x));
  EXPECT_NE(canonical().output.out[0], canonical().output.out[5]) << "heads differ";
  EXPECT_EQ(canonical().sets.empty_rows, 0);
}

TEST(FaultC6, PageSizes) {
  for (const int64_t page : {1, 2, 16, 48, 61, 64, 69, 128, 256, 576})
    for (const Layout layout : {Layout::kNHD, Layout::kHND}) expect_canonical({page, layout});
}

TEST(FaultC6, Contiguous) {
  for (const Layout layout : {Layout::kNHD, Layout::kHND}) expect_canonical({0, layout});
}

TEST(FaultC6, GapsReversedAndInterleavedStrides) {
  for (const Placement placement :
       {Placement::kGaps, Placement::kSpread, Placement::kReversed, Placement::kInterleaved})
    for (const int64_t page : {0, 1, 16, 61})
      for (const Layout layout : {Layout::kNHD, Layout::kHND}) expect_canonical({page, layout, placement});
}

TEST(FaultC6, ValuesThatFitSixteenBits) {
  for (const DType dtype : {DType::kF16, DType::kBF16})
    for (const int64_t page : {0, 48}) expect_canonical({page, Layout::kHND, Placement::kGaps, dtype});
}

TEST(FaultC6, SharedPages) {
  // The first page of both requests is one physical page; apart from that, copies.
  const auto by_token = [](int64_t b, int64_t t, int64_t, int64_t d) {
    return noise(21, t < 4 ? 0 : b, t, d);
  };
  Spec spec{.kv_len = {8, 8}, .q = q_noise(22), .k = by_token, .v = by_token};
  spec.table = {{0, 1}, {2, 3}};
  TestProblem apart(spec);
  spec.table = {{3, 1}, {3, 0}};
  TestProblem shared(spec);
  for (TestProblem* t : {&apart, &shared}) t->csr({{0, 3, 7}, {1, 3, 4}});
  EXPECT_TRUE(same_answer(answer(shared.problem), answer(apart.problem)));
}

TEST(FaultC6, OnePageTwiceInOneRequestIsTwoTokens) {
  TestProblem t({.kv_len = {8}, .table = {{1, 1}}});
  t.csr({{1, 5}});  // the same slot twice
  const reference::Answer a = answer(t.problem);
  EXPECT_DOUBLE_EQ(a.output.lse[0], std::log(2.0)) << "identity is (request, token), not the slot";
  EXPECT_EQ(a.sets.counts.duplicates, 0);
  EXPECT_DOUBLE_EQ(a.output.out[0], 5) << "written last";
}

TEST(FaultC6, ZeroStridesShareOneRow) {
  // One KV head that is seen as two by a head stride of 0, against two equal heads.
  const auto headless = [](int64_t b, int64_t t, int64_t, int64_t d) { return noise(31, b, t, d); };
  Spec spec{.kv_len = {40},
            .q_heads = 2,
            .kv_heads = 2,
            .page_size = 16,
            .q = q_noise(32),
            .k = headless,
            .v = headless};
  TestProblem two(spec);
  spec.kv_heads = 1;
  TestProblem one(spec);
  for (TensorView* t : {&one.problem.cache.k, &one.problem.cache.v}) {
    t->shape[2] = 2;
    t->stride[2] = 0;
  }
  for (TestProblem* t : {&two, &one}) t->all();
  EXPECT_TRUE(same_answer(answer(one.problem), answer(two.problem)));

  // Strides of 0 over pages and tokens: every token has the value of the first slot.
  one.put_v(0, 0.5);
  one.problem.cache.v.stride[0] = one.problem.cache.v.stride[1] = 0;
  EXPECT_NEAR(answer(one.problem).output.out[2], 0.5, 1e-12);
}

}  // namespace
}  // namespace tamis
