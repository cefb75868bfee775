// How much partial state a plan can need: a bound that follows from capacities alone, and the largest split
// counts that keep it within a budget.
#pragma once

#include <cstdint>

#include "plan/partition.h"
#include "tamis/plan.h"

namespace tamis {

// How rows are split, before the number of blocks is known.
struct SplitRule {
  Split split;
  int64_t shares;    // balanced and even
  int64_t min_part;  // blocks; invariant: of a piece
  int64_t splits;    // forced
};

// Most parts of a row of `row_entries` blocks.
int64_t most_parts(const SplitRule& rule, int64_t row_entries);

// Bytes of partial states: `bound` for any bundles within the capacities, `typical` where all rows of full
// capacities are equally long. Both rise with every capacity; sums that do not fit 64 bits stay at the
// largest number.
WorkspaceSize workspace_size(const SplitRule& rule, const Capacities& capacities, const Shape& shape);

// The rule with as many splits as keep the bound within `budget` bytes: fewer shares, longer pieces, or fewer
// forced parts. Always possible, since rows that are not split need no partial states.
SplitRule fit_budget(const SplitRule& rule, const Capacities& capacities, const Shape& shape, int64_t budget);

}  // namespace tamis
