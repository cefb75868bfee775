#include "plan/workspace.h"

#include <algorithm>

#include "core/saturating.h"
#include "plan/rows.h"

namespace tamis {
namespace {

int64_t bytes_of(int64_t rows, int64_t v_head_dim) {
  if (rows > kMostSize / 8 / (v_head_dim + 2) - 64) return kMostSize;
  return partial_layout(rows, v_head_dim).bytes;
}

struct Load {
  int64_t rows;        // query rows of all groups: every (query, query head) is in exactly one group
  int64_t group_rows;  // of the largest group
  int64_t blocks;      // of all groups
};

Load load_of(const Capacities& c, const Shape& s) {
  const int64_t most = times(c.queries, s.group);
  const int64_t group_rows = c.group_rows > 0 ? std::min(c.group_rows, most) : most;
  // Only a list that all heads share is walked once per KV head.
  return {times(c.queries, s.q_heads), group_rows, times(c.entries, s.index_heads == 1 ? s.kv_heads : 1)};
}

// Query rows of all parts, counted over the groups that are split. Each line below bounds the same sum.
int64_t most_partial_rows(const SplitRule& rule, int64_t row_entries, const Load& load) {
  const int64_t parts = most_parts(rule, row_entries);
  if (parts <= 1) return 0;
  const int64_t by_group = times(parts, load.rows);
  if (rule.split == Split::kForced) return by_group;
  // No part of a split group is shorter than the minimum.
  const int64_t by_length = times(load.blocks / rule.min_part, load.group_rows);
  if (rule.split == Split::kInvariant) return std::min(by_group, by_length);
  // A group has one part more than it has inner borders, and only groups with a border are split. Balanced
  // borders are share borders. Even ones are as few: a group of n blocks has at most (n - 1) / share, and a
  // share is at least a `shares`-th of all blocks, whether or not a candidate fits.
  const int64_t borders =
      std::max<int64_t>(0, std::min(rule.shares, ceil_div(load.blocks, rule.min_part)) - 1);
  const int64_t by_border =
      plus(std::min(load.rows, times(borders, load.group_rows)), times(borders, load.group_rows));
  return std::min({by_group, by_length, by_border});
}

// Largest x in [low, high] with fits(x), given that fits(low) and that fits never comes back once lost.
template <class Fits>
int64_t largest(int64_t low, int64_t high, Fits fits) {
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    if (fits(middle))
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

}  // namespace

int64_t most_parts(const SplitRule& rule, int64_t row_entries) {
  if (rule.split == Split::kForced) return rule.splits;
  const int64_t by_length = std::max<int64_t>(1, row_entries / rule.min_part);
  return rule.split == Split::kInvariant ? by_length : std::min(by_length, rule.shares);
}

WorkspaceSize workspace_size(const SplitRule& rule, const Capacities& capacities, const Shape& shape) {
  const Load load = load_of(capacities, shape);
  const int64_t groups = std::max<int64_t>(1, ceil_div(load.rows, std::max<int64_t>(1, load.group_rows)));
  const int64_t like = std::min(capacities.row_entries, ceil_div(load.blocks, groups));
  return {.bound = bytes_of(most_partial_rows(rule, capacities.row_entries, load), shape.v_head_dim),
          .typical = bytes_of(most_partial_rows(rule, like, load), shape.v_head_dim)};
}

SplitRule fit_budget(const SplitRule& rule, const Capacities& capacities, const Shape& shape,
                     int64_t budget) {
  const auto fits = [&](const SplitRule& r) { return workspace_size(r, capacities, shape).bound <= budget; };
  SplitRule out = rule;
  switch (rule.split) {
    case Split::kForced:
      out.splits = largest(1, rule.splits, [&](int64_t n) {
        return fits({rule.split, rule.shares, rule.min_part, n});
      });
      break;
    case Split::kBalanced:
    case Split::kEven:
      out.shares = largest(1, rule.shares, [&](int64_t n) {
        return fits({rule.split, n, rule.min_part, rule.splits});
      });
      break;
    case Split::kInvariant: {
      // Pieces above half the longest row leave every row whole.
      const int64_t longest = std::max(rule.min_part, capacities.row_entries);
      out.min_part = longest - largest(0, longest - rule.min_part, [&](int64_t shorter) {
                       return fits({rule.split, rule.shares, longest - shorter, rule.splits});
                     });
      break;
    }
  }
  return out;
}

}  // namespace tamis
