// Scores, scales and lists at the edge of what float32 and memory hold: the answer does not depend on how a
// row is cut, or there is none, by name.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "attention/runs.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// 64 tokens of one element; K is `k(t)`, V[t] = t.
TestProblem scored(double (*k)(int64_t)) {
  TestProblem t({.kv_len = {64},
                 .head_dim = 1,
                 .v_head_dim = 1,
                 .page_size = 16,
                 .k = [k](int64_t, int64_t token, int64_t, int64_t) { return k(token); }});
  t.all();
  return t;
}

TEST(Extremes, ScoresOfMinusInfinityWeighNothingWhateverTheSplit) {
  Context context(2);
  TestProblem t = scored([](int64_t token) { return token < 16 ? -kInfinity : 0.0; });
  for (const int32_t splits : {1, 2, 4, 8}) {
    const auto r = run_all(t.problem, {.normalize = {.block = 16}, .plan = {.splits = splits}}, context);
    ASSERT_TRUE(r.status.ok()) << r.status.message();
    EXPECT_NEAR(r.out[0], 39.5, 1e-4) << splits;  // the mean of 16 .. 63
    EXPECT_NEAR(r.lse[0], std::log(48.0), 1e-5) << splits;
  }
}

TEST(Extremes, ALeadingTileOfMinusInfinityIsForgotten) {
  Context context(1);
  TestProblem t(
      {.kv_len = {128},
       .head_dim = 1,
       .v_head_dim = 1,
       .page_size = 16,
       .k = [](int64_t, int64_t token, int64_t, int64_t) { return token < 64 ? -kInfinity : 0.0; }});
  t.all();
  const auto r = run_all(t.problem, {.plan = {.splits = 1}}, context);
  ASSERT_TRUE(r.status.ok()) << r.status.message();
  EXPECT_NEAR(r.out[0], 95.5, 1e-4);
}

TEST(Extremes, OnlyMinusInfinityOrAnyNaNIsNaN) {
  Context context(1);
  TestProblem none = scored([](int64_t) { return -kInfinity; });
  TestProblem nan = scored([](int64_t token) { return token == 5 ? double{NAN} : 0.0; });
  for (const int32_t splits : {1, 4})
    for (TestProblem* t : {&none, &nan}) {
      const auto r = run_all(t->problem, {.normalize = {.block = 16}, .plan = {.splits = splits}}, context);
      ASSERT_TRUE(r.status.ok()) << r.status.message();
      EXPECT_TRUE(std::isnan(r.out[0])) << splits;
      EXPECT_TRUE(std::isnan(r.lse[0])) << splits;
    }
}

// The last part outweighs the first beyond what an exponent holds; its NaN stays the row's all the same.
TEST(Extremes, ASelectedNaNStaysWhateverTheSplit) {
  Context context(1);
  TestProblem t(
      {.kv_len = {64},
       .head_dim = 1,
       .v_head_dim = 1,
       .page_size = 16,
       .k = [](int64_t, int64_t token, int64_t, int64_t) { return token < 16 ? 0.0 : 500.0; },
       .v = [](int64_t, int64_t token, int64_t, int64_t) { return token == 3 ? double{NAN} : 1.0; }});
  t.all();
  for (const int32_t splits : {1, 4}) {
    const auto r = run_all(t.problem, {.normalize = {.block = 16}, .plan = {.splits = splits}}, context);
    ASSERT_TRUE(r.status.ok()) << r.status.message();
    EXPECT_TRUE(std::isnan(r.out[0])) << splits;
  }
}

TEST(Extremes, ScalesThatFloat32DoesNotHoldAreRefusedByName) {
  Context context(1);
  TestProblem t = scored([](int64_t token) { return static_cast<double>(token) / 64; });
  for (const double value : {1e39, 1e-50, 1e300}) {
    t.problem.score.softcap = value;
    auto r = run_all(t.problem, {}, context);
    EXPECT_EQ(r.status.code(), Code::kUnsupported) << value;
    EXPECT_NE(r.status.message().find("softcap"), std::string::npos);
    t.problem.score.softcap = 0;
    t.problem.score.scale = value;
    r = run_all(t.problem, {}, context);
    EXPECT_EQ(r.status.code(), Code::kUnsupported) << value;
    EXPECT_NE(r.status.message().find("scale"), std::string::npos);
    t.problem.score.scale.reset();
  }
}

