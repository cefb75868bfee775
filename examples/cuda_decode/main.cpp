// A decode step on a CUDA device, captured into a graph once and replayed while the batch changes.
//
// Two requests, eight query heads on two KV heads, a list of pages for each KV head. All keys are zero, so
// all selected tokens weigh the same; V of a slot is the slot's number, so O is the mean of the selected
// slots. Without a device the program says so and ends well.
#include <cuda_runtime_api.h>
#include <tamis/cuda.h>
#include <tamis/device.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <utility>
#include <vector>

#include "device_array.h"

namespace {

using namespace tamis;

constexpr int64_t kRequests = 2, kQHeads = 8, kKvHeads = 2, kDim = 64, kPage = 16, kPages = 8, kMaxPages = 4;
constexpr int64_t kWidth = 3;  // pages that a list may hold

// What changes from step to step: contents, never addresses or extents.
struct Batch {
  DeviceArray<int32_t> kv_len{{50, 33}};
  DeviceArray<int32_t> table{{6, 0, 3, 1, 5, 2, 7, -1}};              // [requests, max pages]
  DeviceArray<int32_t> lists{{0, 2, -1, 3, 0, 0, 1, 2, 9, 0, 9, 9}};  // row = request * KV heads + KV head
  DeviceArray<int32_t> counts{{3, 3, 2, 1}};                          // what lies behind is not looked at
};

}  // namespace

int main() {
  const auto devices = cuda_devices();
  if (!devices.ok()) {
    std::printf("no device: %s\n", devices.status().message().c_str());
    return 0;
  }

  Batch batch;
  const DeviceArray<int32_t> cu_q({0, 1, 2});
  const DeviceArray<uint16_t> q(std::vector<uint16_t>(kRequests * kQHeads * kDim, bf16(1)));
  const DeviceArray<uint16_t> k(std::vector<uint16_t>(kPages * kPage * kKvHeads * kDim));
  const DeviceArray<uint16_t> v(numbered_slots(kPages * kPage, kKvHeads * kDim));
  const DeviceArray<float> out(kRequests * kQHeads * kDim), lse(kRequests * kQHeads);

  Problem problem;
  problem.query.q = dense_view(q.data(), DType::kBF16, {kRequests, kQHeads, kDim});
  problem.query.cu_q = dense_view(cu_q.data(), DType::kI32, {kRequests + 1});
  problem.cache.k = dense_view(k.data(), DType::kBF16, {kPages, kPage, kKvHeads, kDim});
  problem.cache.v = dense_view(v.data(), DType::kBF16, {kPages, kPage, kKvHeads, kDim});
  problem.cache.kv_len = dense_view(batch.kv_len.data(), DType::kI32, {kRequests});
  problem.cache.page_table = dense_view(batch.table.data(), DType::kI32, {kRequests, kMaxPages});
  problem.candidates.form = CandidateForm::kFixedWidth;
  problem.candidates.indices = dense_view(batch.lists.data(), DType::kI32, {kRequests * kKvHeads, kWidth});
  problem.candidates.count = dense_view(batch.counts.data(), DType::kI32, {kRequests * kKvHeads});
  problem.candidates.unit = kPage;
  problem.candidates.index_heads = kKvHeads;
  const OutView output{.out = mutable_view(out.data(), DType::kF32, {kRequests, kQHeads, kDim}),
                       .lse = mutable_view(lse.data(), DType::kF32, {kRequests, kQHeads})};

  // Once a shape: the plan, from extents alone, and three buffers of the sizes it names.
  const Result<cuda::StepPlan> made = cuda::plan_step(problem);
  check(made.status());
  const cuda::StepPlan& plan = *made;
  const DeviceArray<char> control(plan.bytes.control), index(plan.bytes.index), scratch(plan.bytes.scratch);
  const cuda::StepBuffers buffers{control.data(), index.data(), scratch.data(), plan.bytes};
  cudaStream_t stream = nullptr;
  check(cudaStreamCreate(&stream));
  check(cuda::clear(plan, buffers, stream));

  // The step as a graph: launches only. A server captures its whole layer, or all of them.
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  const Status captured = cuda::step(plan, problem, output, buffers, stream);
  check(cudaStreamEndCapture(stream, &graph));
  check(captured);
  check(cudaGraphInstantiateWithFlags(&replay, graph, 0));
  check(cudaGraphDestroy(graph));

  // Replays, and a wait where this program wants to know.
  const auto step = [&](const char* what) {
    check(cudaGraphLaunch(replay, stream));
    cuda::StepStats stats;
    const Status verdict = cuda::poll(plan, buffers, stream, &stats);
    std::printf("step %llu, %s: %s; O", static_cast<unsigned long long>(stats.epoch), what,
                verdict.ok() ? "ok" : verdict.message().c_str());
    const std::vector<float> o = out.read();
    std::vector<float> of_lists;  // the first query head of each KV head
    for (int64_t row = 0; row < kRequests * kQHeads; row += kQHeads / kKvHeads)
      of_lists.push_back(o[row * kDim]);
    for (const float x : of_lists) std::printf(" %g", x);
    std::printf("\n");
    return std::pair(verdict.code(), of_lists);
  };
  // Pages 0 and 2 of request 0 are physical pages 6 and 3: slots 96 to 111 and 48 to 63, their mean is 79.5.
  const auto first = step("as captured");
  batch.kv_len.write({51, 34}, stream);
  batch.counts.write({1, 3, 2, 0}, stream);
  const auto second = step("a token longer, shorter lists");  // an empty list is 0
  batch.table.write({6, 0, 3, 1, 77, 2, 7, -1}, stream);
  const auto third = step("an entry that nobody touches");
  batch.counts.write({1, 3, 2, 1}, stream);
  const auto fourth = step("somebody does");  // the whole batch is NaN

  check(cudaGraphExecDestroy(replay));
  check(cudaStreamDestroy(stream));
  const bool right = first.first == Code::kOk && first.second[0] == 79.5f && second.first == Code::kOk &&
                     second.second[0] == 103.5f && second.second[3] == 0 && third == second &&
                     fourth.first == Code::kPageOutOfRange && std::isnan(fourth.second[0]);
  return right ? 0 : 1;
}
