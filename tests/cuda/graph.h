// A captured step, and problems whose contents change between replays.
#pragma once

#include <functional>

#include "cuda/draw.h"

namespace tamis::testing {

class Graph {
 public:
  // Captured in the strictest mode: whatever allocates or waits in there fails.
  Graph(cudaStream_t stream, const std::function<Status()>& record) : stream_(stream) {
    cuda_ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    status = record();
    cudaGraph_t graph = nullptr;
    cuda_ok(cudaStreamEndCapture(stream, &graph));
    cuda_ok(cudaGraphInstantiate(&exec_, graph, 0));
    cuda_ok(cudaGraphDestroy(graph));
  }
  ~Graph() { cudaGraphExecDestroy(exec_); }
  Graph(const Graph&) = delete;
  void replay() const { cuda_ok(cudaGraphLaunch(exec_, stream_)); }
  Status status;

 private:
  cudaStream_t stream_;
  cudaGraphExec_t exec_ = nullptr;
};

// A captured step with all that belongs to it; `device` may be rewritten between replays.
struct Captured {
  Captured(const Problem& p, const cuda::StepOptions& options)
      : step(planned(p, options)), device(p), out(p), graph(stream, [this] {
          return cuda::step(step->plan, device.problem, out.view(), step->buffers(), stream, counters.get());
        }) {}
  DeviceStream stream;
  std::unique_ptr<DeviceStep> step;
  DeviceProblem device;
  DeviceOut out;
  DeviceCounters counters;
  Graph graph;

  // One replay over what `host` holds now.
  DeviceRan replay(const Problem& host) {
    device.rewrite(host, stream);
    stream.wait();
    out.reset();
    graph.replay();
    return result_of(*step, device, out, counters, stream);
  }
};

template <class T>
T* elements(const TensorView& t) {
  return const_cast<T*>(static_cast<const T*>(t.data));
}

// A decode batch of fixed extents over a pool in which every page holds numbers, so that a table may be dealt
// anew at will. Contents follow from `d`.
class LiveBatch {
 public:
  static constexpr int64_t kPage = 16, kPages = 24, kWidth = 48;

  LiveBatch(int64_t requests, DType dtype, int64_t index_heads = 1)
      : made({.kv_len = std::vector<int32_t>(static_cast<size_t>(requests), kPage * kPages),
              .q_heads = 8,
              .kv_heads = 2,
              .head_dim = 64,
              .v_head_dim = 64,
              .dtype = dtype,
              .page_size = kPage,
              .q = q_noise(1),
              .k = kv_noise(2),
              .v = kv_noise(3)}) {
    made.problem.candidates.index_heads = index_heads;
    const size_t rows = static_cast<size_t>(requests * index_heads);
    made.fixed(Rows(rows, std::vector<int32_t>(kWidth, 0)), std::vector<int32_t>(rows, 0));
    for (int64_t b = 0; b < requests; ++b)
      for (int64_t page = 0; page < kPages; ++page) owned_.push_back(made.table(b, page));
  }

  TestProblem made;

  // Lengths grow, shrink and vanish; counts too; pages change hands.
  void draw(Dice& d) {
    const int64_t requests = static_cast<int64_t>(made.kv_len().size()),
                  heads = made.problem.candidates.index_heads;
    for (size_t i = owned_.size(); i > 1; --i)
      std::swap(owned_[i - 1], owned_[d.from(0, static_cast<int64_t>(i) - 1)]);
    int32_t* entry = elements<int32_t>(made.problem.candidates.indices);
    int32_t* count = elements<int32_t>(made.problem.candidates.count);
    size_t page = 0;
    for (int64_t b = 0; b < requests; ++b) {
      const int32_t length = d.one_in(4) ? 0 : d.one_in(4) ? kPage * kPages : d.i32(1, kPage * kPages);
      made.kv_len()[b] = length;
      for (int64_t i = 0; i < kPages; ++i) made.table(b, i) = i * kPage < length ? owned_[page++] : -1;
      for (int64_t r = b * heads; r < (b + 1) * heads; ++r) {
        count[r] = length == 0 || d.one_in(5) ? 0 : d.one_in(3) ? kWidth : d.i32(0, kWidth);
        for (int64_t j = 0; j < kWidth; ++j)
          entry[r * kWidth + j] = j >= count[r] ? d.of({-77, INT32_MAX})
                                  : d.one_in(9) ? -1
                                                : d.i32(0, length - 1);
      }
    }
  }

 private:
  std::vector<int32_t> owned_;
};

// The first `rows` queries and candidate rows of a problem: what is left of a batch whose cu_q shrank.
inline Problem first_rows(Problem p, int64_t queries) {
  p.query.q.shape[0] = queries;
  p.candidates.indices.shape[0] = queries * p.candidates.index_heads;
  if (p.candidates.count.present()) p.candidates.count.shape[0] = p.candidates.indices.shape[0];
  return p;
}

}  // namespace tamis::testing
