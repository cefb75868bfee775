// Two sets of buffers on two streams: while one is replayed the other is rewritten, and the host waits only
// where it reads results.
//
//   writer stream   wait done[i]      write lists, lengths, table of set i    record written[i]
//   stream i        wait written[i]   replay graph i, results to the host     record done[i]
//
// The host enqueues a round of steps, the sets in turn, and then reads them all. One step of one round maps a
// page that does not exist: it is refused, and the other set goes on undisturbed. As in main.cpp all keys are
// zero and V of a slot is the slot's number, so O is the mean of the selected slots and LSE the logarithm of
// how many they are: the host checks every number. Without a device the program says so and ends well.
#include <cuda_runtime_api.h>
#include <tamis/cuda.h>
#include <tamis/device.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <utility>
#include <vector>

#include "device_array.h"

namespace {

using namespace tamis;

constexpr int64_t kRequests = 2, kQHeads = 8, kKvHeads = 2, kDim = 64, kPage = 16, kPages = 8, kMaxPages = 4;
constexpr int64_t kLists = kRequests * kKvHeads, kWidth = 6;  // row = request * KV heads + KV head
constexpr int kRounds = 4, kStepsOfARound = 10, kRefusedRound = 1;
constexpr int32_t kNoPage = 77;

// What changes from step to step, in one piece: a step is prepared by one copy.
struct Contents {
  int32_t kv_len[kRequests], table[kRequests][kMaxPages], lists[kLists][kWidth], count[kLists];
};

struct Results {
  float out[kRequests][kQHeads][kDim], lse[kRequests][kQHeads];
};

// Host memory that copies read and write while the host does something else: from other memory
// cudaMemcpyAsync would wait for the stream first. One element for each step of a round, since all of them
// are under way.
template <class T>
class PinnedArray {
 public:
  explicit PinnedArray(int64_t count) {
    check(cudaMallocHost(&data_, sizeof(T) * static_cast<size_t>(count)));
  }
  ~PinnedArray() { cudaFreeHost(data_); }
  PinnedArray(const PinnedArray&) = delete;
  T& operator[](int64_t i) const { return static_cast<T*>(data_)[i]; }

 private:
  void* data_ = nullptr;
};

// What both sets read and nobody writes.
struct Cache {
  DeviceArray<int32_t> cu_q{{0, 1, 2}};
  DeviceArray<uint16_t> q{std::vector<uint16_t>(kRequests * kQHeads * kDim, bf16(1))};
  DeviceArray<uint16_t> k{std::vector<uint16_t>(kPages * kPage * kKvHeads * kDim)};
  DeviceArray<uint16_t> v{numbered_slots(kPages * kPage, kKvHeads* kDim)};
};

// `contents` lies on the device: only addresses are taken.
Problem problem_of(const Cache& cache, const Contents* contents) {
  Problem p;
  p.query.q = dense_view(cache.q.data(), DType::kBF16, {kRequests, kQHeads, kDim});
  p.query.cu_q = dense_view(cache.cu_q.data(), DType::kI32, {kRequests + 1});
  p.cache.k = dense_view(cache.k.data(), DType::kBF16, {kPages, kPage, kKvHeads, kDim});
  p.cache.v = dense_view(cache.v.data(), DType::kBF16, {kPages, kPage, kKvHeads, kDim});
  p.cache.kv_len = dense_view(contents->kv_len, DType::kI32, {kRequests});
  p.cache.page_table = dense_view(contents->table, DType::kI32, {kRequests, kMaxPages});
  p.candidates.form = CandidateForm::kFixedWidth;
  p.candidates.indices = dense_view(contents->lists, DType::kI32, {kLists, kWidth});
  p.candidates.count = dense_view(contents->count, DType::kI32, {kLists});
  p.candidates.unit = kPage;
  p.candidates.index_heads = kKvHeads;
  return p;
}

OutView output_of(Results* results) {
  return {.out = mutable_view(results->out, DType::kF32, {kRequests, kQHeads, kDim}),
          .lse = mutable_view(results->lse, DType::kF32, {kRequests, kQHeads})};
}

cuda::StepPlan planned(const Problem& problem) {
  Result<cuda::StepPlan> plan = cuda::plan_step(problem);
  check(plan.status());
  return std::move(*plan);
}

// One of the two: what it reads, what it writes, its buffers, its stream, its captured step.
class Set {
 public:
  explicit Set(const Cache& cache)
      : problem_(problem_of(cache, contents_.data())),
        plan_(planned(problem_)),
        control_(plan_.bytes.control),
        index_(plan_.bytes.index),
        scratch_(plan_.bytes.scratch),
        buffers_{control_.data(), index_.data(), scratch_.data(), plan_.bytes} {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    check(cudaEventCreateWithFlags(&written_, cudaEventDisableTiming));
    check(cudaEventCreateWithFlags(&done_, cudaEventDisableTiming));
    check(cuda::clear(plan_, buffers_, stream_));
    cudaGraph_t graph = nullptr;
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    const Status captured = cuda::step(plan_, problem_, output_of(results_.data()), buffers_, stream_);
    check(cudaStreamEndCapture(stream_, &graph));
    check(captured);
    check(cudaGraphInstantiateWithFlags(&replay_, graph, 0));
    check(cudaGraphDestroy(graph));
  }
  ~Set() {
    cudaGraphExecDestroy(replay_);
    cudaEventDestroy(done_);
    cudaEventDestroy(written_);
    cudaStreamDestroy(stream_);
  }
  Set(const Set&) = delete;

