// The CPU backend's backward: passes over queries and over keys, slab after slab, on the threads of a
// Context.
#pragma once

#include "index/transpose.h"
#include "kernels/cpu/backward_tasks.h"
#include "kernels/cpu/isa.h"

namespace tamis::cpu {

// Places of a workspace, in bytes from its first 64-byte line.
struct BackwardLayout {
  int64_t dq, delta, key_sums, value_sums, slab, bytes;
};

// `touched`: physical spans that some bundle reads; their sums are kept apart where the gradients are not
// f32.
BackwardLayout backward_layout(const BackwardWork& work, const Shape& shape,
                               const index::PhysicalSpans& spans, int64_t touched,
                               const GradientView& gradients);

struct BackwardStep {
  const Problem& problem;
  const Shape& shape;
  const BundleView& bundles;
  const BackwardWork& work;
  const index::PhysicalSpans& spans;
  const std::vector<int32_t>& span_place;  // [spans] place in `touched`, -1
  const std::vector<int64_t>& touched;     // spans that some bundle reads
  const SavedForward& saved;
  const GradientView& gradients;
  const BackwardLayout& layout;
  std::byte* workspace;  // on a 64-byte line
};

Status run_backward(const BackwardStep& step, const Isa& isa, Context::Pool& pool,
                    BackwardCounters* counters);

}  // namespace tamis::cpu