// A repeat is recognised before its unit is walked: what 10^5 repeats of 10^8 tokens would otherwise take, no
// test waits for.
TEST(Extremes, RepeatsOfAHugeUnitAreCountedOnce) {
  TestProblem t({.head_dim = 1, .v_head_dim = 1, .page_size = 0});
  const int32_t kv_len = 100000000;  // no cache: the index is all there is
  t.problem.query.q = t.problem.cache.k = t.problem.cache.v = t.problem.cache.cu_kv = {};
  t.problem.cache.kv_len = dense_view(&kv_len, DType::kI32, {1});
  t.problem.index_only = IndexOnly{.q_heads = 1, .kv_heads = 1, .head_dim = 1, .v_head_dim = 1};
  t.problem.candidates.unit = int64_t{1} << 31;
  t.csr({std::vector<int32_t>(100000, 0)});
  const auto set = normalize(t.problem, {.block = 128});
  ASSERT_TRUE(set.ok()) << set.status().message();
  EXPECT_EQ(set->stats().counts.unique, 1);
  EXPECT_EQ(set->stats().counts.duplicates, 99999);
}

// Left to themselves, bundling and path look at the whole batch; batch_invariant must not let them.
TEST(Extremes, BatchInvarianceHoldsWithEverythingOnAuto) {
  const auto made = [](bool beside) {
    Spec s{.kv_len = {8193},
           .q_len = {4},
           .q_heads = 2,
           .page_size = 64,
           .q = q_noise(1),
           .k = kv_noise(2),
           .v = kv_noise(3)};
    if (beside) {
      s.kv_len.push_back(900);
      s.q_len.push_back(300);
    }
    TestProblem t(std::move(s));
    t.problem.candidates.index_heads = 2;
    Rows rows;
    for (int32_t r = 0; r < 8; ++r) {  // disjoint runs that no tile border respects once they are joined
      rows.emplace_back();
      for (int32_t token = 0; token < 50; ++token) rows.back().push_back(r * 1000 + token);
    }
    for (int32_t r = 0; beside && r < 600; ++r) {  // the same list over and over, which begs to be joined
      rows.emplace_back();
      for (int32_t token = 0; token < 64; ++token) rows.back().push_back(token);
    }
    t.csr(rows);
    t.problem.mask.causal = false;
    return t;
  };
  Context context(2);
  const TestProblem alone = made(false), among = made(true);
  // forward() itself: it is what resolves `auto`.
  const auto bits = [&](const Problem& p) {
    const Shape shape = *describe(p);
    std::vector<float> out(shape.total_q * shape.q_heads * shape.v_head_dim, NAN);
    const OutView view{
        .out = mutable_view(out.data(), DType::kF32, {shape.total_q, shape.q_heads, shape.v_head_dim})};
    const Status status = forward(p, {.plan = {.batch_invariant = true}}, view, context);
    EXPECT_TRUE(status.ok()) << status.message();
    return out;
  };
  const std::vector<float> a = bits(alone.problem), b = bits(among.problem);
  for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(a[i], b[i]) << i;
}

TEST(Extremes, AnIndexOfAnotherProblemIsStale) {
  TestProblem one({.kv_len = {64}, .q_heads = 4, .kv_heads = 4}),
      other({.kv_len = {48}, .q_heads = 4, .kv_heads = 4});
  one.csr({{1}});
  other.csr({{1}});
  const auto index = normalize(other.problem);
  ASSERT_TRUE(index.ok()) << index.status().message();
  EXPECT_EQ(bundle(one.problem, *index).status().code(), Code::kStalePlan);
  EXPECT_TRUE(bundle(other.problem, *index).ok());
}

}  // namespace
}  // namespace tamis
