// plan_step(): what can be said of a device step without a device.
#include <gtest/gtest.h>

#include "cuda/steps.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

TestProblem decode(int64_t requests, int64_t query_block = 1) {
  TestProblem t(
      {.kv_len = std::vector<int32_t>(static_cast<size_t>(requests), 4096),
       .q_len = std::vector<int32_t>(static_cast<size_t>(requests), static_cast<int32_t>(query_block)),
       .q_heads = 8,
       .kv_heads = 2,
       .head_dim = 64,
       .v_head_dim = 64,
       .dtype = DType::kBF16,
       .page_size = 16,
       .k = [](auto...) { return 0.0; },
       .v = [](auto...) { return 0.0; }});
  t.problem.candidates.unit = 16;
  t.problem.candidates.index_heads = 2;
  t.problem.candidates.query_block = query_block;
  Rows rows(static_cast<size_t>(requests * 2));
  for (auto& row : rows)
    for (int32_t e = 0; e < 256; ++e) row.push_back(e);
  t.fixed(rows);
  return t;
}

TEST(StepPlan, TheBudgetIsOfScratch) {
  const TestProblem t = decode(4, 16);
  cuda::StepOptions free;
  free.plan.splits = 8;
  const Result<cuda::StepPlan> all = cuda::plan_step(t.problem, free);
  ASSERT_TRUE(all.ok()) << all.status().message();
  for (const int64_t share : {2, 3, 5, 100}) {
    cuda::StepOptions o = free;
    o.plan.workspace_budget = all->bytes.scratch / share;
    const Result<cuda::StepPlan> less = cuda::plan_step(t.problem, o);
    ASSERT_TRUE(less.ok()) << less.status().message();
    EXPECT_TRUE(less->bytes.scratch <= o.plan.workspace_budget || less->parts == 0) << "share " << share;
    EXPECT_LT(less->plan.splits, 8);
    EXPECT_NE(less->plan.reason.find("budget"), std::string::npos);
    o.plan.fallback = Fallback::kRefuse;
    EXPECT_EQ(cuda::plan_step(t.problem, o).status().code(), Code::kWorkspaceTooSmall);
  }
  free.plan.workspace_budget = all->bytes.scratch;
  EXPECT_EQ(cuda::plan_step(t.problem, free)->plan.splits, 8) << "just enough";
}

TEST(StepPlan, TheBudgetOfBalancedAndInvariantPlans) {
  const TestProblem t = decode(4, 16);
  for (const bool invariant : {false, true}) {
    cuda::StepOptions o;
    o.plan.batch_invariant = invariant;
    const Result<cuda::StepPlan> all = cuda::plan_step(t.problem, o);
    ASSERT_TRUE(all.ok());
    ASSERT_GT(all->parts, 0);
    o.plan.workspace_budget = all->bytes.scratch / 4;
    const Result<cuda::StepPlan> less = cuda::plan_step(t.problem, o);
    ASSERT_TRUE(less.ok());
    EXPECT_TRUE(less->bytes.scratch <= o.plan.workspace_budget || less->parts == 0);
    EXPECT_LT(less->parts, all->parts);
  }
}

TEST(StepPlan, RowsMustFitTheIndexHeads) {
  TestProblem t = decode(2);
  t.problem.candidates.indices.shape[0] = 3;
  EXPECT_EQ(cuda::plan_step(t.problem).status().code(), Code::kInvalidArgument);
  t.problem.candidates.indices.shape[0] = 0;
  EXPECT_EQ(cuda::plan_step(t.problem).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace tamis
