// Where the blocks of a group are cut into parts. A group is one (bundle, KV head); groups are laid end to
// end, bundle-major, on one line of blocks. Once a Partition is known, everything follows from two numbers of
// a group, where it begins and ends on that line, so each group can be cut alone: the host does so in a loop,
// the device with one thread a group.
//
//   balanced    share borders stand every `share` blocks of the whole line; those that fall inside a group
//               cut it, except where a part would be shorter than `min_part`: there the group's own border
//               is taken.
//   even        as many equal parts as keep each within `share` blocks, border i at floor(i * count / parts),
//               but never so many that one is shorter than `min_part`.
//   invariant   borders every `min_part` blocks from the group's begin; the rest joins the last part. Nothing
//               but the group's own length counts.
//   forced      `parts` parts, border i at floor(i * count / parts); parts of a short group may be empty.
#pragma once

#include <cstdint>

#include "core/hd.h"

namespace tamis {

enum class Split : uint8_t { kBalanced, kEven, kInvariant, kForced };

struct Partition {
  Split split;
  int64_t share;     // at least min_part. balanced: blocks from one share border to the next; even: of a part
  int64_t min_part;  // blocks, at least 1
  int64_t parts;     // forced
};

// `total` blocks of all groups. forced_parts 0: not forced. Shares shorter than min_part would leave parts
// shorter than it, so fewer shares are made then.
TAMIS_HD inline Partition make_partition(int64_t total, int64_t forced_parts, bool invariant, int64_t shares,
                                         int64_t min_part) {
  if (min_part < 1) min_part = 1;
  if (forced_parts > 0) return {Split::kForced, 0, min_part, forced_parts};
  if (invariant) return {Split::kInvariant, 0, min_part, 0};
  if (shares < 1) shares = 1;
  int64_t share = total / shares + (total % shares != 0 ? 1 : 0);
  if (share < min_part) share = min_part;
  return {Split::kBalanced, share, min_part, 0};
}

// count / by, with the short division that devices have where both numbers are short: it is many times
// faster. Called there, since the long one is a hundred instructions that the device would fetch at each
// place.
TAMIS_HD TAMIS_CALLED inline int64_t divide(int64_t count, int64_t by) {
  if (((count | by) >> 32) == 0) return static_cast<uint32_t>(count) / static_cast<uint32_t>(by);
  return count / by;
}

// Even parts. As many workers as there are shares run side by side, so what a step takes is its longest part
// unless there are more tasks than shares: then some worker takes a second one. The share is therefore the
// smallest of a fixed row of candidates with which every task finds a worker of its own. The candidates grow
// in steps of a sixteenth of the least conceivable share, up to almost three times that, and one can be
// judged without the others: the host tries them in order, the device at once.
constexpr int64_t kEvenCandidates = 32;

// Candidate k, 0 .. kEvenCandidates: max(min_part, lo + floor(lo * k / 16)), where `shares` runs of lo blocks
// just hold the line. Never falls with k. A share of `total` leaves every group whole, so there it stops and
// nothing overflows, up to a total of 2^62.
TAMIS_HD inline int64_t even_candidate(int64_t total, int64_t shares, int64_t min_part, int64_t k) {
  if (min_part < 1) min_part = 1;
  if (shares < 1) shares = 1;
  const int64_t whole = divide(total, shares), lo = whole + (whole * shares != total ? 1 : 0);
  const int64_t more = lo / 16 * k + lo % 16 * k / 16;
  const int64_t share = more < total - lo ? lo + more : total;
  return share < min_part ? min_part : share;
}

// Parts of a group of `count` blocks; 1 where there are none, since its task is there all the same.
TAMIS_HD inline int64_t even_parts(int64_t count, int64_t share, int64_t min_part) {
  const int64_t whole = divide(count, share), most = divide(count, min_part);
  const int64_t wanted = whole + (whole * share != count ? 1 : 0);
  const int64_t parts = wanted < most ? wanted : most;
  return parts < 1 ? 1 : parts;
}

// The smallest candidate that gives at most `shares` tasks, or the first where none does: tasks then wait for
// each other anyway, and short ones pack best. prefix [groups + 1]: blocks before each group.
TAMIS_HD inline int64_t even_share(const int64_t* prefix, int64_t groups, int64_t shares, int64_t min_part) {
  if (min_part < 1) min_part = 1;
  const int64_t total = prefix[groups];
  for (int64_t k = 0; k < kEvenCandidates && groups <= shares; ++k) {
    const int64_t share = even_candidate(total, shares, min_part, k);
    int64_t tasks = 0;
    for (int64_t g = 0; g < groups && tasks <= shares; ++g)
      tasks += even_parts(prefix[g + 1] - prefix[g], share, min_part);
    if (tasks <= shares) return share;
  }
  return even_candidate(total, shares, min_part, 0);
}

// `share`: a candidate of this min_part.
TAMIS_HD inline Partition even_partition(int64_t share, int64_t min_part) {
  if (min_part < 1) min_part = 1;
  return {Split::kEven, share < min_part ? min_part : share, min_part, 0};
}

// The parts of one group: at least 1, and exactly 1 where the group has no blocks.
struct Cuts {
  int64_t count;        // blocks of the group
  int64_t parts;        // part i is blocks [border(i), border(i + 1)) of the group
  int64_t first, step;  // border i is first + (i - 1) * step; step 0: floor(i * count / parts)
};

TAMIS_HD inline int64_t border(const Cuts& cuts, int64_t i) {
  if (i <= 0) return 0;
  if (i >= cuts.parts) return cuts.count;
  if (cuts.step == 0) return divide(i * cuts.count, cuts.parts);
  return cuts.first + (i - 1) * cuts.step;
}

TAMIS_HD inline Cuts whole(int64_t count) { return {count, 1, 0, 0}; }

// Cuts the group that holds blocks [begin, end) of the line.
TAMIS_HD inline Cuts cut(const Partition& p, int64_t begin, int64_t end) {
  const int64_t count = end - begin;
  if (count <= 0) return whole(0);
  switch (p.split) {
    case Split::kForced:
      return {count, p.parts, 0, 0};
    case Split::kEven:
      return {count, even_parts(count, p.share, p.min_part), 0, 0};
    case Split::kInvariant: {
      const int64_t parts = count / p.min_part;
      return parts < 2 ? whole(count) : Cuts{count, parts, p.min_part, p.min_part};
    }
    case Split::kBalanced:
      break;
  }
  if (count < 2 * p.min_part) return whole(count);
  // The first share border that leaves min_part blocks before it, and the last place that leaves so many
  // behind.
  const int64_t first = (begin + p.min_part + p.share - 1) / p.share * p.share, last = end - p.min_part;
  if (last < first) return whole(count);
  return {count, (last - first) / p.share + 2, first - begin, p.share};
}

// A group of so many blocks, or fewer, is whole wherever it begins.
TAMIS_HD inline int64_t whole_up_to(const Partition& p) {
  if (p.split == Split::kForced) return p.parts > 1 ? 0 : INT64_MAX;
  const int64_t two = 2 * p.min_part - 1;
  return p.split == Split::kEven && p.share > two ? p.share : two;
}

// The same for group `g` of a prefix sum of blocks, prefix [groups + 1].
TAMIS_HD inline Cuts cut_group(const Partition& p, const int64_t* prefix, int64_t g) {
  return cut(p, prefix[g], prefix[g + 1]);
}

}  // namespace tamis
