// Section 5 against the formula, written out once more from the values that went in; and what the reference
// does not hold.
#include <gtest/gtest.h>

#include "support/expect.h"
#include "support/problems.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

struct Formula {
  QFill q;
  KvFill k, v;
  double scale, softcap = 0;
  std::vector<float> slopes{};
};

// O and LSE of one request whose query i sits at `pos[i]`, over given sets.
void expect_formula(const reference::Answer& a, const Formula& f, const Spec& spec,
                    const std::vector<int64_t>& pos) {
  const int64_t heads = spec.q_heads, group = heads / spec.kv_heads, dim = spec.v_head_dim;
  ASSERT_EQ(a.output.lse.size(), pos.size() * heads);
  for (int64_t i = 0; i < static_cast<int64_t>(pos.size()); ++i)
    for (int64_t h = 0; h < heads; ++h) {
      const std::vector<int32_t> set = set_of(a.sets, i);
      ASSERT_FALSE(set.empty());
      long double sum = 0;
      std::vector<long double> numerator(dim, 0);
      for (const int32_t t : set) {
        long double s = 0;
        for (int64_t d = 0; d < spec.head_dim; ++d) s += f.q(i, h, d) * f.k(0, t, h / group, d);
        s *= f.scale;
        if (f.softcap > 0) s = f.softcap * std::tanh(s / f.softcap);
        if (!f.slopes.empty()) s -= f.slopes[h] * std::fabs(static_cast<long double>(pos[i] - t));
        sum += std::exp(s);
        for (int64_t d = 0; d < dim; ++d) numerator[d] += std::exp(s) * f.v(0, t, h / group, d);
      }
      EXPECT_NEAR(a.output.lse[i * heads + h], static_cast<double>(std::log(sum)), 1e-12);
      for (int64_t d = 0; d < dim; ++d)
        ASSERT_NEAR(a.output.out[(i * heads + h) * dim + d], static_cast<double>(numerator[d] / sum), 1e-12)
            << "query " << i << " head " << h << " dim " << d;
    }
}

TEST(FaultE9, HeadSizesWithPoisonedPadding) {
  for (const int64_t dim : {32, 64, 72, 96, 104, 128, 192, 256}) {
    Spec spec{.kv_len = {507},
              .q_heads = 2,
              .head_dim = dim,
              .v_head_dim = dim,
              .page_size = 16,
              .placement = Placement::kGaps,
              .q = q_noise(1),
              .k = kv_noise(2),
              .v = kv_noise(3)};
    TestProblem t(spec);
    t.problem.candidates.unit = 64;
    t.csr({{7, 0, 3}});
    expect_formula(answer(t.problem), {spec.q, spec.k, spec.v, 1 / std::sqrt(static_cast<double>(dim))}, spec,
                   {506});
  }
}

TEST(ReferenceValues, ScoreRules) {
  Spec spec{.kv_len = {40},
            .q_len = {3},
            .q_heads = 6,
            .kv_heads = 2,
            .head_dim = 7,
            .v_head_dim = 3,
            .dtype = DType::kBF16,
            .q = q_noise(1),
            .k = kv_noise(2),
            .v = kv_noise(3)};
  const std::vector<float> slopes = {0.5f, 0, 1, 0.25f, 2, -0.125f};
  const std::vector<int32_t> positions = {20, 39, 3};
  for (const bool causal : {true, false})
    for (const double softcap : {0.0, 0.5})
      for (const bool alibi : {false, true})
        for (const double scale : {0.0, 3.0, -1.5}) {
          TestProblem t(spec);
          t.q_pos(positions);
          if (alibi) t.alibi(slopes);
          t.problem.mask.causal = causal;
          t.problem.score.softcap = softcap;
          t.problem.score.scale = scale;
          t.fixed({{0, 5, 30}, {39, 2, 21}, {1, 3, 8}});
          expect_formula(answer(t.problem),
                         {spec.q, spec.k, spec.v, scale, softcap, alibi ? slopes : std::vector<float>{}},
                         spec, {20, 39, 3});
        }
}

