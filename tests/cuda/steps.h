// A step on the device under guard: buffers of the exact size full of 0xFF, outputs fenced, and what came of
// it as the CPU's tests have it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "attention/runs.h"
#include "cuda/device.h"
#include "tamis/cuda.h"

namespace tamis::testing {

// A plan and the buffers it asks for, cleared once.
class DeviceStep {
 public:
  explicit DeviceStep(cuda::StepPlan made)
      : plan(std::move(made)),
        control(plan.bytes.control),
        index(plan.bytes.index),
        scratch(plan.bytes.scratch) {
    if (plan.ring == cuda::Ring::kAuto && takes_short_rings()) plan.ring = cuda::Ring::kShort;
    clear();
  }
  cuda::StepPlan plan;
  DeviceBuffer control, index, scratch;

  cuda::StepBuffers buffers() const { return {control.data(), index.data(), scratch.data(), plan.bytes}; }
  void clear() {
    const Status s = cuda::clear(plan, buffers(), nullptr);
    if (!s.ok()) throw std::runtime_error("clear: " + s.message());
    cuda_ok(cudaDeviceSynchronize());
  }
  bool fences_stand() const {
    return control.fences_stand() && index.fences_stand() && scratch.fences_stand();
  }
};

// By the prefill kernel.
inline cuda::StepOptions prefill(cuda::StepOptions o = {}) {
  o.engine = cuda::Engine::kPrefill;
  if (o.load == cuda::Load::kAuto) o.load = cuda::Load::kBlocks;
  return o;
}

// TAMIS_CUDA_ENGINE=prefill: where that kernel takes what the test leaves open, it is taken.
inline Result<cuda::StepPlan> plan_of(const Problem& p, const cuda::StepOptions& o) {
  if (takes_prefill() && o.engine == cuda::Engine::kAuto) {
    Result<cuda::StepPlan> plan = cuda::plan_step(p, prefill(o));
    if (plan.status().code() != Code::kUnsupported) return plan;
  }
  return cuda::plan_step(p, o);
}

// The plan a test cannot do without.
inline std::unique_ptr<DeviceStep> planned(const Problem& p, const cuda::StepOptions& options = {}) {
  Result<cuda::StepPlan> plan = plan_of(p, options);
  if (!plan.ok()) throw std::runtime_error("plan_step: " + plan.status().message());
  return std::make_unique<DeviceStep>(std::move(*plan));
}

// out and lse on the device, with an image on the host that says what every byte was before.
class DeviceOut {
 public:
  explicit DeviceOut(const Problem& p, DType dtype = DType::kF32, Placement how = Placement::kDense,
                     Before before = Before::kPoison)
      : DeviceOut(*describe(p), dtype, how, before) {}
  DeviceOut(const Shape& s, DType dtype, Placement how, Before before)
      : out_(dtype, {s.total_q, s.q_heads, s.v_head_dim}, how, before),
        lse_(DType::kF32, {s.total_q, s.q_heads}, how, before) {
    reset();
  }

  OutView view() const {
    OutView v;
    v.out = out_.view();
    v.lse = lse_.view();
    return v;
  }
  void reset() {
    out_.reset();
    lse_.reset();
  }
  // Brings both to the host.
  void get() {
    out_.get();
    lse_.get();
  }
  std::vector<double> out() const { return out_.host.values(); }
  std::vector<double> lse() const { return lse_.host.values(); }
  bool fences_stand() const { return out_.fences_stand() && lse_.fences_stand(); }
  bool untouched() const { return out_.host.untouched() && lse_.host.untouched(); }

 private:
  struct Half {
    Half(DType dtype, const std::vector<int64_t>& shape, Placement how, Before before)
        : host(dtype, shape, how, before),
          device(host.view().elements() > 0 ? static_cast<int64_t>(bytes_of(host.view()).size()) : 0) {
      if (device.bytes() > 0) image.assign(bytes_of(host.view()).begin, bytes_of(host.view()).end);
    }
    Guarded host;
    DeviceBuffer device;
    std::vector<unsigned char> image;

