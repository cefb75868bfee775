// The cuts of a group, against what they promise, on random lines of groups.
#include "plan/partition.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <vector>

namespace tamis {
namespace {

// From the whole range from the first case on.
int64_t pick(int64_t first, int64_t last) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(first, last + 1));
}

std::vector<int64_t> draw_prefix() {
  std::vector<int64_t> prefix{0};
  for (int64_t g = pick(0, 40); g > 0; --g)
    prefix.push_back(prefix.back() +
                     *rc::gen::element<int64_t>(0, 1, pick(0, 20), pick(0, 300), pick(0, 5000)));
  return prefix;
}

int64_t groups_of(const std::vector<int64_t>& prefix) { return static_cast<int64_t>(prefix.size()) - 1; }

void check_borders(const Cuts& cuts, int64_t count) {
  RC_ASSERT(cuts.parts >= 1);
  RC_ASSERT(border(cuts, 0) == 0);
  RC_ASSERT(border(cuts, cuts.parts) == count);
  for (int64_t i = 0; i < cuts.parts; ++i) RC_ASSERT(border(cuts, i) <= border(cuts, i + 1));
}

int64_t longest_part(const Cuts& cuts) {
  int64_t longest = 0;
  for (int64_t i = 0; i < cuts.parts; ++i) longest = std::max(longest, border(cuts, i + 1) - border(cuts, i));
  return longest;
}

int64_t shortest_part(const Cuts& cuts) {
  int64_t shortest = cuts.count;
  for (int64_t i = 0; i < cuts.parts; ++i)
    shortest = std::min(shortest, border(cuts, i + 1) - border(cuts, i));
  return shortest;
}

TEST(Partition, BalancedKeepsItsPromises) {
  EXPECT_TRUE(rc::check("balanced", [] {
    const std::vector<int64_t> prefix = draw_prefix();
    const int64_t total = prefix.back(), shares = pick(1, 70), min_part = pick(1, 40);
    const Partition p = make_partition(total, 0, false, shares, min_part);
    RC_ASSERT(p.share >= min_part);
    int64_t parts = 0;
    for (int64_t g = 0; g < groups_of(prefix); ++g) {
      const int64_t count = prefix[g + 1] - prefix[g];
      const Cuts cuts = cut_group(p, prefix.data(), g);
      check_borders(cuts, count);
      if (count < 2 * min_part) RC_ASSERT(cuts.parts == 1);
      if (cuts.parts > 1) RC_ASSERT(shortest_part(cuts) >= min_part);
      // Inner borders are share borders, and none that fits is left out.
      for (int64_t i = 1; i < cuts.parts; ++i) RC_ASSERT((prefix[g] + border(cuts, i)) % p.share == 0);
      RC_ASSERT(longest_part(cuts) <= p.share + 2 * min_part - 2);
      parts += cuts.parts;
    }
    RC_ASSERT(parts <= groups_of(prefix) + shares);
  }));
}

// Many groups of few lengths: around a share, where one block more is one part more.
std::vector<int64_t> draw_like_lengths() {
  const int64_t length = pick(1, 300);
  std::vector<int64_t> prefix{0};
  for (int64_t g = pick(0, 400); g > 0; --g)
    prefix.push_back(prefix.back() + *rc::gen::element<int64_t>(0, 1, length, length + 1, 2 * length + 1));
  return prefix;
}

// Written out once more from its definition.
__int128 candidate_by_hand(__int128 total, __int128 shares, __int128 min_part, __int128 k) {
  const __int128 lo = std::max<__int128>(1, (total + shares - 1) / shares);
  return std::max(min_part, lo + lo * k / 16);
}

int64_t tasks_by_hand(const std::vector<int64_t>& prefix, int64_t share, int64_t min_part) {
  int64_t tasks = 0;
  for (size_t g = 0; g + 1 < prefix.size(); ++g) {
    const int64_t count = prefix[g + 1] - prefix[g];
    tasks += std::max<int64_t>(1, std::min((count + share - 1) / share, count / min_part));
  }
  return tasks;
}