  // One step, all of it enqueued. An event that was never recorded holds nobody back, so the first step is
  // like all others.
  void enqueue(const Contents& from, Results& to, cudaStream_t writer) {
    check(cudaStreamWaitEvent(writer, done_, 0));
    check(cudaMemcpyAsync(contents_.data(), &from, sizeof from, cudaMemcpyHostToDevice, writer));
    check(cudaEventRecord(written_, writer));
    check(cudaStreamWaitEvent(stream_, written_, 0));
    check(cudaGraphLaunch(replay_, stream_));
    check(cudaMemcpyAsync(&to, results_.data(), sizeof to, cudaMemcpyDeviceToHost, stream_));
    check(cudaEventRecord(done_, stream_));
  }

  // Waits for this set's stream, not for the other's. The verdict is that of the last step.
  Status poll(cuda::StepStats* stats) const { return cuda::poll(plan_, buffers_, stream_, stats); }

 private:
  DeviceArray<Contents> contents_{1};
  DeviceArray<Results> results_{1};
  Problem problem_;
  cuda::StepPlan plan_;
  DeviceArray<char> control_, index_, scratch_;
  cuda::StepBuffers buffers_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t written_ = nullptr, done_ = nullptr;
  cudaGraphExec_t replay_ = nullptr;
};

// Lengths, a page table dealt anew and lists of pages, with repeats and padding (-1); what lies behind a
// count is not looked at.
Contents draw(std::minstd_rand& random) {
  const auto from = [&random](int64_t low, int64_t high) {
    return static_cast<int32_t>(low + static_cast<int64_t>(random()) % (high - low + 1));
  };
  int32_t page[kPages];
  for (int32_t i = 0; i < kPages; ++i) page[i] = i;
  for (int64_t i = kPages - 1; i > 0; --i) std::swap(page[i], page[from(0, i)]);
  Contents c;
  for (int64_t b = 0; b < kRequests; ++b) {
    c.kv_len[b] = from(1, kMaxPages * kPage);
    const int64_t pages = (c.kv_len[b] + kPage - 1) / kPage;
    for (int64_t i = 0; i < kMaxPages; ++i) c.table[b][i] = i < pages ? page[b * kMaxPages + i] : -1;
    for (int64_t row = b * kKvHeads; row < (b + 1) * kKvHeads; ++row) {
      c.count[row] = from(0, kWidth);
      for (int64_t i = 0; i < kWidth; ++i) c.lists[row][i] = i < c.count[row] ? from(-1, pages - 1) : 1 << 30;
    }
  }
  return c;
}

// A page that request 0 selects and the cache does not have.
void spoil(Contents& c) {
  c.count[0] = 1;
  c.lists[0][0] = 0;
  c.table[0][0] = kNoPage;
}

// One row as the host works it out.
struct Row {
  double out, lse;
};
Row expected(const Contents& c, int64_t request, int64_t kv_head) {
  const int64_t row = request * kKvHeads + kv_head;
  bool selected[kMaxPages] = {};  // a page that is listed twice counts once
  for (int64_t i = 0; i < c.count[row]; ++i)
    if (c.lists[row][i] >= 0) selected[c.lists[row][i]] = true;
  int64_t tokens = 0, sum = 0;
  for (int64_t token = 0; token < c.kv_len[request]; ++token) {
    if (!selected[token / kPage]) continue;
    ++tokens;
    sum += c.table[request][token / kPage] * kPage + token % kPage;
  }
  if (tokens == 0) return {0, -INFINITY};
  return {static_cast<double>(sum) / static_cast<double>(tokens), std::log(static_cast<double>(tokens))};
}

bool near(float got, double want) {
  return got == want || std::abs(got - want) <= 1e-5 * (1 + std::abs(want));
}

// Numbers that are not what the host expects; of a refused step all are NaN.
int64_t wrong_numbers(const Contents& c, const Results& r, bool refused) {
  int64_t wrong = 0;
  for (int64_t b = 0; b < kRequests; ++b) {
    for (int64_t h = 0; h < kQHeads; ++h) {
      const Row want = expected(c, b, h / (kQHeads / kKvHeads));
      const auto right = [refused](float got, double x) { return refused ? std::isnan(got) : near(got, x); };
      for (const float x : r.out[b][h]) wrong += !right(x, want.out);
      wrong += !right(r.lse[b][h], want.lse);
    }
  }
  return wrong;
}

}  // namespace