    MutableTensorView view() const {
      MutableTensorView v = host.view();
      if (device.bytes() == 0) return v;
      const auto* data = static_cast<const unsigned char*>(v.data);
      v.data = device.data() + (data - bytes_of(v).begin);
      return v;
    }
    void reset() {
      if (device.bytes() > 0) device.put(image.data());
    }
    void get() {
      if (device.bytes() > 0) device.get(const_cast<unsigned char*>(bytes_of(host.view()).begin));
    }
    bool fences_stand() const { return host.fences_stand() && device.fences_stand(); }
  };
  Half out_, lse_;
};

struct DeviceRan : Ran {
  cuda::StepStats stats{};
  cuda::StepCounters device{};
};

// Counters on the device, from zero.
class DeviceCounters {
 public:
  DeviceCounters() : buffer_(sizeof(cuda::StepCounters)) { buffer_.fill(0); }
  cuda::StepCounters* get() const { return reinterpret_cast<cuda::StepCounters*>(buffer_.data()); }
  cuda::StepCounters values() const {
    cuda::StepCounters c;
    buffer_.get(&c);
    return c;
  }
  bool fences_stand() const { return buffer_.fences_stand(); }

 private:
  DeviceBuffer buffer_;
};

// What poll and the memory say after a step.
inline DeviceRan result_of(const DeviceStep& step, const DeviceProblem& p, DeviceOut& out,
                           const DeviceCounters& counters, cudaStream_t stream) {
  DeviceRan r;
  r.status = cuda::poll(step.plan, step.buffers(), stream, &r.stats);
  out.get();
  r.out = out.out();
  r.lse = out.lse();
  r.device = counters.values();
  if (!out.fences_stand()) r.damage += "a fence of out or lse fell; ";
  if (!step.fences_stand()) r.damage += "a fence of the buffers fell; ";
  if (!p.fences_stand()) r.damage += "a fence of the inputs fell; ";
  if (!counters.fences_stand()) r.damage += "a fence of the counters fell; ";
  return r;
}

inline DeviceRan run_step(DeviceStep& step, const DeviceProblem& p, DType dtype = DType::kF32,
                          Placement how = Placement::kDense, Before before = Before::kPoison) {
  DeviceStream stream;
  DeviceOut out(p.problem, dtype, how, before);
  DeviceCounters counters;
  const Status s = cuda::step(step.plan, p.problem, out.view(), step.buffers(), stream, counters.get());
  if (!s.ok()) {
    DeviceRan r;
    r.status = s;
    return r;
  }
  return result_of(step, p, out, counters, stream);
}

// From a problem on the host to the answer, all in one.
inline DeviceRan run_on_device(const Problem& host, const cuda::StepOptions& options = {},
                               DType dtype = DType::kF32, Placement how = Placement::kDense) {
  Result<cuda::StepPlan> plan = plan_of(host, options);
  if (!plan.ok()) {
    DeviceRan r;
    r.status = plan.status();
    return r;
  }
  DeviceStep step(std::move(*plan));
  const DeviceProblem p(host);
  return run_step(step, p, dtype, how);
}

inline ::testing::AssertionResult all_nan(const std::vector<double>& x) {
  for (size_t i = 0; i < x.size(); ++i)
    if (!std::isnan(x[i])) return ::testing::AssertionFailure() << x[i] << " at " << i << " is not NaN";
  return ::testing::AssertionSuccess();
}

// What only one code path may be refused for.
inline bool blocks_must_load(const Problem& p) { return describe(p)->page_size % 16 == 0; }

// The reference's answer and how far a kernel may be off; the CPU's instead of the reference's float64 where
// the problem is large.
struct Wanted {
  reference::Answer answer;
  Tolerance tolerance{};
};
inline Wanted wanted(const Problem& p) {
  Wanted w{answer(p)};
  w.tolerance = tolerance_of(p, w.answer);
  return w;
}
inline Wanted wanted_by_cpu(const Problem& p, Context& context, int64_t every = 1) {
  Wanted w;
  Result<reference::Sets> sets = reference::build_sets(p);
  EXPECT_TRUE(sets.ok()) << sets.status().message();
  if (!sets.ok()) return w;
  const Ran cpu = run_all(p, {}, context);
  EXPECT_TRUE(cpu.status.ok()) << cpu.status.message();
  w.answer.sets = std::move(*sets);
  w.answer.output = {cpu.out, cpu.lse};
  w.tolerance = tolerance_of(p, w.answer, every);
  return w;
}

}  // namespace tamis::testing
