// Joining branches: union and scored join, against models built on std::set and std::map.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "select/lists.h"
#include "tamis/select.h"

namespace tamis {
namespace {

using namespace testing;

ScoredList scored(const std::vector<List>& lists, ScoreJoin rule) {
  const auto joined = join_scored(branches_of(lists), rule);
  EXPECT_TRUE(joined.ok()) << joined.status().message();
  return joined.ok() ? *joined : ScoredList{};
}

std::vector<int32_t> united(const std::vector<List>& lists) {
  const auto joined = join_union(branches_of(lists));
  EXPECT_TRUE(joined.ok()) << joined.status().message();
  return joined.ok() ? *joined : std::vector<int32_t>{};
}

Status refusal(const std::vector<List>& lists, ScoreJoin rule) {
  return join_scored(branches_of(lists), rule).status();
}

// Dynamic, sink and window lists that overlap, padding and repetition in between: one entry each.
TEST(JoinUnion, OverlapCountsOnce) {
  EXPECT_EQ(united({{{0, 7}, {}}, {{0}, {}}, {{6, 7}, {}}}), (std::vector<int32_t>{0, 6, 7}));
  EXPECT_EQ(united({{{-1, 5, -1, 3, 5}, {}}}), (std::vector<int32_t>{3, 5}));
  EXPECT_EQ(united({{{INT32_MAX, 0}, {}}}), (std::vector<int32_t>{0, INT32_MAX}));
  EXPECT_TRUE(united({}).empty());
  EXPECT_TRUE(united({{{-1, -1}, {}}, {}}).empty());
}

TEST(JoinUnion, Refusals) {
  for (const int32_t bad : {-2, INT32_MIN}) {
    const auto joined = join_union(branches_of({{{1}, {}}, {{4, bad}, {}}}));
    EXPECT_EQ(joined.status().code(), Code::kIndexOutOfRange);
    EXPECT_EQ(joined.status().where().value, bad);
  }
  EXPECT_EQ(join_union(branches_of({{{1, 2}, {0.5f}}})).status().code(), Code::kInvalidArgument);
}

TEST(JoinScored, Rules) {
  const std::vector<List> lists{{{4, 1, -1}, {2, 5, NAN}}, {{1, 9}, {-3, 0}}};
  EXPECT_EQ(scored(lists, ScoreJoin::kMax).entries, (std::vector<int32_t>{1, 4, 9}));
  EXPECT_EQ(scored(lists, ScoreJoin::kMax).scores, (std::vector<float>{5, 2, 0}));
  EXPECT_EQ(scored(lists, ScoreJoin::kSum).scores, (std::vector<float>{2, 2, 0}));
  EXPECT_EQ(scored(lists, ScoreJoin::kReplace).scores, (std::vector<float>{-3, 2, 0}));
}

TEST(JoinScored, APositionRepeatedInOneBranchJoinsWithItself) {
  const std::vector<List> lists{{{3, 3, 3}, {1, 4, 2}}};
  EXPECT_EQ(scored(lists, ScoreJoin::kMax).scores, (std::vector<float>{4}));
  EXPECT_EQ(scored(lists, ScoreJoin::kSum).scores, (std::vector<float>{7}));
  EXPECT_EQ(scored(lists, ScoreJoin::kReplace).scores, (std::vector<float>{2}));
}

TEST(JoinScored, NaN) {
  const std::vector<List> lists{{{1, 2}, {NAN, NAN}}, {{2}, {-7}}};
  const ScoredList best = scored(lists, ScoreJoin::kMax);
  EXPECT_EQ(best.entries, (std::vector<int32_t>{1, 2})) << "the score is skipped, the position stays";
  EXPECT_EQ(best.scores, (std::vector<float>{-INFINITY, -7}));
  EXPECT_EQ(keep_best(best, 2), (std::vector<int32_t>{2})) << "but is never chosen";
  for (const ScoreJoin rule : {ScoreJoin::kSum, ScoreJoin::kReplace}) {
    EXPECT_EQ(refusal(lists, rule).code(), Code::kInvalidArgument);
    EXPECT_EQ(refusal(lists, rule).where().value, 1);
    EXPECT_EQ(refusal({{{2}, {NAN}}, {{2}, {0}}}, rule).code(), Code::kInvalidArgument)
        << "also where a later branch would have replaced it";
  }
}

TEST(JoinScored, Infinities) {
  EXPECT_EQ(scored({{{2}, {INFINITY}}, {{2}, {3}}}, ScoreJoin::kSum).scores, (std::vector<float>{INFINITY}));
  EXPECT_EQ(refusal({{{2}, {INFINITY}}, {{2}, {-INFINITY}}}, ScoreJoin::kSum).code(), Code::kInvalidArgument);
}

TEST(JoinScored, Refusals) {
  for (const ScoreJoin rule : {ScoreJoin::kMax, ScoreJoin::kSum, ScoreJoin::kReplace}) {
    EXPECT_EQ(refusal({{{1, 2}, {0}}}, rule).code(), Code::kInvalidArgument) << "too few scores";
    EXPECT_EQ(refusal({{{1}, {0, 0}}}, rule).code(), Code::kInvalidArgument) << "too many";
    EXPECT_EQ(refusal({{{1}, {}}}, rule).code(), Code::kInvalidArgument) << "none";
    EXPECT_EQ(refusal({{{1, -2}, {0, 0}}}, rule).code(), Code::kIndexOutOfRange);
    EXPECT_TRUE(refusal({{{}, {}}}, rule).ok()) << "no entries need no scores";
  }
}

RC_GTEST_PROP(JoinUnion, EqualsASet, ()) {
  const std::vector<List> lists = any_lists();
  std::set<int32_t> model;
  for (const List& list : lists)
    for (const int32_t e : list.entries)
      if (e != -1) model.insert(e);
  RC_ASSERT(united(lists) == std::vector<int32_t>(model.begin(), model.end()));
}

RC_GTEST_PROP(JoinUnion, IsIdempotentAndCommutes, ()) {
  const std::vector<List> lists = any_lists();
  std::vector<List> twice = lists, reversed = lists;
  twice.insert(twice.end(), lists.begin(), lists.end());
  std::reverse(reversed.begin(), reversed.end());
  RC_ASSERT(united(twice) == united(lists));
  RC_ASSERT(united(reversed) == united(lists));
  RC_ASSERT(united({{united(lists), {}}}) == united(lists));
}

RC_GTEST_PROP(JoinScored, EqualsAMap, ()) {
  const std::vector<List> lists = any_lists();
  for (const ScoreJoin rule : {ScoreJoin::kMax, ScoreJoin::kSum, ScoreJoin::kReplace}) {
    std::map<int32_t, float> model;
    for (const List& list : lists)
      for (size_t i = 0; i < list.entries.size(); ++i) {
        if (list.entries[i] == -1) continue;
        const auto [at, fresh] = model.insert({list.entries[i], list.scores[i]});
        if (fresh) continue;
        if (rule == ScoreJoin::kMax) at->second = std::fmax(at->second, list.scores[i]);
        if (rule == ScoreJoin::kSum) at->second += list.scores[i];
        if (rule == ScoreJoin::kReplace) at->second = list.scores[i];
      }
    const ScoredList joined = scored(lists, rule);
    RC_ASSERT(joined.entries.size() == model.size());
    size_t i = 0;
    for (const auto& [position, score] : model) {
      RC_ASSERT(joined.entries[i] == position);
      RC_ASSERT(joined.scores[i++] == score);
    }
  }
}

}  // namespace
}  // namespace tamis
