// fetch() of buffers that lie on the host: what a step leaves comes back, and of anything else nothing is
// read by numbers that no step wrote. The linker puts the functions below in the runtime's place
// (tests/CMakeLists.txt names them).
#include <cuda_runtime_api.h>

#include "emulated/steps/set.h"

namespace {

// What is answered to whoever asks for a capture.
cudaError_t asked = cudaSuccess;
cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;

}  // namespace

extern "C" {

cudaError_t __wrap_cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t __wrap_cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t __wrap_cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = capture;
  return asked;
}
}

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

class EmulatedFetch : public ::testing::Test {
 protected:
  EmulatedFetch() : made_(small_spec(64)), plan_(planned(&made_)), set_(plan_), buffers_(set_.buffers) {}
  static cuda::StepPlan planned(TestProblem* t) {
    t->problem.candidates.unit = 16;
    t->problem.candidates.query_block = 16;
    t->problem.candidates.index_heads = 2;
    t->fixed({{4, 5}, {4, 0}, {1, 2}, {6, 7}, {3, 9}, {2, 8}, {1, 0}, {2, 3}});
    return *cuda::plan_step(t->problem);
  }
  void step() { set_.prepare(made_.problem); }
  void expect_stale(const cuda::StepPlan& plan) const {
    const Status status = cuda::fetch(plan, buffers_, nullptr).status();
    EXPECT_STREQ(code_name(status.code()), "stale_plan") << status.message();
  }
  void expect_stale() const { expect_stale(plan_); }

  TestProblem made_;
  cuda::StepPlan plan_;
  Set set_;
  const cuda::StepBuffers& buffers_;
};

TEST_F(EmulatedFetch, AStepComesBack) {
  step();
  const Result<cuda::FetchedStep> got = cuda::fetch(plan_, buffers_, nullptr);
  ASSERT_TRUE(got.ok()) << got.status().message();
  ASSERT_EQ(static_cast<int64_t>(got->bundles.size()), plan_.bundles);
  EXPECT_EQ(got->bundles[0].blocks.size(), got->bundles[0].slots.size());
  EXPECT_FALSE(got->tasks.empty());
}

// Also where it is another stream that is being captured, whose work the default one would wait for.
TEST_F(EmulatedFetch, NotWhileAStreamIsCaptured) {
  step();
  const auto expect = [&](const char* code) {
    const Status poll = cuda::poll(plan_, buffers_, nullptr);
    EXPECT_STREQ(code_name(poll.code()), code) << poll.message();
    const Status fetch = cuda::fetch(plan_, buffers_, nullptr).status();
    EXPECT_STREQ(code_name(fetch.code()), code) << fetch.message();
  };
  capture = cudaStreamCaptureStatusActive;
  expect("not_capturable");
  capture = cudaStreamCaptureStatusNone;
  asked = cudaErrorStreamCaptureImplicit;
  expect("not_capturable");
  asked = cudaErrorInvalidResourceHandle;
  expect("device_error");
  asked = cudaSuccess;
  expect("ok");
}

// Index and scratch may hold anything before a step.
TEST_F(EmulatedFetch, NoStepYet) {
  for (const int fill : {0xFF, 0x5A, 0}) {
    std::memset(buffers_.index, fill, static_cast<size_t>(plan_.bytes.index));
    std::memset(buffers_.scratch, fill, static_cast<size_t>(plan_.bytes.scratch));
    expect_stale();
  }
}

TEST_F(EmulatedFetch, BuffersOfAnotherStep) {
  step();
  cuda::StepOptions tier;
  tier.row_entries = 1;
  expect_stale(*cuda::plan_step(made_.problem, tier));
  static_cast<DeviceControl*>(buffers_.control)->epoch += 1;
  expect_stale();
  step();
  std::memset(buffers_.index, 0x5A, static_cast<size_t>(plan_.bytes.index));
  expect_stale();
  step();
  std::memset(buffers_.scratch, 0x5A, static_cast<size_t>(plan_.bytes.scratch));
  expect_stale();
}

TEST_F(EmulatedFetch, NumbersThatNoStepLeaves) {
  const index::DeviceIndex index = cuda::index_of(plan_, buffers_);
  const int64_t entries = plan_.plan.capacities.entries;
  for (const int32_t count : {-2, INT32_MIN, INT32_MAX, static_cast<int32_t>(entries) + 1}) {
    step();
    index.count[1] = count;
    expect_stale();
  }
  for (const int64_t begin : {int64_t{-1}, INT64_MIN, INT64_MAX, entries}) {
    step();
    index.bundle[1].begin = begin;
    expect_stale();
  }
  for (const int32_t tasks : {-1, INT32_MIN, INT32_MAX}) {
    step();
    cuda::scratch_of(plan_, buffers_).head->tasks = tasks;
    expect_stale();
  }
}

}  // namespace
}  // namespace tamis