TEST(Partition, EvenKeepsItsPromises) {
  EXPECT_TRUE(rc::check("even", [] {
    const std::vector<int64_t> prefix = pick(0, 1) == 1 ? draw_prefix() : draw_like_lengths();
    const int64_t groups = groups_of(prefix), shares = pick(1, 300), min_part = pick(1, 40);
    const Partition p = even_partition(even_share(prefix.data(), groups, shares, min_part), min_part);
    RC_ASSERT(p.share >= min_part);
    int64_t tasks = 0, parts = 0, split = 0;
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t count = prefix[g + 1] - prefix[g];
      const Cuts cuts = cut_group(p, prefix.data(), g);
      check_borders(cuts, count);
      for (int64_t i = 0; i <= cuts.parts; ++i) RC_ASSERT(border(cuts, i) == i * count / cuts.parts);
      RC_ASSERT(longest_part(cuts) - shortest_part(cuts) <= 1);
      if (cuts.parts > 1) RC_ASSERT(shortest_part(cuts) >= min_part);
      // Above the share only where one part more would be too short; and no part more than it takes.
      if (longest_part(cuts) > p.share) RC_ASSERT(count / (cuts.parts + 1) < min_part);
      RC_ASSERT(longest_part(cuts) <= std::max(p.share, 2 * min_part - 1));
      if (cuts.parts > 1) RC_ASSERT((count + cuts.parts - 2) / (cuts.parts - 1) > p.share);
      tasks += cuts.parts;
      if (cuts.parts > 1) parts += cuts.parts, ++split;
    }
    // What the workspace bound rests on.
    RC_ASSERT(parts - split < shares);
    // One wave, with no task above twice an equal share, where rows are few.
    if (groups > shares / 2) return;
    RC_ASSERT(tasks <= shares);
    RC_ASSERT(p.share <= std::max(2 * ((prefix.back() + shares - 1) / shares), min_part));
  }));
}

TEST(Partition, EvenShareIsTheSmallestThatFits) {
  EXPECT_TRUE(rc::check("even share", [] {
    const std::vector<int64_t> prefix = pick(0, 1) == 1 ? draw_prefix() : draw_like_lengths();
    const int64_t groups = groups_of(prefix), shares = pick(1, 600), min_part = pick(1, 40);
    const auto candidate = [&](int64_t k) {
      return static_cast<int64_t>(candidate_by_hand(prefix.back(), shares, min_part, k));
    };
    int64_t k = 0;
    while (k < kEvenCandidates && tasks_by_hand(prefix, candidate(k), min_part) > shares) ++k;
    const int64_t expected = candidate(k < kEvenCandidates ? k : 0);
    const int64_t share = even_share(prefix.data(), groups, shares, min_part);
    // A share of the whole line says all that a longer one could.
    RC_ASSERT(share == std::max(min_part, std::min(expected, prefix.back())));
    RC_ASSERT(tasks_by_hand(prefix, share, min_part) == tasks_by_hand(prefix, expected, min_part));
  }));
}

TEST(Partition, EvenCandidatesHoldLongLines) {
  for (const int64_t total :
       {int64_t{0}, int64_t{1}, int64_t{263}, int64_t{1} << 32, (int64_t{1} << 62) - 1, int64_t{1} << 62})
    for (const int64_t shares : {int64_t{1}, int64_t{2}, int64_t{264}, (int64_t{1} << 31) - 1})
      for (const int64_t min_part : {int64_t{1}, int64_t{8}, (int64_t{1} << 31) - 1})
        for (int64_t k = 0; k < kEvenCandidates; ++k) {
          const __int128 most = std::max(min_part, total);
          EXPECT_TRUE(even_candidate(total, shares, min_part, k) ==
                      std::min(most, candidate_by_hand(total, shares, min_part, k)))
              << total << " blocks, " << shares << " shares, at least " << min_part << ", candidate " << k;
        }
}

