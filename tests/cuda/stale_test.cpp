// Steps that do not belong together, buffers that are too small, and slots that were given away.
#include <gtest/gtest.h>

#include "cuda/steps.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

class CudaStale : public OnDevice {
 protected:
  static TestProblem problem(int64_t head_dim = 64) {
    TestProblem t({.kv_len = {300, 40, 90},
                   .q_len = {3, 0, 2},
                   .q_heads = 4,
                   .kv_heads = 2,
                   .head_dim = head_dim,
                   .v_head_dim = 64,
                   .dtype = DType::kBF16,
                   .page_size = 16,
                   .q = q_noise(1),
                   .k = kv_noise(2),
                   .v = kv_noise(3)});
    t.all();
    return t;
  }
  static cuda::StepOptions split() {
    cuda::StepOptions o;
    o.plan.splits = 3;
    return o;
  }

  // Runs the attention alone, into outputs of -0.0, which is neither NaN nor any answer.
  static DeviceRan run_alone(const DeviceStep& step, const DeviceProblem& p) {
    DeviceStream stream;
    DeviceOut out(p.problem, DType::kF32, Placement::kGaps, Before::kMinusZero);
    DeviceCounters counters;
    const Status s = cuda::run(step.plan, p.problem, out.view(), step.buffers(), stream, counters.get());
    EXPECT_TRUE(s.ok()) << "what the host can see is in order: " << s.message();
    return result_of(step, p, out, counters, stream);
  }
  static void prepare(const DeviceStep& step, const DeviceProblem& p) {
    ASSERT_TRUE(cuda::normalize(step.plan, p.problem, step.buffers(), nullptr).ok());
    ASSERT_TRUE(cuda::schedule(step.plan, step.buffers(), nullptr).ok());
    cuda_ok(cudaDeviceSynchronize());
  }
  static void expect_stale(const DeviceRan& r) {
    EXPECT_STREQ(code_name(r.status.code()), "stale_plan") << r.status.message();
    EXPECT_TRUE(all_nan(r.out));
    EXPECT_TRUE(all_nan(r.lse));
    EXPECT_EQ(r.damage, "");
    EXPECT_EQ(r.device.tokens_loaded, 0u);
  }
};

TEST_F(CudaStale, NeverScheduled) {
  const TestProblem t = problem();
  const std::unique_ptr<DeviceStep> step = planned(t.problem, split());
  const DeviceProblem device(t.problem);
  expect_stale(run_alone(*step, device));
  ASSERT_TRUE(cuda::normalize(step->plan, device.problem, step->buffers(), nullptr).ok());
  cuda_ok(cudaDeviceSynchronize());
  expect_stale(run_alone(*step, device));
}

TEST_F(CudaStale, NormalizedAgainButNotScheduled) {
  const TestProblem t = problem();
  const std::unique_ptr<DeviceStep> step = planned(t.problem, split());
  const DeviceProblem device(t.problem);
  prepare(*step, device);
  ASSERT_TRUE(cuda::normalize(step->plan, device.problem, step->buffers(), nullptr).ok());
  cuda_ok(cudaDeviceSynchronize());
  expect_stale(run_alone(*step, device));
}

TEST_F(CudaStale, OneScheduleServesManyRuns) {
  const TestProblem t = problem();
  const Wanted want = wanted(t.problem);
  const std::unique_ptr<DeviceStep> step = planned(t.problem, split());
  const DeviceProblem device(t.problem);
  prepare(*step, device);
  const DeviceRan first = run_alone(*step, device);
  ASSERT_EQ(complaint(first, want.answer, want.tolerance), "");
  for (int layer = 0; layer < 3; ++layer) EXPECT_EQ(unlike(run_alone(*step, device), first), "");
}

TEST_F(CudaStale, AnotherPlanUsedTheScratch) {
  const TestProblem t = problem(), other = problem(128);
  cuda::StepOptions more = split();
  more.plan.splits = 8;
  const std::unique_ptr<DeviceStep> a = planned(t.problem, split()), b = planned(other.problem, more);
  const DeviceProblem device(t.problem), device_b(other.problem);
  DeviceBuffer shared(std::max(a->plan.bytes.scratch, b->plan.bytes.scratch));
  cuda::StepBuffers of_a = a->buffers(), of_b = b->buffers();
  of_a.scratch = of_b.scratch = shared.data();
  of_a.bytes.scratch = of_b.bytes.scratch = shared.bytes();
  DeviceOut out(t.problem, DType::kF32, Placement::kDense, Before::kMinusZero);
  DeviceOut out_b(other.problem);
  ASSERT_TRUE(cuda::normalize(a->plan, device.problem, of_a, nullptr).ok());
  ASSERT_TRUE(cuda::schedule(a->plan, of_a, nullptr).ok());
  ASSERT_TRUE(cuda::step(b->plan, device_b.problem, out_b.view(), of_b, nullptr).ok());
  ASSERT_TRUE(cuda::run(a->plan, device.problem, out.view(), of_a, nullptr).ok());
  EXPECT_STREQ(code_name(cuda::poll(a->plan, of_a, nullptr).code()), "stale_plan");
  EXPECT_TRUE(cuda::poll(b->plan, of_b, nullptr).ok()) << "the other one is in order";
  out.get();
  EXPECT_TRUE(all_nan(out.out()));
  EXPECT_TRUE(all_nan(out.lse()));
  out_b.get();
  const Wanted want = wanted(other.problem);
  EXPECT_EQ(differs(out_b.out(), want.answer.output.out, want.tolerance.out), "");
  EXPECT_TRUE(shared.fences_stand());
}

