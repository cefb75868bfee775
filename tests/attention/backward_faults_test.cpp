// docs/faults.md, group G, on the CPU backend: each test is named after its entry and runs the smallest input
// that shows the fault in every way there is, on every instruction set.
#include <gtest/gtest.h>

#include "attention/backward_runs.h"
#include "tamis/select.h"

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

// Calls f(gradients, what was run) for every instruction set, block size, bundle policy and slab, with `out`
// and without.
template <class F>
void everywhere(const Problem& p, const F& f) {
  const reference::Answer a = answer(p);
  const Saved saved(p, a.output);
  for (const std::string& isa : tested_isas()) {
    Context one(1), two(2);
    ASSERT_TRUE(one.use_isa(isa).ok() && two.use_isa(isa).ok());
    for (const int32_t block : {0, 16, 128})
      for (const BundlePolicy policy : {BundlePolicy::kRows, BundlePolicy::kNeighbours})
        for (const int64_t slab : {int64_t{1}, BackwardOptions{}.slab_bytes})
          for (const bool with_out : {true, false}) {
            const BackwardOptions o{.bundle = {.policy = policy, .neighbours = 64}, .slab_bytes = slab};
            const RanBackward r =
                all_gradients(p, with_out ? saved.view() : saved.without_out(), block == 0 ? two : one, o,
                              {.before = Before::kMinusZero}, {.block = block});
            const std::string way = isa + ", block " + std::to_string(block) + ", slab " +
                                    std::to_string(slab) + (with_out ? "" : ", without out");
            ASSERT_TRUE(r.status.ok()) << way << ": " << r.status.message();
            ASSERT_EQ(r.damage, "") << way;
            f(r.got, way);
            if (::testing::Test::HasFatalFailure()) return;
          }
  }
}

TEST(FaultG1OnCpu, TheListsAreTransposed) {
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const int64_t dim : {64, 192}) {
      TestProblem t = open_problem({.kv_len = {192},
                                    .q_len = {128},
                                    .head_dim = dim,
                                    .v_head_dim = dim,
                                    .dtype = dtype,
                                    .page_size = 16,
                                    .q = q_noise(1),
                                    .k = kv_noise(2),
                                    .v = kv_noise(3)});
      Rows rows(128, {0});
      std::fill(rows.begin(), rows.begin() + 64, std::vector<int32_t>{128});
      t.csr(rows).d_out(q_noise(4), dtype);
      std::vector<double> want(static_cast<size_t>(t.slots() * dim));
      for (int64_t i = 0; i < 128; ++i)
        for (int64_t d = 0; d < dim; ++d)
          want[t.in_d_v(t.slot(0, i < 64 ? 128 : 0), 0, d)] += q_noise(4)(i, 0, d);
      const Judge judge(t.problem);
      // One key has weight 1, but for the rounding of the LSE.
      everywhere(t.problem, [&](const reference::Gradients& g, const std::string& way) {
        ASSERT_EQ(differs(g.d_v, want, 0.01), "") << way;
        for (size_t i = 0; i < want.size(); ++i)
          ASSERT_TRUE(want[i] != 0 || std::fabs(g.d_v[i]) < 0.01) << way;
        ASSERT_EQ(differs(g.d_k, std::vector<double>(g.d_k.size()), 1e-3), "") << way;
        ASSERT_EQ(differs(g.d_q, std::vector<double>(g.d_q.size()), 1e-3), "") << way;
        ASSERT_EQ(judge.not_zero(g), "") << way;
      });
    }
}

TEST(FaultG2OnCpu, ATokenOfManyRowsAndHeads) {
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const int64_t heads : {1, 2}) {
      TestProblem t = open_problem(
          {.kv_len = {1}, .q_len = {1024}, .q_heads = heads, .head_dim = 2, .v_head_dim = 2, .dtype = dtype});
      t.q_pos(std::vector<int32_t>(1024, 0)).csr(Rows(1024, {0})).d_out(constant(1), dtype);
      everywhere(t.problem, [&](const reference::Gradients& g, const std::string& way) {
        ASSERT_EQ(g.d_v[t.in_d_v(t.slot(0, 0), 0, 0)], 1024.0 * static_cast<double>(heads)) << way;
      });
    }
}

TEST(FaultG3OnCpu, PaddingScattersNowhere) {
  Context context(1);
  for (const int64_t page : {0, 4})
    for (const Placement how :
         {Placement::kDense, Placement::kGaps, Placement::kSpread, Placement::kReversed})
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        TestProblem t = open_problem(
            {.kv_len = {8}, .page_size = page, .q = q_noise(1), .k = kv_noise(2), .v = kv_noise(3)});
        t.d_out(q_noise(3));
        for (const std::vector<int32_t>& row : {std::vector<int32_t>{-1}, {-1, 2, -1, 5, -1}}) {
          t.csr({row});
          const Judge judge(t.problem);
          const Saved saved(t.problem, judge.answer.output);
          const Store store{dtype, dtype, dtype, how, Before::kMinusZero};
          EXPECT_EQ(judge.complaint(all_gradients(t.problem, saved.view(), context, {}, store), store), "");
        }
      }
}

