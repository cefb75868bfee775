// The decode kernel's own code on the host, where copies know what alignment is.
#include "emulated/steps/set.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

TEST(EmulatedDecode, TheReferenceAgrees) {
  for (const cuda::Load load : {cuda::Load::kBlocks, cuda::Load::kTokens})
    for (const cuda::Ring ring : {cuda::Ring::kFull, cuda::Ring::kShort}) {
      TestProblem t(small_spec(64, {70, 33}, {1, 1}));
      t.problem.candidates.unit = 16;
      t.fixed({{0, 3, 4}, {1, 2, 0}});
      const cuda::StepPlan plan = *cuda::plan_step(t.problem, {.load = load, .ring = ring});
      Set set(plan);
      set.prepare(t.problem);
      EXPECT_TRUE(set.runs(t.problem)) << cuda::load_name(load) << ", " << cuda::ring_name(ring);
    }
}

// One row a cache may have whatever stride: no copy may follow it.
TEST(EmulatedDecode, TheStrideOfASingleRow) {
  for (const cuda::Engine engine : {cuda::Engine::kDecode, cuda::Engine::kPrefill})
    for (const cuda::Load load : {cuda::Load::kBlocks, cuda::Load::kTokens}) {
      Spec s = small_spec(64, {1}, {1});
      s.page_size = 0;
      s.slack = 0;
      TestProblem t(s);
      t.all();
      ASSERT_EQ(t.problem.cache.k.shape[0], 1);
      t.problem.cache.k.stride[0] = 65;
      t.problem.cache.v.stride[0] = 67;
      const Result<cuda::StepPlan> plan = cuda::plan_step(t.problem, {.load = load, .engine = engine});
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      Set set(*plan);
      set.prepare(t.problem);
      EXPECT_TRUE(set.runs(t.problem)) << cuda::engine_name(engine) << ", " << cuda::load_name(load);
    }
}

}  // namespace
}  // namespace tamis
