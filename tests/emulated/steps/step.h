// A whole step of the prefill engine on the host: normalize, schedule, the kernel and the one after it.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "attention/step_args.h"
#include "cuda/draw.h"
#include "emulated/steps/emulate.h"

namespace tamis::testing {

// Memory on a 256-byte line, full of 0xFF.
class Lines {
 public:
  explicit Lines(int64_t bytes) : memory_(static_cast<size_t>(bytes) + 256, 0xFF) {
    void* at = memory_.data();
    size_t room = memory_.size();
    data_ = std::align(256, static_cast<size_t>(bytes), at, room);
  }
  void* data() const { return data_; }

 private:
  std::vector<unsigned char> memory_;
  void* data_;
};

// normalize, schedule, run.
class Step {
 public:
  Step(const Problem& p, const cuda::StepPlan& plan, uint64_t seed)
      : p_(p),
        plan_(plan),
        shape_(*describe(p)),
        seed_(seed),
        control_(plan.bytes.control),
        index_(plan.bytes.index),
        scratch_(plan.bytes.scratch),
        buffers_{control_.data(), index_.data(), scratch_.data(), plan.bytes} {}

  Ran run(DType dtype, Placement how, int ctas) {
    Ran r;
    const index::NormalizeShared shared = cuda::shared_of(plan_, p_.candidates);
    const index::NormalizeArgs normalize = cuda::normalize_args(plan_, p_, shape_, buffers_, shared);
    r.damage = emulate_normalize(normalize, shared, seed_);
    if (!r.damage.empty()) return r;
    if (after_normalize) after_normalize();
    std::memset(control_.data(), 0, static_cast<size_t>(plan_.bytes.control));  // as clear() does
    if (scheduled) r.damage = emulate_schedule(cuda::schedule_args(plan_, buffers_), seed_);
    if (!r.damage.empty()) return r;
    const DeviceControl& control = *static_cast<const DeviceControl*>(control_.data());
    if (control.verdict.code != 0) r.status = {static_cast<Code>(control.verdict.code), "verdict"};
    Guarded out(dtype, {shape_.total_q, shape_.q_heads, shape_.v_head_dim}, how),
        lse(DType::kF32, {shape_.total_q, shape_.q_heads}, how);
    OutView view;
    view.out = out.view();
    view.lse = lse.view();
    counters = {};
    for (int repeat = 0; repeat < 2 && r.damage.empty(); ++repeat)  // counters come back to 0 by themselves
      r.damage = emulate_prefill(
          cuda::prefill_key(p_, shape_), cuda::prefill_args(plan_, p_, shape_, view, buffers_, &counters),
          cuda::shape_of_side(plan_, shape_), ctas, seed_ + static_cast<uint64_t>(repeat));
    const uint32_t* work =
        cuda::scratch_of(plan_, buffers_).arrivals + cuda::arrivals_of(plan_) - cuda::kWorkCounters;
    const uint32_t at_rest = scheduled ? 0 : ~0u;  // of a batch that is refused nobody has written them
    if (std::any_of(work, work + cuda::kWorkCounters, [&](uint32_t n) { return n != at_rest; }))
      r.damage += "a counter of work is not what it was; ";
    r.out = out.values();
    r.lse = lse.values();
    if (!out.fences_stand() || !lse.fences_stand()) r.damage += "a fence of out or lse fell; ";
    return r;
  }

  cuda::StepCounters counters{};
  std::function<void()> after_normalize;
  bool scheduled = true;  // else the batch is refused

 private:
  const Problem& p_;
  const cuda::StepPlan& plan_;
  const Shape shape_;
  const uint64_t seed_;
  Lines control_, index_, scratch_;
  cuda::StepBuffers buffers_;
};

inline cuda::StepPlan prefill_plan(const Problem& p, cuda::StepOptions o = {}) {
  o.engine = cuda::Engine::kPrefill;
  const Result<cuda::StepPlan> plan = cuda::plan_step(p, o);
  if (!plan.ok()) throw std::runtime_error("plan_step: " + plan.status().message());
  return *plan;
}

// How often a long search may be asked for.
inline int64_t seeds() { return number_from("TAMIS_EMULATED_SEEDS", 4); }

}  // namespace tamis::testing
