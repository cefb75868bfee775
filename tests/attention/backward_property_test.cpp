// Gradients of random problems, run in random ways, against the float64 reference; every slot that no set
// uses is poisoned.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "attention/backward_runs.h"
#include "attention/draw.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

class BackwardProperty : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    for (const int threads : {1, 2}) {
      contexts_.emplace_back(threads);
      ASSERT_TRUE(contexts_.back().use_isa(GetParam()).ok());
    }
  }
  std::vector<Context> contexts_;
};

DType draw_dtype() { return *rc::gen::element(DType::kF32, DType::kF32, DType::kF16, DType::kBF16); }

Store draw_store() {
  return {draw_dtype(), draw_dtype(), draw_dtype(),
          *rc::gen::element(Placement::kDense, Placement::kGaps, Placement::kSpread, Placement::kReversed),
          *rc::gen::element(Before::kPoison, Before::kMinusZero)};
}

TEST_P(BackwardProperty, TheReferenceAgrees) {
  EXPECT_TRUE(rc::check("gradients", [this] {
    TestProblem t = draw_problem();
    t.d_out(q_noise(21), pick(0, 3) == 0 ? DType::kF32 : t.problem.query.q.dtype);
    if (pick(0, 1) == 0) t.d_lse([](int64_t i, int64_t h) { return noise(22, i, h, 0); });
    const Result<reference::Sets> sets = reference::build_sets(t.problem);
    RC_ASSERT(sets.ok());
    t.poison_outside(*sets, *rc::gen::element(kNaN, kInf, -kInf, 6e4));
    const Judge judge(t.problem, draw_dtype());
    const Saved saved(t.problem, judge.answer.output, judge.out_dtype,
                      *rc::gen::element(Placement::kDense, Placement::kGaps, Placement::kReversed));
    for (int way = 0; way < 2; ++way) {
      ForwardOptions drawn = draw_options();
      drawn.normalize.all_blocks = pick(0, 3) == 0;  // as a forward on the dense path leaves it
      const BackwardOptions options{.bundle = drawn.bundle,
                                    .slab_bytes = *rc::gen::element<int64_t>(1, 5000, 100000, 32 << 20)};
      const Store store = draw_store();
      const SavedForward forward = pick(0, 1) == 0 ? saved.view() : saved.without_out();
      const Result<PlannedBackward> made = plan_gradients(t.problem, options, drawn.normalize);
      RC_ASSERT(made.ok());
      const RanBackward one = run_gradients(t.problem, made->plan, forward, contexts_[0], store);
      const RanBackward two = run_gradients(t.problem, made->plan, forward, contexts_[1], store);
      RC_ASSERT(judge.complaint(one, store) == "");
      RC_ASSERT(unlike(one, two) == "");
    }
  }));
}

INSTANTIATE_TEST_SUITE_P(Each, BackwardProperty, ::testing::ValuesIn(tested_isas()),
                         [](const auto& isa) { return isa.param; });

}  // namespace
}  // namespace tamis
