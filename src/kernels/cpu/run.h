// The CPU backend: runs the tasks of a schedule on the threads of a Context, then merges what was split.
#pragma once

#include <cstddef>

#include "kernels/cpu/isa.h"
#include "tamis/attention.h"

namespace tamis::cpu {

struct Step {
  const Plan& plan;
  const Problem& problem;
  const Shape& shape;
  const BundleView& bundles;
  const Schedule& schedule;
  const OutView& out;
  std::byte* workspace;  // on a 64-byte line
};

// What the CPU kernels lack, by name: head sizes above kMaxHeadDim, scales that are no float32.
Status supports(const Problem& problem, const Shape& shape);

// Bitwise the same for any thread count: every task writes its own rows or its own part, and parts merge in
// order.
Status run(const Step& step, const Isa& isa, Context::Pool& pool, RunCounters* counters);

}  // namespace tamis::cpu