TEST(ReferenceValues, TheDefaultScaleComesFromTheKeySize) {
  Spec spec{
      .kv_len = {9}, .head_dim = 16, .v_head_dim = 4, .q = q_noise(1), .k = kv_noise(2), .v = kv_noise(3)};
  TestProblem t(spec);
  t.all();
  expect_formula(answer(t.problem), {spec.q, spec.k, spec.v, 0.25}, spec, {8});
}

TEST(ReferenceValues, LargeScoresNeitherOverflowNorVanish) {
  const auto high = [](int64_t, int64_t t, int64_t, int64_t) { return t == 0 ? 1e4 : 1e4 - std::log(4.0); };
  TestProblem t({.kv_len = {2}, .head_dim = 1, .v_head_dim = 1, .k = high});
  t.problem.score.scale = 1;
  t.all();
  EXPECT_NEAR(answer(t.problem).output.lse[0], 1e4 + std::log(1.25), 1e-3);
  EXPECT_NEAR(answer(t.problem).output.out[0], 0.2, 1e-3);
}

// Beside 1e18 a float64 has no room for ln 2: weights are shares of the sum, not exp(s - LSE).
TEST(ReferenceValues, EqualScoresShareTheWeightHoweverLarge) {
  TestProblem t({.kv_len = {2}, .k = [](int64_t, int64_t, int64_t, int64_t) { return 1e18; }});
  t.problem.mask.causal = false;
  t.all();
  EXPECT_EQ(answer(t.problem).output.out[0], 0.5);
}

TEST(ReferenceRefusals, AProblemWithoutValuesHasNone) {
  TestProblem t({.kv_len = {8}});
  t.problem.query.q = t.problem.cache.k = t.problem.cache.v = {};
  t.problem.index_only =
      IndexOnly{.q_heads = 1, .kv_heads = 1, .head_dim = 4, .v_head_dim = 4, .page_size = 4};
  t.csr({{5}});
  EXPECT_TRUE(says(refusal(t.problem, Code::kInvalidArgument), "q:"));
  EXPECT_TRUE(reference::build_sets(t.problem).ok());
}

// Sizes that a few bytes can state and no machine can hold are refused before memory is asked for.
TEST(ReferenceRefusals, AbsurdSizesAreRefusedAtOnce) {
  TestProblem t({.kv_len = {8}});
  t.problem.query.q = t.problem.cache.k = t.problem.cache.v = {};
  t.problem.index_only = IndexOnly{.q_heads = 65536, .kv_heads = 1, .head_dim = 4, .v_head_dim = 4};
  t.problem.cache.page_table = {};
  const auto refused = [&](const char* words) {
    const Status s = reference::build_sets(t.problem).status();
    EXPECT_EQ(s.code(), Code::kCapacityExceeded) << s.message();
    EXPECT_TRUE(says(s, words));
    EXPECT_TRUE(s.where().limit.has_value());
  };
  t.cu_q()[1] = INT32_MAX;
  refused("sets");  // one row of none candidates for two thousand million queries
  t.cu_q()[1] = 4096;
  t.problem.candidates.index_heads = 65536;
  refused("sets");
  t.cu_q()[1] = 1;
  t.problem.candidates.index_heads = 1;
  t.kv_len()[0] = INT32_MAX;
  t.all();
  refused("selected tokens");
  t.problem.candidates.form = CandidateForm::kNone;
  t.problem.mask.window = INT64_MAX;
  refused("selected tokens");
  t.problem.mask = {.sink = INT64_MAX};
  refused("selected tokens");
  t.problem.mask = {};
  t.problem.candidates.unit = INT64_MAX;
  t.csr({{0}});
  refused("selected tokens");
  t.problem.candidates.unit = 1;
  ASSERT_TRUE(reference::build_sets(t.problem).ok()) << "one token of a huge request is one token";
}

}  // namespace
}  // namespace tamis
