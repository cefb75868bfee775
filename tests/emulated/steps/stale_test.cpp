// What run() refuses as stale, followed on the host: buffers that another set has used, and problems that the
// index set was not made for.
#include "emulated/steps/set.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

TestProblem pages_of(const std::vector<int32_t>& pages) {
  TestProblem t(small_spec(64, {320}, {1}));
  t.problem.candidates.unit = 16;
  t.fixed({pages});
  return t;
}

class EmulatedStale : public ::testing::TestWithParam<cuda::Engine> {
 protected:
  static cuda::StepPlan planned(const TestProblem& t) {
    const Result<cuda::StepPlan> plan = cuda::plan_step(t.problem, {.engine = GetParam()});
    if (!plan.ok()) throw std::runtime_error(plan.status().message());
    return *plan;
  }
};

// Two sets of lists of one plan, which have as many steps behind them.
TEST_P(EmulatedStale, ScratchOfTwoSets) {
  const TestProblem one = pages_of({15, 16, 17, 18}), other = pages_of({0, 1, -1, -1});
  const cuda::StepPlan plan = planned(one);
  for (const bool swapped : {false, true}) {
    Set a(plan), b(plan);
    b.buffers.scratch = a.buffers.scratch;
    Set &first = swapped ? b : a, &last = swapped ? a : b;
    first.prepare(one.problem);
    EXPECT_TRUE(first.runs(one.problem));
    last.prepare(other.problem);
    EXPECT_TRUE(last.runs(other.problem));
    EXPECT_FALSE(first.runs(one.problem)) << "the tasks are those of the other set";
    EXPECT_TRUE(last.runs(other.problem));
    first.prepare(one.problem);
    EXPECT_TRUE(first.runs(one.problem)) << "a whole step heals it";
    EXPECT_FALSE(last.runs(other.problem));
  }
}

TEST_P(EmulatedStale, IndexOfTwoSets) {
  const TestProblem one = pages_of({15, 16, 17, 18}), other = pages_of({0, 1, -1, -1});
  const cuda::StepPlan plan = planned(one);
  for (const bool swapped : {false, true}) {
    Set a(plan), b(plan);
    b.buffers.index = a.buffers.index;
    Set &first = swapped ? b : a, &last = swapped ? a : b;
    first.prepare(one.problem);
    EXPECT_TRUE(first.runs(one.problem));
    last.prepare(other.problem);
    EXPECT_FALSE(first.runs(one.problem));
    EXPECT_TRUE(last.runs(other.problem));
  }
}

// Another layer's pool, of fewer pages than those that were judged.
TEST_P(EmulatedStale, APoolOfFewerPages) {
  const TestProblem t = pages_of({0, 5, 19, -1});
  const cuda::StepPlan plan = planned(t);
  Set set(plan);
  set.prepare(t.problem);
  Problem fewer = t.problem;
  fewer.cache.k.shape[0] = fewer.cache.v.shape[0] = 1;
  EXPECT_FALSE(set.runs(fewer));
}

INSTANTIATE_TEST_SUITE_P(, EmulatedStale, ::testing::Values(cuda::Engine::kDecode, cuda::Engine::kPrefill),
                         [](const auto& engine) { return std::string(cuda::engine_name(engine.param)); });

}  // namespace
}  // namespace tamis