// Where a group lies on the line does not matter, only what the share is.
TEST(Partition, EvenPartsAreAlignedToTheirRow) {
  for (int64_t count = 0; count < 200; ++count) {
    const Partition p = even_partition(13, 5);
    const Cuts here = cut(p, 0, count), there = cut(p, 1003, 1003 + count);
    ASSERT_EQ(here.parts, there.parts);
    for (int64_t i = 0; i <= here.parts; ++i) EXPECT_EQ(border(here, i), border(there, i));
  }
}

struct Even {
  Partition partition;
  std::vector<int64_t> prefix;
  Cuts cuts(int64_t g) const { return cut_group(partition, prefix.data(), g); }
};

Even even(const std::vector<int64_t>& counts, int64_t min_part) {
  Even out{{}, {0}};
  for (const int64_t count : counts) out.prefix.push_back(out.prefix.back() + count);
  const int64_t share = even_share(out.prefix.data(), groups_of(out.prefix), 264, min_part);
  out.partition = even_partition(share, min_part);
  return out;
}

// 264 workers: rows of 264 blocks in batches of three sizes, and one long row among short ones.
TEST(Partition, EvenWorkedExamples) {
  const struct {
    size_t rows;
    int64_t parts, longest;
  } batches[] = {{8, 33, 8}, {64, 4, 66}, {512, 1, 264}};
  for (const auto& batch : batches) {
    const Even rows = even(std::vector<int64_t>(batch.rows, 264), 8);
    for (size_t g = 0; g < batch.rows; ++g) {
      EXPECT_EQ(rows.cuts(g).parts, batch.parts);
      EXPECT_EQ(shortest_part(rows.cuts(g)), batch.longest);
      EXPECT_EQ(longest_part(rows.cuts(g)), batch.longest);
    }
  }
  // As many rows as workers, of 200 to 463 blocks: one share makes them all fit.
  std::vector<int64_t> unlike(264);
  for (size_t g = 0; g < unlike.size(); ++g) unlike[g] = 200 + static_cast<int64_t>(g * 37 % 264);
  const Even one_each = even(unlike, 8);
  for (size_t g = 0; g < unlike.size(); ++g) EXPECT_EQ(one_each.cuts(g).parts, 1);
  for (const size_t at : {0, 300, 511}) {
    std::vector<int64_t> counts(512, 8);
    counts[at] = 8192;
    const Even rows = even(counts, 8);
    for (size_t g = 0; g < counts.size(); ++g) EXPECT_EQ(rows.cuts(g).parts, g == at ? 175 : 1);
    EXPECT_EQ(longest_part(rows.cuts(at)), 47);  // a 264th of all blocks
  }
}

TEST(Partition, ForcedIsExact) {
  EXPECT_TRUE(rc::check("forced", [] {
    const int64_t count = pick(1, 500), parts = pick(1, 200), begin = pick(0, 1000);
    const Cuts cuts = cut(make_partition(9999, parts, false, 4, 8), begin, begin + count);
    check_borders(cuts, count);
    RC_ASSERT(cuts.parts == parts);
    RC_ASSERT(longest_part(cuts) - shortest_part(cuts) <= 1);
    for (int64_t i = 0; i <= parts; ++i) RC_ASSERT(border(cuts, i) == i * count / parts);
  }));
}

TEST(Partition, InvariantLooksAtTheLengthAlone) {
  EXPECT_TRUE(rc::check("invariant", [] {
    const int64_t count = pick(0, 3000), min_part = pick(1, 60);
    const Cuts alone = cut(make_partition(count, 0, true, 1, min_part), 0, count);
    check_borders(alone, count);
    if (alone.parts > 1) RC_ASSERT(shortest_part(alone) >= min_part);
    RC_ASSERT(longest_part(alone) < 2 * min_part);
    const int64_t begin = pick(0, 100000);
    const Partition other = make_partition(pick(count, 1000000), 0, true, pick(1, 99), min_part);
    const Cuts among = cut(other, begin, begin + count);
    RC_ASSERT(among.parts == alone.parts);
    for (int64_t i = 0; i <= alone.parts; ++i) RC_ASSERT(border(among, i) == border(alone, i));
  }));
}

