// The cuts of a group, against what they promise, on random lines of groups.
#include "plan/partition.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

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
                             make_partition(0, 5, false, 64, 8)}) {
    for (const int64_t at : {int64_t{0}, int64_t{8}, int64_t{17}}) {
      const Cuts cuts = cut(p, at, at);
      EXPECT_EQ(cuts.parts, 1);
      EXPECT_EQ(border(cuts, 0), 0);
      EXPECT_EQ(border(cuts, 1), 0);
    }
  }
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
