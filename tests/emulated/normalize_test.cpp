// The device's way to an index set, followed on the host: the same blocks, words, places and counts as the
// host's own way. Runs where there is no device; what only a device can show (races, memory order) is
// tests/cuda's.
#include <gtest/gtest.h>

#include "cuda/draw.h"
#include "emulated/follow.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

TEST(EmulatedNormalize, GivesTheIndexSetOfTheHost) {
  int64_t plain = 0, lists = 0, all = 0, own = 0;
  for (int64_t number = first_problem(); number < first_problem() + 6 * problems(); ++number) {
    Dice d(number);
    const TestProblem t = draw_problem(d, false);
    const cuda::StepOptions o = draw_options(d);
    const Problem& p = t.problem;
    if (p.candidates.form == CandidateForm::kAll) continue;  // no list
    SCOPED_TRACE(::testing::Message() << "TAMIS_CUDA_FIRST=" << number);
    const Result<cuda::StepPlan> plan = cuda::plan_step(p, o);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const Emulated e(p, *plan);
    expect_like_host(e, p);
    if (HasFailure()) return;
    if (!e.verdict().ok()) continue;
    plain += e.plain;
    lists += e.index.lists > 1;
    all += plan->plan.path == Path::kDense;
    own += plan->places.an_entry > 0;
  }
  // The instances that matter were all met.
  EXPECT_GT(plain, 0);
  EXPECT_GT(lists, 0);
  EXPECT_GT(all, 0);
  EXPECT_GT(own, 0);
}

}  // namespace
}  // namespace tamis
