// Two buffer sets on two streams: while one is replayed the other is rewritten, with events in between and no
// wait of the host. Every replay is compared, bit for bit. The pattern a server would use.
#include <gtest/gtest.h>

#include "cuda/graph.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

class CudaTwoSets : public OnDevice {};

class Event {
 public:
  Event() { cuda_ok(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  void record(cudaStream_t stream) { cuda_ok(cudaEventRecord(event_, stream)); }
  void hold_back(cudaStream_t stream) const { cuda_ok(cudaStreamWaitEvent(stream, event_, 0)); }
  void wait() const { cuda_ok(cudaEventSynchronize(event_)); }

 private:
  cudaEvent_t event_ = nullptr;
};

// One of the two: a captured step, and the events that pass it back and forth.
struct Set {
  explicit Set(const Problem& p, const cuda::StepOptions& o) : captured(p, o) {}
  Captured captured;
  Event written, done;
  int64_t variant = -1;  // what is in flight; -1: nothing
};

TEST_F(CudaTwoSets, OneRunsWhileTheOtherIsRewritten) {
  constexpr int64_t kVariants = 12;
  const int64_t replays = number_from("TAMIS_GRAPH_REPLAYS", 500);
  cuda::StepOptions o;
  o.plan.splits = 2;
  std::vector<std::unique_ptr<LiveBatch>> variants;
  std::vector<DeviceRan> wants;
  for (int64_t i = 0; i < kVariants; ++i) {
    Dice d(100 + i);
    variants.push_back(std::make_unique<LiveBatch>(9, DType::kBF16, 2));
    variants.back()->draw(d);
    const Problem& p = variants.back()->made.problem;
    const Wanted want = wanted(p);
    wants.push_back(run_on_device(p, o));
    ASSERT_EQ(complaint(wants.back(), want.answer, want.tolerance), "") << "variant " << i;
  }

  Set sets[2] = {Set(variants[0]->made.problem, o), Set(variants[0]->made.problem, o)};
  DeviceStream writer;
  const auto compare = [&](Set& set) {
    set.done.wait();
    const Status s = cuda::poll(set.captured.step->plan, set.captured.step->buffers(), set.captured.stream);
    ASSERT_TRUE(s.ok()) << s.message();
    set.captured.out.get();
    const DeviceRan& want = wants[set.variant];
    ASSERT_TRUE(same_bits(set.captured.out.out(), want.out));
    ASSERT_TRUE(same_bits(set.captured.out.lse(), want.lse));
    ASSERT_TRUE(set.captured.out.fences_stand());
  };
  for (int64_t i = 0; i < replays; ++i) {
    Set& set = sets[i % 2];
    if (set.variant >= 0) compare(set);
    ASSERT_FALSE(HasFatalFailure()) << "replay " << i - 2;
    set.variant = i * 5 % kVariants;
    set.done.hold_back(writer);
    set.captured.device.rewrite(variants[set.variant]->made.problem, writer);
    set.written.record(writer);
    set.written.hold_back(set.captured.stream);
    set.captured.graph.replay();
    set.done.record(set.captured.stream);
  }
  for (Set& set : sets)
    if (set.variant >= 0) compare(set);
  for (Set& set : sets) EXPECT_TRUE(set.captured.step->fences_stand() && set.captured.device.fences_stand());
}

// The stream is an argument: V arrives late on another stream, and the step waits for it by an event.
TEST_F(CudaTwoSets, TheStepIsInTheOrderOfItsStream) {
  LiveBatch batch(4, DType::kBF16);
  Dice d(5);
  batch.draw(d);
  const Problem& p = batch.made.problem;
  const Wanted want = wanted(p);
  const std::unique_ptr<DeviceStep> step = planned(p);
  DeviceProblem device(p);
  DeviceStream early, late;
  DeviceOut out(p);
  DeviceCounters counters;
  Event event;
  const ByteSpan v = bytes_of(device.problem.cache.v);
  for (int i = 0; i < 20; ++i) {
    out.reset();
    cuda_ok(cudaMemsetAsync(const_cast<unsigned char*>(v.begin), 0xFF, v.size(), early));
    device.refresh(early);
    event.record(early);
    event.hold_back(late);
    ASSERT_TRUE(
        cuda::step(step->plan, device.problem, out.view(), step->buffers(), late, counters.get()).ok());
    ASSERT_EQ(complaint(result_of(*step, device, out, counters, late), want.answer, want.tolerance), "");
  }
}

}  // namespace
}  // namespace tamis