// One plan, two sets of lists with a control and an index each, and as many steps behind each of them.
TEST_F(CudaStale, AnotherSetUsedTheScratch) {
  const TestProblem t = problem();
  TestProblem other = problem();
  other.problem.mask.window = 32;
  const Wanted want = wanted(t.problem), want_other = wanted(other.problem);
  const std::unique_ptr<DeviceStep> a = planned(t.problem, split()), b = planned(t.problem, split());
  const DeviceProblem device(t.problem), device_other(other.problem);
  for (const bool swapped : {false, true}) {
    a->clear();
    b->clear();
    cuda::StepBuffers of_a = a->buffers(), of_b = b->buffers();
    of_b.scratch = of_a.scratch;
    const cuda::StepBuffers &first = swapped ? of_b : of_a, &last = swapped ? of_a : of_b;
    ASSERT_TRUE(cuda::normalize(a->plan, device.problem, first, nullptr).ok());
    ASSERT_TRUE(cuda::schedule(a->plan, first, nullptr).ok());
    DeviceOut out(t.problem, DType::kF32, Placement::kDense, Before::kMinusZero), out_last(other.problem);
    ASSERT_TRUE(cuda::step(a->plan, device_other.problem, out_last.view(), last, nullptr).ok());
    ASSERT_TRUE(cuda::run(a->plan, device.problem, out.view(), first, nullptr).ok());
    EXPECT_STREQ(code_name(cuda::poll(a->plan, first, nullptr).code()), "stale_plan");
    EXPECT_TRUE(cuda::poll(a->plan, last, nullptr).ok());
    out.get();
    EXPECT_TRUE(all_nan(out.out()));
    EXPECT_TRUE(all_nan(out.lse()));
    out_last.get();
    EXPECT_EQ(differs(out_last.out(), want_other.answer.output.out, want_other.tolerance.out), "");
    DeviceOut healed(t.problem);
    ASSERT_TRUE(cuda::step(a->plan, device.problem, healed.view(), first, nullptr).ok());
    EXPECT_TRUE(cuda::poll(a->plan, first, nullptr).ok());
    healed.get();
    EXPECT_EQ(differs(healed.out(), want.answer.output.out, want.tolerance.out), "");
  }
}

TEST_F(CudaStale, BuffersWereOverwritten) {
  const TestProblem t = problem();
  const Wanted want = wanted(t.problem);
  const std::unique_ptr<DeviceStep> step = planned(t.problem, split());
  const DeviceProblem device(t.problem);
  for (DeviceBuffer* buffer : {&step->scratch, &step->index})
    for (const int byte : {0xFF, 0}) {
      prepare(*step, device);
      buffer->fill(byte);
      expect_stale(run_alone(*step, device));
      EXPECT_EQ(complaint(run_step(*step, device), want.answer, want.tolerance), "")
          << "a whole step heals it";
    }
  prepare(*step, device);
  step->clear();
  expect_stale(run_alone(*step, device));
}

// What the host can see is refused by the host, and nothing is written.
TEST_F(CudaStale, AnotherProblem) {
  const TestProblem t = problem(), other = problem(128);
  const std::unique_ptr<DeviceStep> step = planned(t.problem);
  const DeviceProblem device(other.problem);
  DeviceOut out(other.problem);
  EXPECT_EQ(cuda::run(step->plan, device.problem, out.view(), step->buffers(), nullptr).code(),
            Code::kStalePlan);
  EXPECT_EQ(cuda::step(step->plan, device.problem, out.view(), step->buffers(), nullptr).code(),
            Code::kStalePlan);
  cuda_ok(cudaDeviceSynchronize());
  out.get();
  EXPECT_TRUE(out.untouched());
}

