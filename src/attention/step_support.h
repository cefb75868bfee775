// What a device step asks of a problem, and how its numbers become kernel arguments.
#pragma once

#include "kernels/cuda/decode/launch.h"
#include "plan/device.h"
#include "tamis/cuda.h"

namespace tamis::cuda {

// `unsupported`, naming the property, where no device kernel computes the problem. Reads no array.
Status supports(const Problem& problem, const Shape& shape);

// The same for where results go.
Status supports(const OutView& out);

// Where everything lies in the buffers of a step.
struct StepLayout {
  index::IndexLayout index;
  ScratchLayout scratch;
};
StepLayout layout_of(const StepPlan& plan);

// Identifies a plan in scratch: two plans that write scratch differently have different marks.
uint64_t mark_of(const StepPlan& plan);

// A buffer that is missing, off its line or too small.
Status check_buffers(const StepPlan& plan, const StepBuffers& buffers);

inline constexpr int64_t kMostShared = 227 * 1024;  // of a CTA on compute capability 9.0

}  // namespace tamis::cuda
