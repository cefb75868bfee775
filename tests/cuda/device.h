// Device memory of the tests: every buffer lies between canaries, and what nobody wrote is poison.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "tamis/device.h"
#include "tamis/problem.h"

namespace tamis::testing {

inline bool no_device() {
  static const bool none = !cuda_devices().ok();
  return none;
}

#define TAMIS_NEEDS_DEVICE() \
  if (::tamis::testing::no_device()) GTEST_SKIP() << "no device"

inline bool no_prefill_device() {
  static const bool none = [] {
    const Result<std::vector<CudaDevice>> devices = cuda_devices();
    return !devices.ok() || devices->front().major != 9 || devices->front().minor != 0;
  }();
  return none;
}
#define TAMIS_NEEDS_PREFILL_DEVICE() \
  if (::tamis::testing::no_prefill_device()) GTEST_SKIP() << "no device of compute capability 9.0"

// Every suite of this room is one of these.
class OnDevice : public ::testing::Test {
 protected:
  void SetUp() override { TAMIS_NEEDS_DEVICE(); }
};

class OnPrefillDevice : public ::testing::Test {
 protected:
  void SetUp() override { TAMIS_NEEDS_PREFILL_DEVICE(); }
};

// How much a run does is its caller's choice: compute-sanitizer makes everything many times slower.
inline int64_t number_from(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == 0 ? otherwise : std::strtoll(text, nullptr, 10);
}
inline int64_t problems() { return number_from("TAMIS_CUDA_PROBLEMS", 300); }

// TAMIS_CUDA_RING=short: steps whose test leaves the choice take short rings (steps.h).
inline bool takes_short_rings() {
  const char* text = std::getenv("TAMIS_CUDA_RING");
  return text != nullptr && std::string(text) == "short";
}

// TAMIS_CUDA_ENGINE=prefill: steps whose test leaves the choice take the prefill kernel where they can.
inline bool takes_prefill() {
  const char* text = std::getenv("TAMIS_CUDA_ENGINE");
  return text != nullptr && std::string(text) == "prefill";
}

// Poison counts as written: a search for reads of memory that nobody wrote has to do without.
inline bool poisons() { return number_from("TAMIS_CUDA_POISON", 1) != 0; }

inline void cuda_ok(cudaError_t code) {
  if (code != cudaSuccess) throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(code));
}

class DeviceBuffer {
 public:
  explicit DeviceBuffer(int64_t bytes) : bytes_(bytes) {
    void* p = nullptr;
    cuda_ok(cudaMalloc(&p, static_cast<size_t>(bytes + 2 * kFence)));
    base_ = static_cast<unsigned char*>(p);
    cuda_ok(cudaMemset(base_, kCanary, kFence));
    cuda_ok(cudaMemset(base_ + kFence + bytes, kCanary, kFence));
    poisons() ? fill(0xFF) : cuda_ok(cudaDeviceSynchronize());
  }
  ~DeviceBuffer() { cudaFree(base_); }
  DeviceBuffer(const DeviceBuffer&) = delete;

  unsigned char* data() const { return base_ + kFence; }  // on a 256-byte line
  int64_t bytes() const { return bytes_; }

  // These wait: the tests' streams do not wait for the default one.
  void fill(int byte) {
    cuda_ok(cudaMemset(data(), byte, static_cast<size_t>(bytes_)));
    cuda_ok(cudaDeviceSynchronize());
  }
  void put(const void* from) {
    cuda_ok(cudaMemcpy(data(), from, static_cast<size_t>(bytes_), cudaMemcpyHostToDevice));
    cuda_ok(cudaDeviceSynchronize());
  }
  void get(void* to) const {
    cuda_ok(cudaDeviceSynchronize());
    cuda_ok(cudaMemcpy(to, data(), static_cast<size_t>(bytes_), cudaMemcpyDeviceToHost));
  }

  bool fences_stand() const {
    cuda_ok(cudaDeviceSynchronize());
    std::vector<unsigned char> fences(2 * kFence);
    cuda_ok(cudaMemcpy(fences.data(), base_, kFence, cudaMemcpyDeviceToHost));
    cuda_ok(cudaMemcpy(fences.data() + kFence, data() + bytes_, kFence, cudaMemcpyDeviceToHost));
    return std::all_of(fences.begin(), fences.end(), [](unsigned char x) { return x == kCanary; });
  }

 private:
  static constexpr int64_t kFence = 512;
  static constexpr unsigned char kCanary = 0xA5;
  unsigned char* base_ = nullptr;
  int64_t bytes_;
};