TEST_F(CudaStale, EpiloguesAreRefusedByName) {
  const TestProblem t = problem();
  const std::unique_ptr<DeviceStep> step = planned(t.problem);
  const DeviceProblem device(t.problem);
  DeviceOut out(t.problem);
  OutView view = out.view();
  view.epilogue.scale = 2;
  const Status s = cuda::step(step->plan, device.problem, view, step->buffers(), nullptr);
  EXPECT_EQ(s.code(), Code::kUnsupported);
  EXPECT_TRUE(says(s, "scale") || says(s, "epilogue"));
}

TEST_F(CudaStale, OneByteLessIsTooSmall) {
  const TestProblem t = problem();
  const std::unique_ptr<DeviceStep> step = planned(t.problem, split());
  const DeviceProblem device(t.problem);
  DeviceOut out(t.problem);
  for (int which = 0; which < 3; ++which) {
    cuda::StepBuffers less = step->buffers();
    int64_t* bytes[] = {&less.bytes.control, &less.bytes.index, &less.bytes.scratch};
    const int64_t need = *bytes[which];
    *bytes[which] = need - 1;
    const Status s = cuda::step(step->plan, device.problem, out.view(), less, nullptr);
    EXPECT_STREQ(code_name(s.code()), "workspace_too_small");
    EXPECT_TRUE(says(s, std::to_string(need)));
  }
  cuda::StepBuffers crooked = step->buffers();
  crooked.scratch = step->scratch.data() + 64;
  EXPECT_EQ(cuda::step(step->plan, device.problem, out.view(), crooked, nullptr).code(),
            Code::kInvalidArgument);
  cuda_ok(cudaDeviceSynchronize());
  out.get();
  EXPECT_TRUE(out.untouched());
}

// Slots of the three requests, the middle one without queries.
struct Slots {
  std::vector<int32_t> slot{2, 0, 5};
  std::vector<uint32_t> generation{7, 1, 0xFFFFFFFFu}, live{1, 99, 7, 99, 99, 0xFFFFFFFFu};
};

void expect_kept(const Problem& p, const Slots& slots, const std::vector<int64_t>& kept, int32_t splits) {
  cuda::StepOptions o;
  o.plan.splits = splits;
  const std::unique_ptr<DeviceStep> step = planned(p, o);
  const DeviceProblem device(p);
  SlotView view{.slot = dense_view(slots.slot.data(), DType::kI32, {3}),
                .generation = dense_view(slots.generation.data(), DType::kU32, {3}),
                .live_generation = dense_view(slots.live.data(), DType::kU32, {6})};
  const DeviceTensors on_device({&view.slot, &view.generation, &view.live_generation});
  DeviceOut out(p, DType::kF32, Placement::kDense, Before::kMinusZero);
  DeviceCounters counters;
  OutView to = out.view();
  to.slots = view;
  ASSERT_TRUE(cuda::step(step->plan, device.problem, to, step->buffers(), nullptr, counters.get()).ok());
  const DeviceRan r = result_of(*step, device, out, counters, nullptr);
  const DeviceRan free = run_step(*step, device);
  ASSERT_TRUE(r.status.ok()) << r.status.message();
  EXPECT_EQ(r.damage, "");
  EXPECT_TRUE(on_device.fences_stand());
  const Result<Shape> shape = describe(p);
  EXPECT_EQ(static_cast<int64_t>(r.device.stale_rows), static_cast<int64_t>(kept.size()) * shape->q_heads);
  const auto expect_rows = [&](const std::vector<double>& got, const std::vector<double>& whole) {
    const size_t row = whole.size() / static_cast<size_t>(shape->total_q);
    for (size_t i = 0; i < whole.size(); ++i) {
      const bool is_kept = std::find(kept.begin(), kept.end(), static_cast<int64_t>(i / row)) != kept.end();
      const double want = is_kept ? -0.0 : whole[i];
      ASSERT_TRUE(std::memcmp(&got[i], &want, sizeof want) == 0) << i << ": " << got[i] << ", not " << want;
    }
  };
  expect_rows(r.out, free.out);
  expect_rows(r.lse, free.lse);
}

TEST_F(CudaStale, RowsOfReusedSlotsKeepTheirBytes) {
  const TestProblem t = problem();
  for (const int32_t splits : {1, 3}) {
    expect_kept(t.problem, {}, {}, splits);
    Slots first;
    first.live[2] = 8;
    expect_kept(t.problem, first, {0, 1, 2}, splits);
    Slots last;
    last.live[5] = 0;  // the count went round
    expect_kept(t.problem, last, {3, 4}, splits);
    Slots without;
    without.slot[0] = -1;
    without.live[2] = without.live[5] = 3;
    expect_kept(t.problem, without, {3, 4}, splits);
  }
}

}  // namespace
}  // namespace tamis