// Growing a row keeps the borders it had, but the last.
TEST(Partition, InvariantBordersStayWhenARowGrows) {
  const Partition p = make_partition(0, 0, true, 1, 8);
  for (int64_t count = 0; count < 200; ++count) {
    const Cuts before = cut(p, 0, count), after = cut(p, 0, count + 1);
    for (int64_t i = 0; i < before.parts; ++i) EXPECT_EQ(border(before, i), border(after, i));
  }
}

TEST(Partition, EmptyGroupsAreWholeInEveryMode) {
  for (const Partition& p : {make_partition(0, 0, false, 64, 8), make_partition(0, 0, true, 64, 8),
                             make_partition(0, 5, false, 64, 8), even_partition(8, 8)}) {
    for (const int64_t at : {int64_t{0}, int64_t{8}, int64_t{17}}) {
      const Cuts cuts = cut(p, at, at);
      EXPECT_EQ(cuts.parts, 1);
      EXPECT_EQ(border(cuts, 0), 0);
      EXPECT_EQ(border(cuts, 1), 0);
    }
  }
}

// The device skips the sums over groups that are all that short; where every group is cut by itself alone,
// one block more is cut.
TEST(Partition, ShortGroupsAreWhole) {
  EXPECT_TRUE(rc::check([] {
    const int64_t min_part = pick(1, 40), share = pick(min_part, 300), begin = pick(0, 100000);
    for (const Partition& p :
         {Partition{Split::kBalanced, share, min_part, 0}, even_partition(share, min_part),
          make_partition(0, 0, true, 1, min_part), make_partition(0, pick(1, 9), false, 1, min_part)}) {
      const int64_t whole = whole_up_to(p), count = pick(0, std::min<int64_t>(whole, 700));
      RC_ASSERT(cut(p, begin, begin + count).parts == 1);
      if (whole == INT64_MAX) continue;
      RC_ASSERT(cut(p, begin, begin + whole).parts == 1);
      if (p.split == Split::kBalanced) continue;
      RC_ASSERT(cut(p, begin, begin + whole + 1).parts > 1);
    }
  }));
}

// A share border near a group's border gives way to it.
TEST(Partition, SnapsToGroupBorders) {
  const int64_t prefix[] = {0, 95, 203,
                            300};  // shares of 100, minimum 8: borders 100 and 200 are near 95 and 203
  const Partition p = make_partition(300, 0, false, 3, 8);
  for (int64_t g = 0; g < 3; ++g) EXPECT_EQ(cut_group(p, prefix, g).parts, 1);
  const Partition fine = make_partition(300, 0, false, 3, 3);
  EXPECT_EQ(cut_group(fine, prefix, 1).parts, 3);  // at 5 and 105 of 108
}

// 64-bit throughout: a line longer than 2^32 blocks.
TEST(Partition, LongLines) {
  const int64_t begin = int64_t{5} << 40, count = (int64_t{1} << 31) - 1;
  const Cuts balanced = cut(make_partition(int64_t{1} << 43, 0, false, 1 << 20, 8), begin, begin + count);
  EXPECT_EQ(balanced.parts, 256);
  EXPECT_EQ(border(balanced, 256), count);
  const Cuts forced = cut(make_partition(0, 1 << 20, false, 1, 1), begin, begin + count);
  EXPECT_EQ(border(forced, (1 << 20) - 1), ((int64_t{1} << 20) - 1) * count / (1 << 20));
}

}  // namespace
}  // namespace tamis
