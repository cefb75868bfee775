// What a device step asks of a problem, and how its numbers become kernel arguments.
#pragma once

#include "kernels/cuda/decode/launch.h"
#include "kernels/cuda/prefill/args.h"
#include "plan/device.h"
#include "tamis/cuda.h"

namespace tamis::cuda {

// `unsupported`, naming the property, where no device kernel computes the problem. Reads no array.
Status supports(const Problem& problem, const Shape& shape);

// The same for where results go.
Status supports(const OutView& out);

// The same for the prefill kernel.
Status supports_prefill(int32_t lists);

// Why blocks cannot be brought in as they are, or, in the prefill kernel, as boxes of the copy engine; empty
// where they can.
std::string no_blocks(const Shape& shape, int32_t block);
std::string no_boxes(const Problem& problem, const Shape& shape, int32_t block);

// Whether the blocks of a paged cache outnumber what 32 bits count; blocks divide pages.
inline bool blocks_overflow(const Shape& s, int32_t block) {
  return s.page_size >= block && s.pages > (int64_t{1} << 32) / (s.page_size / block) - 1;
}

// Counters that schedule() sets to 0: of parts that have arrived, for each tile of rows of a group, or of a
// first part where there are fewer parts than groups. The prefill kernel counts by 16 rows, and has
// kWorkCounters of its own at the end.
inline constexpr int64_t kWorkCounters = 3;
int64_t arrivals_of(const StepPlan& plan);
// Sixteen rows of a group, over all of them.
int64_t row_groups_of(const StepPlan& plan);

// Where everything lies in the buffers of a step.
struct StepLayout {
  index::IndexLayout index;
  ScratchLayout scratch;
};
StepLayout layout_of(const StepPlan& plan);

// Identifies a plan in scratch: two plans that write scratch differently have different marks.
uint64_t mark_of(const StepPlan& plan);

// The same for index sets: what a set was made by and for.
index::IndexMark index_mark(const StepPlan& plan, const Problem& problem, const Shape& shape);
// The part that a plan alone tells.
uint64_t index_mark_of(const StepPlan& plan);

// Memory behind everything the kernels read but q, k and v.
Status check_memory(const Problem& problem);

// A buffer that is missing, off its line or too small, and two that overlap.
Status check_buffers(const StepPlan& plan, const StepBuffers& buffers);

// Of a CTA on compute capability 9.0, less what a kernel has of fixed size.
inline constexpr int64_t kMostShared = 226 * 1024;

}  // namespace tamis::cuda