int main() {
  const auto devices = cuda_devices();
  if (!devices.ok()) {
    std::printf("no device: %s\n", devices.status().message().c_str());
    return 0;
  }

  const Cache cache;
  Set sets[2] = {Set(cache), Set(cache)};
  cudaStream_t writer = nullptr;
  check(cudaStreamCreateWithFlags(&writer, cudaStreamNonBlocking));
  const PinnedArray<Contents> contents(kStepsOfARound);
  const PinnedArray<Results> results(kStepsOfARound);
  check(cudaDeviceSynchronize());  // the cache was written on the default stream, which ours do not wait for

  std::minstd_rand random;
  int64_t wrong = 0, steps = 0;
  for (int round = 0; round < kRounds; ++round) {
    const int bad = round == kRefusedRound ? kStepsOfARound - 1 : -1;  // the last step of set 1
    for (int i = 0; i < kStepsOfARound; ++i) {
      contents[i] = draw(random);
      if (i == bad) spoil(contents[i]);
      results[i] = {};
      sets[i % 2].enqueue(contents[i], results[i], writer);
    }
    steps += kStepsOfARound;

    // Here the host waits, because it wants to know.
    for (int i = 0; i < 2; ++i) {
      cuda::StepStats stats;
      const Status verdict = sets[i].poll(&stats);
      const bool refused = bad >= 0 && bad % 2 == i;
      std::printf("round %d, set %d, %llu steps so far: %s\n", round, i,
                  static_cast<unsigned long long>(stats.epoch),
                  verdict.ok() ? "ok" : verdict.message().c_str());
      wrong += verdict.code() != (refused ? Code::kPageOutOfRange : Code::kOk);
      wrong += refused && verdict.where().value != kNoPage;
      wrong += static_cast<int64_t>(stats.epoch) != steps / 2;
    }
    for (int i = 0; i < kStepsOfARound; ++i) {
      const int64_t off = wrong_numbers(contents[i], results[i], i == bad);
      if (off > 0)
        std::printf("round %d, step %d: %lld numbers are wrong\n", round, i, static_cast<long long>(off));
      wrong += off;
    }
  }
  check(cudaStreamDestroy(writer));
  std::printf("%lld steps on two sets, one of them refused: %s\n", static_cast<long long>(steps),
              wrong == 0 ? "all as expected" : "NOT as expected");
  return wrong == 0 ? 0 : 1;
}
