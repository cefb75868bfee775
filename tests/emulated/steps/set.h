// The stages of a step one by one, on buffers that sets may share.
#pragma once

#include "emulated/steps/step.h"

namespace tamis::testing {

// A set of buffers with its control cleared.
class Set {
 public:
  explicit Set(const cuda::StepPlan& plan)
      : plan_(plan),
        control_(plan.bytes.control),
        index_(plan.bytes.index),
        scratch_(plan.bytes.scratch),
        buffers{control_.data(), index_.data(), scratch_.data(), plan.bytes} {
    std::memset(control_.data(), 0, static_cast<size_t>(plan.bytes.control));
  }

  void prepare(const Problem& p) {
    const index::NormalizeShared shared = cuda::shared_of(plan_, p.candidates);
    EXPECT_EQ(emulate_normalize(cuda::normalize_args(plan_, p, *describe(p), buffers, shared), shared, 1),
              "");
    EXPECT_EQ(emulate_schedule(cuda::schedule_args(plan_, buffers), 1), "");
  }
  // Whether the attention alone answers the reference; else the verdict is stale_plan and the answer NaN.
  bool runs(const Problem& p) {
    const Shape s = *describe(p);
    Guarded out(DType::kF32, {s.total_q, s.q_heads, s.v_head_dim}), lse(DType::kF32, {s.total_q, s.q_heads});
    OutView view;
    view.out = out.view();
    view.lse = lse.view();
    cuda::StepCounters counters{};
    if (plan_.engine == cuda::Engine::kPrefill)
      EXPECT_EQ(
          emulate_prefill(cuda::prefill_key(p, s), cuda::prefill_args(plan_, p, s, view, buffers, &counters),
                          cuda::shape_of_side(plan_, s), 1, 1),
          "");
    else
      EXPECT_EQ(emulate_decode({p.query.q.dtype, cuda::padded_dim(s.head_dim, s.v_head_dim), plan_.columns,
                                plan_.plan.capacities.group_rows > s.group || plan_.lists > 1, plan_.ring},
                               cuda::decode_args(plan_, p, s, view, buffers, &counters),
                               {.tasks = plan_.tasks, .column_tiles = plan_.column_tiles}, 1),
                "");
    Ran r;
    r.out = out.values();
    r.lse = lse.values();
    const int32_t verdict = static_cast<const DeviceControl*>(buffers.control)->verdict.code;
    if (verdict == 0) {
      const Wanted want = wanted(p);
      EXPECT_EQ(complaint(r, want.answer, want.tolerance), "");
      return true;
    }
    EXPECT_EQ(verdict, static_cast<int32_t>(Code::kStalePlan));
    EXPECT_TRUE(all_nan(r.out) && all_nan(r.lse));
    EXPECT_EQ(counters.tokens_loaded, 0u);
    return false;
  }

 private:
  const cuda::StepPlan& plan_;
  Lines control_, index_, scratch_;

 public:
  cuda::StepBuffers buffers;
};

}  // namespace tamis::testing
