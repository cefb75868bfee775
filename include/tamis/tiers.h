// Capacity tiers: which widths to keep ready, given how long rows have been.
//
// Rows of many lengths are served by a few fixed widths, the edges of tiers: each row takes the smallest edge
// that holds it and is padded up to it. More tiers waste less, and each costs something of its own to keep (a
// captured graph, a buffer). For a recorded distribution of lengths the best edges are found exactly:
//
//     expected_cost = sum over lengths l of  weight(l) / rows * (per_row + per_entry * edge(l))
//     total_cost    = expected_cost + price * tiers
//
// All costs are in one unit, whichever the caller likes; `price` is per tier and mean row. per_row is the
// same whatever the edges are, so it never changes the choice, only what it is compared with.
// docs/tiers.md works it out. Nothing here reads candidates; convert.h makes the tiers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tamis/status.h"

namespace tamis {

// `weight` rows were `length` entries long. A length may be named several times; weight 0 is as good as
// absent.
struct LengthWeight {
  int64_t length = 0;  // [0, 2^30]
  int64_t weight = 1;  // >= 0; all together below 2^62
};

struct TierCost {
  double per_row = 0;    // of serving a row, whatever its tier
  double per_entry = 1;  // of an entry of its tier, used or padded
  double price = 0;      // of a tier
};

struct TierOptions {
  int64_t multiple_of = 1;  // edges are multiples of it
  int64_t most = 0;         // most tiers; 0: as many as pay
};

struct TierUse {
  int64_t edge = 0, rows = 0;
  int64_t used = 0, allocated = 0;  // entries; saturating
  double utilization = 0;           // used over allocated; 0/0 counts as 0
};

struct TierReport {
  std::vector<TierUse> tiers;  // edges ascending; of a given choice also those without rows
  int64_t rows = 0;
  double expected_cost = 0, total_cost = 0, utilization = 0;
  // The same rows at one fixed width, the largest edge; no tier when there are no rows.
  TierUse fixed;
  double fixed_expected_cost = 0, fixed_total_cost = 0;
};

// The edges of least total cost; of equally good ones the fewest, then the smallest (compared from the first
// edge on). No rows: no edges. Edges are taken among the lengths rounded up to `multiple_of`: any other edge
// could be lowered for less.
//
// Sums are exact integers; the price, in entries over all rows, is rounded once, to 2^-20 of an entry. So two
// choices are equal or not the same way everywhere. Time O(n^2) for n such edges, O(most * n^2) where `most`
// cuts; n above 16384, or most * n^2 above 2^33, is capacity_exceeded: raise multiple_of.
Result<std::vector<int64_t>> choose_tiers(std::span<const LengthWeight> lengths, const TierCost& cost,
                                          const TierOptions& options = {});

// What given edges cost. A length above the last edge is capacity_exceeded.
Result<TierReport> evaluate_tiers(std::span<const LengthWeight> lengths, std::span<const int64_t> edges,
                                  const TierCost& cost);

}  // namespace tamis