TEST(FaultG4OnCpu, AnEmptyRowGivesNobodyAnything) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    TestProblem t = open_problem(
        {.kv_len = {8}, .q_len = {2}, .dtype = dtype, .q = q_noise(1), .k = kv_noise(2), .v = kv_noise(3)});
    t.csr({{-1}, {0, 1}}).d_lse([](int64_t, int64_t) { return 0.5; });
    t.d_out(q_noise(4), dtype);
    const Judge judge(t.problem);
    // Neither its query nor its gradients are looked at.
    const auto spoilt = [](int64_t i, int64_t, int64_t d) { return i == 0 ? kNaN : q_noise(4)(i, 0, d); };
    t.d_out(spoilt, dtype).d_lse([](int64_t i, int64_t) { return i == 0 ? kNaN : 0.5; });
    for (int64_t d = 0; d < 4; ++d) t.put_q(0, 0, d, kInf);
    everywhere(t.problem, [&](const reference::Gradients& g, const std::string& way) {
      ASSERT_EQ(judge.complaint({{}, g, {}, {}}), "") << way;
    });
  }
}

TEST(FaultG5OnCpu, StronglyNegativeScores) {
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const int32_t kv : {1, 64, 65}) {
      TestProblem t = open_problem({.kv_len = {kv},
                                    .head_dim = 2,
                                    .v_head_dim = 2,
                                    .dtype = dtype,
                                    .page_size = 16,
                                    .k = [](int64_t, int64_t, int64_t, int64_t) { return -60.0; },
                                    .v = kv_noise(3)});
      t.problem.score.scale = 1;
      t.all().d_out(q_noise(4), dtype);
      const Judge judge(t.problem);
      EXPECT_NEAR(judge.answer.output.lse[0], -120 + std::log(kv), 1e-12);
      everywhere(t.problem, [&](const reference::Gradients& g, const std::string& way) {
        for (int32_t token = 0; token < kv; ++token)
          for (int64_t d = 0; d < 2; ++d)
            ASSERT_NEAR(g.d_v[t.in_d_v(t.slot(0, token), 0, d)], q_noise(4)(0, 0, d) / kv, 0.005) << way;
        if (kv == 1) {
          ASSERT_EQ(g.d_v[t.in_d_v(t.slot(0, 0), 0, 0)], q_noise(4)(0, 0, 0)) << way;
        }
        for (const double x : g.d_q) ASSERT_NEAR(x, 0, dtype == DType::kF32 ? 1e-3 : 0.5) << way;
        for (const double x : g.d_k) ASSERT_NEAR(x, 0, 0.02) << way;
      });
    }
}

TEST(FaultG6OnCpu, TheRowTermIsSubtractedOnce) {
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const int64_t dim : {128, 512}) {
      TestProblem t = open_problem(
          {.kv_len = {2},
           .head_dim = 2,
           .v_head_dim = dim,
           .dtype = dtype,
           .v = [](int64_t, int64_t token, int64_t, int64_t) { return token == 0 ? 1.0 : 0.0; }});
      t.problem.score.scale = 1;
      t.all().d_out(constant(1.0 / static_cast<double>(dim)), dtype);
      everywhere(t.problem, [&](const reference::Gradients& g, const std::string& way) {
        ASSERT_NEAR(g.d_k[t.in_d_k(t.slot(0, 0), 0, 0)], 0.25, 1e-6) << way;
        ASSERT_NEAR(g.d_k[t.in_d_k(t.slot(0, 1), 0, 0)], -0.25, 1e-6) << way;
      });
    }
}

