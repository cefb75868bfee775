// From a plan, a problem and buffers to what the kernels are told. Touches no device.
#pragma once

#include "attention/step_support.h"
#include "kernels/cuda/prefill/launch.h"

namespace tamis::cuda {

// Candidate rows that a step's tensors hold, or that the plan allows where nothing is listed.
int64_t rows_of(const StepPlan& plan, const CandidateView& candidates);

index::DeviceIndex index_of(const StepPlan& plan, const StepBuffers& buffers);
DeviceScratch scratch_of(const StepPlan& plan, const StepBuffers& buffers);

index::NormalizeShared shared_of(const StepPlan& plan, const CandidateView& candidates);
index::NormalizeArgs normalize_args(const StepPlan& plan, const Problem& problem, const Shape& shape,
                                    const StepBuffers& buffers, const index::NormalizeShared& shared);
ScheduleArgs schedule_args(const StepPlan& plan, const StepBuffers& buffers);
DecodeArgs decode_args(const StepPlan& plan, const Problem& problem, const Shape& shape, const OutView& out,
                       const StepBuffers& buffers, StepCounters* counters);

// All but the tensor maps: with blocks describe_side() makes those, from what shape_of_side() says.
PrefillArgs prefill_args(const StepPlan& plan, const Problem& problem, const Shape& shape, const OutView& out,
                         const StepBuffers& buffers, StepCounters* counters);
SideShape shape_of_side(const StepPlan& plan, const Shape& shape);
PrefillKey prefill_key(const Problem& problem, const Shape& shape);

}  // namespace tamis::cuda
