// What was not made for each other does not run together: an index set with another problem's masks or sizes,
// a schedule with memory that no normalize has filled.
#include <gtest/gtest.h>

#include "cuda/steps.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

class CudaMarks : public OnDevice {
 protected:
  static TestProblem problem(std::vector<int32_t> q_len = {1, 1, 1}) {
    TestProblem t({.kv_len = {300, 40, 90},
                   .q_len = q_len,
                   .q_heads = 4,
                   .kv_heads = 2,
                   .head_dim = 64,
                   .v_head_dim = 64,
                   .dtype = DType::kBF16,
                   .page_size = 16,
                   .q = q_noise(1),
                   .k = kv_noise(2),
                   .v = kv_noise(3)});
    t.problem.candidates.index_heads = 2;
    t.problem.candidates.unit = 16;
    int64_t queries = 0;
    for (const int32_t n : q_len) queries += n;
    t.fixed(Rows(static_cast<size_t>(queries * 2), {0, 1, 2, 1}));
    return t;
  }

  static void expect_stale(const DeviceStep& step, const Problem& run) {
    DeviceOut out(run, DType::kF32, Placement::kDense, Before::kMinusZero);
    DeviceCounters counters;
    ASSERT_TRUE(cuda::run(step.plan, run, out.view(), step.buffers(), nullptr, counters.get()).ok());
    const Status verdict = cuda::poll(step.plan, step.buffers(), nullptr);
    EXPECT_STREQ(code_name(verdict.code()), "stale_plan") << verdict.message();
    out.get();
    EXPECT_TRUE(all_nan(out.out()));
    EXPECT_TRUE(all_nan(out.lse()));
    EXPECT_TRUE(out.fences_stand());
  }
};

TEST_F(CudaMarks, ScheduledWithoutNormalize) {
  const TestProblem t = problem();
  const DeviceProblem device(t.problem);
  for (const int fill : {0x00, 0xFF, 0x5A}) {
    const std::unique_ptr<DeviceStep> step = planned(t.problem);
    cuda_ok(cudaMemset(step->index.data(), fill, static_cast<size_t>(step->plan.bytes.index)));
    ASSERT_TRUE(cuda::schedule(step->plan, step->buffers(), nullptr).ok());
    expect_stale(*step, device.problem);
  }
}

TEST_F(CudaMarks, AnotherMask) {
  const TestProblem t = problem();
  const DeviceProblem device(t.problem);
  const std::unique_ptr<DeviceStep> step = planned(t.problem);
  for (const Mask mask : {Mask{.causal = false}, Mask{.window = 64}, Mask{.sink = 1}}) {
    ASSERT_TRUE(cuda::normalize(step->plan, device.problem, step->buffers(), nullptr).ok());
    ASSERT_TRUE(cuda::schedule(step->plan, step->buffers(), nullptr).ok());
    Problem other = device.problem;
    other.mask = mask;
    expect_stale(*step, other);
  }
}

TEST_F(CudaMarks, APoolOfFewerPages) {
  const TestProblem t = problem();
  const DeviceProblem device(t.problem);
  const std::unique_ptr<DeviceStep> step = planned(t.problem);
  ASSERT_TRUE(cuda::normalize(step->plan, device.problem, step->buffers(), nullptr).ok());
  ASSERT_TRUE(cuda::schedule(step->plan, step->buffers(), nullptr).ok());
  Problem fewer = device.problem;
  fewer.cache.k.shape[0] = fewer.cache.v.shape[0] = 1;
  DeviceOut out(t.problem, DType::kF32, Placement::kDense, Before::kMinusZero);
  ASSERT_TRUE(cuda::run(step->plan, fewer, out.view(), step->buffers(), nullptr).ok());
  EXPECT_STREQ(code_name(cuda::poll(step->plan, step->buffers(), nullptr).code()), "stale_plan");
  out.get();
  EXPECT_TRUE(all_nan(out.out()));
}

TEST_F(CudaMarks, FewerQueriesThanTheIndexSetHas) {
  const TestProblem t = problem(), fewer = problem({1, 0, 1});
  const DeviceProblem device(t.problem), device_fewer(fewer.problem);
  const std::unique_ptr<DeviceStep> step = planned(t.problem);
  ASSERT_TRUE(cuda::normalize(step->plan, device.problem, step->buffers(), nullptr).ok());
  ASSERT_TRUE(cuda::schedule(step->plan, step->buffers(), nullptr).ok());
  expect_stale(*step, device_fewer.problem);
}

TEST_F(CudaMarks, AScheduleOfAnotherTier) {
  const TestProblem t = problem();
  const DeviceProblem device(t.problem);
  const std::unique_ptr<DeviceStep> large = planned(t.problem);
  const std::unique_ptr<DeviceStep> small = planned(t.problem, {.row_entries = 3});
  ASSERT_LT(small->plan.plan.capacities.row_entries, large->plan.plan.capacities.row_entries);
  ASSERT_TRUE(cuda::normalize(large->plan, device.problem, large->buffers(), nullptr).ok());
  ASSERT_TRUE(cuda::schedule(small->plan, large->buffers(), nullptr).ok());
  EXPECT_STREQ(code_name(cuda::poll(small->plan, large->buffers(), nullptr).code()), "stale_plan");
}

// A smaller step in the place of a larger one: rows that its tensors do not have are not looked for.
TEST_F(CudaMarks, FewerRowsThanThePlan) {
  const TestProblem t = problem({4, 3, 1}), fewer = problem({1, 0, 0});
  const DeviceProblem device(fewer.problem);
  const Wanted want = wanted(fewer.problem);
  const std::unique_ptr<DeviceStep> step = planned(t.problem);
  DeviceOut out(fewer.problem);
  ASSERT_TRUE(cuda::step(step->plan, device.problem, out.view(), step->buffers(), nullptr).ok());
  const Status verdict = cuda::poll(step->plan, step->buffers(), nullptr);
  ASSERT_TRUE(verdict.ok()) << verdict.message();
  out.get();
  EXPECT_EQ(differs(out.out(), want.answer.output.out, want.tolerance.out), "");
  EXPECT_TRUE(out.fences_stand() && device.fences_stand());
}

TEST_F(CudaMarks, MemoryIsMissing) {
  const TestProblem t = problem();
  const DeviceProblem device(t.problem);
  const std::unique_ptr<DeviceStep> step = planned(t.problem);
  Problem p = device.problem;
  p.query.cu_q.data = nullptr;
  EXPECT_EQ(cuda::normalize(step->plan, p, step->buffers(), nullptr).code(), Code::kInvalidArgument);
  p = device.problem;
  p.cache.page_table.data = nullptr;
  EXPECT_EQ(cuda::normalize(step->plan, p, step->buffers(), nullptr).code(), Code::kInvalidArgument);
  p = device.problem;
  p.candidates.indices.data = nullptr;
  EXPECT_EQ(cuda::normalize(step->plan, p, step->buffers(), nullptr).code(), Code::kInvalidArgument);
}

// No rows for queries that are there.
TEST_F(CudaMarks, NoRows) {
  TestProblem t = problem();
  t.problem.candidates.indices.shape[0] = 0;
  EXPECT_EQ(cuda::plan_step(t.problem).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace tamis
