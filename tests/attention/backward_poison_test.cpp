// Rows and tokens that are not finite spoil the gradients of those that selected them, as in the reference,
// and of nobody else.
#include <gtest/gtest.h>

#include "attention/backward_runs.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

constexpr int32_t kQueries = 70, kTokens = 90;  // two blocks of rows, two tiles

// Neighbouring rows select different tokens; rows 3 and 50 select 20 to 29, which nobody else does but row 4.
std::vector<int32_t> list_of(int32_t row) {
  std::vector<int32_t> list;
  if (row == 3 || row == 4 || row == 50)
    for (int32_t token = 20; token < 30; ++token) list.push_back(token);
  if (row == 3 || row == 50) return list;
  for (int32_t token = row % 3; token < kTokens; token += 3)
    if (token < 20 || token >= 30) list.push_back(token);
  return list;
}

// Whether what is spoilt is an infinity or a NaN depends on the order of sums.
reference::Gradients spoilt_as_nan(reference::Gradients g) {
  for (std::vector<double>* part : {&g.d_q, &g.d_k, &g.d_v})
    for (double& x : *part)
      if (!std::isfinite(x)) x = kNaN;
  return g;
}

class Poison : public ::testing::TestWithParam<std::string> {
 protected:
  void judge(const char* what, const std::function<void(TestProblem&, double)>& spoil) {
    Context context(2);
    ASSERT_TRUE(context.use_isa(GetParam()).ok());
    for (const DType dtype : {DType::kF32, DType::kBF16})
      for (const double value : {kNaN, kInf}) {
        TestProblem t({.kv_len = {kTokens},
                       .q_len = {kQueries},
                       .head_dim = 18,
                       .v_head_dim = 34,
                       .dtype = dtype,
                       .page_size = 16,
                       .q = q_noise(1),
                       .k = kv_noise(2),
                       .v = kv_noise(3)});
        t.problem.mask.causal = false;
        Rows rows;
        for (int32_t r = 0; r < kQueries; ++r) rows.push_back(list_of(r));
        rows[10] = {};
        t.csr(rows).d_out(q_noise(4), dtype);
        spoil(t, value);
        Judge judge(t.problem);
        judge.want = spoilt_as_nan(judge.want);
        const Saved saved(t.problem, judge.answer.output);
        for (const BundlePolicy policy : {BundlePolicy::kRows, BundlePolicy::kNeighbours})
          for (const SavedForward& forward : {saved.view(), saved.without_out()}) {
            RanBackward r =
                all_gradients(t.problem, forward, context, {.bundle = {.policy = policy, .neighbours = 128}});
            r.got = spoilt_as_nan(r.got);
            EXPECT_EQ(judge.complaint(r), "")
                << what << ' ' << value << ' ' << dtype_name(dtype) << " policy " << static_cast<int>(policy);
          }
      }
  }
};

INSTANTIATE_TEST_SUITE_P(Each, Poison, ::testing::ValuesIn(tested_isas()),
                         [](const auto& isa) { return isa.param; });

TEST_P(Poison, ARowOfQ) {
  for (const int64_t row : {3, 50, 69})
    judge("q", [row](TestProblem& t, double x) { t.put_q(row, 0, 17, x); });
}

TEST_P(Poison, ARowOfDOut) {
  for (const int64_t row : {3, 50, 69})
    judge("d_out", [row](TestProblem& t, double x) {
      t.d_out([=](int64_t i, int64_t h, int64_t d) { return i == row && d == 33 ? x : q_noise(4)(i, h, d); },
              t.problem.query.q.dtype);
    });
}

TEST_P(Poison, ARowOfBoth) {
  judge("q and d_out", [](TestProblem& t, double x) {
    t.put_q(3, 0, 0, x);
    t.d_out([=](int64_t i, int64_t h, int64_t d) { return i == 50 && d == 0 ? x : q_noise(4)(i, h, d); },
            t.problem.query.q.dtype);
  });
}

TEST_P(Poison, OfDLse) {
  judge("d_lse", [](TestProblem& t, double x) {
    t.d_lse([=](int64_t i, int64_t) { return i == 3 || i == 10 ? x : 0.25; });
  });
}

TEST_P(Poison, AToken) {
  judge("k", [](TestProblem& t, double x) { t.put_k(t.slot(0, 25), 0, 17, x); });
  judge("v", [](TestProblem& t, double x) { t.put_v(t.slot(0, 25), 0, 33, x); });
}

}  // namespace
}  // namespace tamis