// The bytes from the first element of a view to its last, gaps included.
struct ByteSpan {
  const unsigned char *begin, *end;
  size_t size() const { return static_cast<size_t>(end - begin); }
};
template <class View>
ByteSpan bytes_of(const View& t) {
  int64_t first = 0, last = 1;
  for (int axis = 0; axis < t.rank; ++axis)
    (t.stride[axis] < 0 ? first : last) += (t.shape[axis] - 1) * t.stride[axis];
  const auto* data = static_cast<const unsigned char*>(t.data);
  return {data + first * dtype_bytes(t.dtype), data + last * dtype_bytes(t.dtype)};
}

// Copies of host tensors, strides kept. Tensors that share memory share it here too. The views given are
// turned to the device; the host memory stays where it was, for refresh().
class DeviceTensors {
 public:
  explicit DeviceTensors(const std::vector<TensorView*>& views) {
    std::vector<TensorView*> filled;
    for (TensorView* t : views) {
      if (t->present() && t->elements() > 0)
        filled.push_back(t);
      else
        t->data = nullptr;  // nothing there to read; an address of the host would be no better
    }
    std::vector<ByteSpan> spans;
    for (const TensorView* t : filled) spans.push_back(bytes_of(*t));
    std::sort(spans.begin(), spans.end(), [](auto& a, auto& b) { return a.begin < b.begin; });
    for (const ByteSpan& s : spans) {
      if (!spans_.empty() && s.begin < spans_.back().end)
        spans_.back().end = std::max(spans_.back().end, s.end);
      else
        spans_.push_back(s);
    }
    for (const ByteSpan& s : spans_)
      buffers_.push_back(std::make_unique<DeviceBuffer>(static_cast<int64_t>(s.size())));
    for (TensorView* t : filled) t->data = on_device(static_cast<const unsigned char*>(t->data));
    refresh(nullptr);
    cuda_ok(cudaDeviceSynchronize());
  }

  // Brings what the host memory holds now.
  void refresh(cudaStream_t stream) {
    for (size_t i = 0; i < spans_.size(); ++i)
      cuda_ok(cudaMemcpyAsync(buffers_[i]->data(), spans_[i].begin, spans_[i].size(), cudaMemcpyHostToDevice,
                              stream));
  }

  bool fences_stand() const {
    return std::all_of(buffers_.begin(), buffers_.end(), [](auto& b) { return b->fences_stand(); });
  }

 private:
  const unsigned char* on_device(const unsigned char* host) const {
    for (size_t i = 0; i < spans_.size(); ++i)
      if (host >= spans_[i].begin && host < spans_[i].end)
        return buffers_[i]->data() + (host - spans_[i].begin);
    throw std::logic_error("a tensor that was not copied");
  }

  std::vector<ByteSpan> spans_;
  std::vector<std::unique_ptr<DeviceBuffer>> buffers_;
};

inline std::vector<TensorView*> tensors_of(Problem* p) {
  return {&p->query.q,           &p->query.cu_q,         &p->query.q_pos,       &p->cache.k,
          &p->cache.v,           &p->cache.kv_len,       &p->cache.page_table,  &p->cache.cu_kv,
          &p->cache.page_stamps, &p->cache.table_stamps, &p->candidates.indptr, &p->candidates.indices,
          &p->candidates.count,  &p->score.alibi_slopes};
}

// A problem whose arrays lie on the device.
class DeviceProblem {
 public:
  explicit DeviceProblem(const Problem& host)
      : problem(without_gradients(host)), tensors_(tensors_of(&problem)) {}
  DeviceProblem(const DeviceProblem&) = delete;

  Problem problem;

  void refresh(cudaStream_t stream = nullptr) {
    tensors_.refresh(stream);
    if (stream == nullptr) cuda_ok(cudaDeviceSynchronize());
  }

  // The same extents, other contents.
  void rewrite(const Problem& host, cudaStream_t stream) {
    Problem from = host;
    const std::vector<TensorView*> source = tensors_of(&from), here = tensors_of(&problem);
    for (size_t i = 0; i < here.size(); ++i) {
      if (!here[i]->present() || here[i]->elements() == 0) continue;
      const ByteSpan to = bytes_of(*here[i]), what = bytes_of(*source[i]);
      if (to.size() != what.size()) throw std::logic_error("other extents");
      cuda_ok(cudaMemcpyAsync(const_cast<unsigned char*>(to.begin), what.begin, what.size(),
                              cudaMemcpyHostToDevice, stream));
    }
  }

  bool fences_stand() const { return tensors_.fences_stand(); }

 private:
  static Problem without_gradients(Problem p) {
    p.gradients = {};
    return p;
  }
  DeviceTensors tensors_;
};

// Streams of the tests do not wait for the default stream: an order that nobody asked for would hide faults.
class DeviceStream {
 public:
  DeviceStream() { cuda_ok(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~DeviceStream() { cudaStreamDestroy(stream_); }
  DeviceStream(const DeviceStream&) = delete;
  operator cudaStream_t() const { return stream_; }
  void wait() const { cuda_ok(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace tamis::testing
