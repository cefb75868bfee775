// docs/faults.md, group G: gradients and dropout. Each test is named after its entry and holds the smallest
// input that shows the fault.
#include <gtest/gtest.h>

#include "support/expect.h"
#include "support/problems.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

// Not causal, as the entries are unless they say so.
TestProblem open_problem(Spec spec) {
  TestProblem t(std::move(spec));
  t.problem.mask.causal = false;
  return t;
}

QFill constant(double x) {
  return [x](int64_t, int64_t, int64_t) { return x; };
}

bool all_zero(const std::vector<double>& x) {
  return std::all_of(x.begin(), x.end(), [](double y) { return y == 0; });
}

bool all_finite(const reference::Gradients& g) {
  for (const auto* part : {&g.d_q, &g.d_k, &g.d_v})
    for (const double x : *part)
      if (!std::isfinite(x)) return false;
  return true;
}

TEST(FaultG1, TheListsAreTransposed) {
  for (const int64_t dim : {64, 192}) {
    TestProblem t = open_problem({.kv_len = {192},
                                  .q_len = {128},
                                  .head_dim = dim,
                                  .v_head_dim = dim,
                                  .page_size = 16,
                                  .q = q_noise(1),
                                  .k = kv_noise(2),
                                  .v = kv_noise(3)});
    Rows rows(128, {0});
    std::fill(rows.begin(), rows.begin() + 64, std::vector<int32_t>{128});
    t.csr(rows).d_out(q_noise(4));
    const reference::Gradients g = gradients(t.problem);
    for (int64_t token = 0; token < 192; ++token)
      for (int64_t d = 0; d < dim; ++d) {
        double want = 0;  // multiples of 1/64: sums are exact
        const int64_t first = token == 128 ? 0 : token == 0 ? 64 : 128;
        for (int64_t i = first; i < std::min<int64_t>(first + 64, 128); ++i) want += q_noise(4)(i, 0, d);
        ASSERT_EQ(g.d_v[t.in_d_v(t.slot(0, token), 0, d)], want) << token << " " << d;
      }
    EXPECT_TRUE(all_zero(g.d_k) && all_zero(g.d_q)) << "one key has weight 1, whatever its score";
  }
}

TEST(FaultG2, ATokenOfManyRowsAndHeads) {
  for (const int64_t heads : {1, 2}) {
    TestProblem t =
        open_problem({.kv_len = {1}, .q_len = {1024}, .q_heads = heads, .head_dim = 1, .v_head_dim = 1});
    t.q_pos(std::vector<int32_t>(1024, 0)).csr(Rows(1024, {0})).d_out(constant(1));
    const reference::Gradients g = gradients(t.problem);
    EXPECT_EQ(g.d_v[t.in_d_v(t.slot(0, 0), 0, 0)], 1024.0 * static_cast<double>(heads));
  }
}

TEST(FaultG3, PaddingScattersNowhere) {
  for (const int64_t page : {0, 4}) {
    TestProblem t = open_problem({.kv_len = {8}, .page_size = page, .q = q_noise(1), .k = kv_noise(2)});
    t.csr({{-1}}).d_out(q_noise(3));
    reference::Gradients g = gradients(t.problem);
    EXPECT_TRUE(all_zero(g.d_q) && all_zero(g.d_k) && all_zero(g.d_v));
    t.csr({{-1, 2, -1, 5, -1}});
    g = gradients(t.problem);
    for (int64_t at = 0; at < t.slots(); ++at)
      EXPECT_EQ(g.d_v[t.in_d_v(at, 0, 0)] != 0, at == t.slot(0, 2) || at == t.slot(0, 5)) << at;
  }
}

TEST(FaultG4, AnEmptyRowGivesNobodyAnything) {
  TestProblem t =
      open_problem({.kv_len = {8}, .q_len = {2}, .q = q_noise(1), .k = kv_noise(2), .v = kv_noise(3)});
  t.csr({{-1}, {0, 1}}).d_lse([](int64_t, int64_t) { return 0.5; });
  t.d_out(q_noise(4));
  const reference::Gradients both = gradients(t.problem);
  EXPECT_TRUE(all_finite(both));
  EXPECT_TRUE(all_zero({both.d_q.begin(), both.d_q.begin() + 4}));
  EXPECT_FALSE(all_zero({both.d_q.begin() + 4, both.d_q.end()}));
  // Neither its query nor its gradient is looked at.
  const auto spoilt = [](int64_t i, int64_t, int64_t d) { return i == 0 ? kNaN : q_noise(4)(i, 0, d); };
  t.d_out(spoilt).d_lse([](int64_t i, int64_t) { return i == 0 ? kNaN : 0.5; });
  for (int64_t d = 0; d < 4; ++d) t.put_q(0, 0, d, kInf);
  EXPECT_TRUE(same_gradients(gradients(t.problem), both));
}