// A selector run again chooses other tokens: its best two scores are equal, or one ulp apart the other way.
TEST(FaultG7OnCpu, BackwardReadsTheSavedSets) {
  const auto row_of = [](std::vector<float> scores) {
    ScoredList list{.entries = {0, 1, 2, 3}, .scores = std::move(scores)};
    return keep_best(list, 2);
  };
  const float x = 0.75f, more = std::nextafter(x, 1.f);
  const std::vector<int32_t> before = row_of({1, x, x, 0});
  ASSERT_EQ(before, (std::vector<int32_t>{0, 1})) << "a tie, to the lower position";
  for (const std::vector<int32_t>& after :
       {row_of({1, x, more, 0}), row_of({x, x, 1, x}), row_of({0, 0, x, more})}) {
    ASSERT_NE(after, before);
    TestProblem t = open_problem({.kv_len = {4}, .q = q_noise(1), .k = kv_noise(2), .v = kv_noise(3)});
    t.csr({before}).d_out(q_noise(4));
    const Judge judge(t.problem);
    Context context(1);
    // The forward hands its sets over.
    Guarded out(DType::kF32, {1, 1, 4}), lse(DType::kF32, {1, 1});
    IndexSet index;
    ASSERT_TRUE(forward(t.problem, {}, {out.view(), lse.view()}, context, nullptr, &index).ok());
    const Saved saved(t.problem, {out.values(), lse.values()});
    t.csr({after});
    const Result<BackwardPlan> plan = plan_backward(t.problem, index);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const RanBackward kept = run_gradients(t.problem, *plan, saved.view(), context);
    EXPECT_EQ(judge.complaint(kept), "");
    // The LSE is read too: ln 2 more of it halves the weights.
    reference::Output other{out.values(), lse.values()};
    other.lse[0] += std::log(2.0);
    const RanBackward half = run_gradients(t.problem, *plan, Saved(t.problem, other).view(), context);
    for (size_t i = 0; i < half.got.d_v.size(); ++i) EXPECT_NEAR(half.got.d_v[i], kept.got.d_v[i] / 2, 1e-6);
  }
}

// V has a dimension for each token, so the forward shows what it kept, and dV what backward did.
TEST(FaultG8OnCpu, DropoutBelongsToTheEdge) {
  constexpr int64_t kv = 80;
  const auto with = [&](const Rows& rows, const Dropout& dropout, int64_t page, DType dtype) {
    TestProblem t = open_problem(
        {.kv_len = {kv},
         .q_len = {9},
         .q_heads = 3,
         .v_head_dim = kv,
         .dtype = dtype,
         .page_size = page,
         .q = q_noise(1),
         .k = kv_noise(2),
         .v = [](int64_t, int64_t token, int64_t, int64_t d) { return token == d ? 1.0 : 0.0; }});
    t.problem.candidates.query_block = 9;
    t.problem.dropout = dropout;
    t.csr(rows).d_out(constant(1), dtype);
    return t;
  };
  Rows listed{{}}, shuffled{{-1}};
  for (int32_t token = 0; token < kv; token += 1 + token % 3 / 2) listed[0].push_back(token);
  for (auto it = listed[0].rbegin(); it != listed[0].rend(); ++it)
    shuffled[0].insert(shuffled[0].end(), {*it, *it, -1});
  const Dropout half{0.5, 11};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const TestProblem first = with(listed, half, 4, dtype);
    const reference::Answer want = answer(first.problem);
    std::vector<double> kept(kv), lse = want.output.lse;
    for (size_t i = 0; i < want.output.out.size(); ++i) kept[i % kv] += want.output.out[i];
    for (const std::string& isa : tested_isas())
      for (const int threads : {1, 3}) {
        Context context(threads);
        ASSERT_TRUE(context.use_isa(isa).ok());
        for (const Rows& rows : {listed, shuffled})
          for (const int64_t page : {0, 1, 16, 64})
            for (const int32_t splits : {1, 3}) {
              TestProblem t = with(rows, half, page, dtype);
              const ForwardOptions o{.normalize = {.block = page == 1 ? 16 : 32}, .plan = {.splits = splits}};
              const Ran ran = run_all(t.problem, o, context);
              ASSERT_TRUE(ran.status.ok());
              for (size_t i = 0; i < ran.out.size(); ++i)
                ASSERT_EQ(ran.out[i] == 0, want.output.out[i] == 0) << isa << " " << i;
              ASSERT_EQ(differs(ran.lse, lse, 1e-5), "") << "LSE does not depend on dropout";
              const Saved saved(t.problem, {ran.out, ran.lse});
              const RanBackward g = all_gradients(t.problem, saved.view(), context, {.slab_bytes = splits},
                                                  {}, {.block = o.normalize.block});
              ASSERT_TRUE(g.status.ok());
              for (int64_t token = 0; token < kv; ++token)
                ASSERT_NEAR(g.got.d_v[t.in_d_v(t.slot(0, token), 0, 0)], kept[token], 0.02) << isa;
            }
      }
    Context context(2);
    const TestProblem none = with(listed, {}, 4, dtype), zero = with(listed, {0, 11}, 4, dtype);
    EXPECT_EQ(unlike(run_all(none.problem, {}, context), run_all(zero.problem, {}, context)), "");
    const Saved saved(none.problem, answer(none.problem).output);
    EXPECT_EQ(unlike(all_gradients(none.problem, saved.view(), context),
                     all_gradients(zero.problem, saved.view(), context)),
              "");
  }
  for (const double p : {-0.1, 1.0, 1.5, kNaN, kInf}) {
    const TestProblem t = with(listed, {p, 1}, 4, DType::kF32);
    EXPECT_EQ(plan_gradients(t.problem).status().code(), Code::kInvalidArgument) << p;
  }
}

}  // namespace
}  // namespace tamis