TEST(FaultG5, StronglyNegativeScores) {
  for (const int32_t kv : {1, 64}) {
    TestProblem t = open_problem({.kv_len = {kv},
                                  .head_dim = 1,
                                  .v_head_dim = 2,
                                  .page_size = 16,
                                  .k = [](int64_t, int64_t, int64_t, int64_t) { return -120.0; },
                                  .v = kv_noise(3)});
    t.problem.score.scale = 1;
    t.all().d_out(q_noise(4));
    EXPECT_NEAR(answer(t.problem).output.lse[0], -120 + std::log(kv), 1e-12);
    const reference::Gradients g = gradients(t.problem);
    EXPECT_TRUE(all_finite(g));
    double d_scores = 0;
    for (int32_t token = 0; token < kv; ++token) {
      const int64_t at = t.slot(0, token);
      for (int64_t d = 0; d < 2; ++d) EXPECT_NEAR(g.d_v[t.in_d_v(at, 0, d)], q_noise(4)(0, 0, d) / kv, 1e-13);
      d_scores += g.d_k[t.in_d_k(at, 0, 0)];
    }
    EXPECT_NEAR(d_scores, 0, 1e-13);
    EXPECT_NEAR(g.d_q[0], 0, 1e-11) << "equal keys";
    EXPECT_TRUE(kv > 1 || (all_zero(g.d_q) && all_zero(g.d_k)));
  }
}

TEST(FaultG6, TheRowTermIsSubtractedOnce) {
  TestProblem t = open_problem(
      {.kv_len = {2}, .head_dim = 1, .v_head_dim = 128, .v = [](int64_t, int64_t token, int64_t, int64_t) {
         return token == 0 ? 1.0 : 0.0;
       }});
  t.problem.score.scale = 1;
  t.all().d_out(constant(1.0 / 128));
  const reference::Gradients g = gradients(t.problem);
  EXPECT_DOUBLE_EQ(g.d_k[t.in_d_k(t.slot(0, 0), 0, 0)], 0.25) << "0 when subtracted for both halves of Dv";
  EXPECT_DOUBLE_EQ(g.d_k[t.in_d_k(t.slot(0, 1), 0, 0)], -0.25);
}

TEST(FaultG7, BackwardReadsTheSavedSetsAndLse) {
  TestProblem t = open_problem({.kv_len = {2}, .q = q_noise(1), .v = kv_noise(3)});  // K = 0: a tie
  t.csr({{0}}).d_out(q_noise(4));
  const reference::Answer saved = answer(t.problem);
  t.csr({{1}});  // what another selection would choose
  const Result<reference::Gradients> g = reference::backward(t.problem, saved.sets, saved.output);
  ASSERT_TRUE(g.ok());
  for (int64_t d = 0; d < 4; ++d) {
    EXPECT_EQ(g->d_v[t.in_d_v(t.slot(0, 0), 0, d)], q_noise(4)(0, 0, d));
    EXPECT_EQ(g->d_v[t.in_d_v(t.slot(0, 1), 0, d)], 0);
  }
  // LSE is read too, not made anew: ln 2 more of it halves the weights.
  reference::Output other = saved.output;
  other.lse[0] += std::log(2.0);
  const Result<reference::Gradients> half = reference::backward(t.problem, saved.sets, other);
  ASSERT_TRUE(half.ok());
  EXPECT_NEAR(half->d_v[t.in_d_v(t.slot(0, 0), 0, 0)], q_noise(4)(0, 0, 0) / 2, 1e-15);
}

TEST(FaultG8, DropoutBelongsToTheEdge) {
  // V is one dimension for each token, so the forward pass shows what it kept, and dV what backward did.
  constexpr int64_t kv = 16;
  const auto with = [&](const Rows& rows, const Dropout& dropout, int64_t page) {
    TestProblem t = open_problem(
        {.kv_len = {kv},
         .q_heads = 3,
         .v_head_dim = kv,
         .page_size = page,
         .q = q_noise(1),
         .k = kv_noise(2),
         .v = [](int64_t, int64_t token, int64_t, int64_t d) { return token == d ? 1.0 : 0.0; }});
    t.problem.candidates.index_heads = 1;
    t.problem.dropout = dropout;
    t.csr(rows).d_out(constant(1));
    return t;
  };
  const Dropout half{0.5, 11};
  for (const Rows& rows : {Rows{{3, 5}}, Rows{{5, 3, -1}}, Rows{{5, 5, -1, 3, 3}}}) {
    const TestProblem plain = with({{3, 5}}, half, 4), other = with(rows, half, 4);
    EXPECT_TRUE(same_answer(answer(plain.problem), answer(other.problem)));
    EXPECT_TRUE(same_gradients(gradients(plain.problem), gradients(other.problem)));
  }
  Rows every(1);
  for (int32_t token = 0; token < kv; ++token) every[0].push_back(token);
  for (const int64_t page : {0, 1, 4, 16}) {
    TestProblem t = with(every, half, page);
    const std::vector<double> out = answer(t.problem).output.out;
    const reference::Gradients g = gradients(t.problem);
    int kept = 0;
    for (int64_t token = 0; token < kv; ++token) {
      double want = 0;
      for (int64_t h = 0; h < 3; ++h) {
        want += out[h * kv + token];
        kept += out[h * kv + token] != 0;
      }
      EXPECT_NEAR(g.d_v[t.in_d_v(t.slot(0, token), 0, 0)], want, 1e-13)
          << "page " << page << " token " << token;
    }
    EXPECT_GT(kept, 0);
    EXPECT_LT(kept, 3 * kv);
  }
  const TestProblem none = with(every, {}, 4), zero = with(every, {0, 11}, 4), some = with(every, half, 4);
  EXPECT_TRUE(same_answer(answer(none.problem), answer(zero.problem)));
  EXPECT_TRUE(same_gradients(gradients(none.problem), gradients(zero.problem)));
  EXPECT_TRUE(same_bits(answer(none.problem).output.lse, answer(some.problem).output.lse));
}

}  // namespace
}  // namespace tamis
