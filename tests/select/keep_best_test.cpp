// keep_best: exact under ties, blind to NaN and -inf.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>

#include "tamis/select.h"

namespace tamis {
namespace {

using Entries = std::vector<int32_t>;

// Scores of the positions 0, 1, 2, ...
ScoredList list_of(std::vector<float> scores) {
  ScoredList list{.entries = {}, .scores = std::move(scores)};
  for (size_t i = 0; i < list.scores.size(); ++i) list.entries.push_back(static_cast<int32_t>(i));
  return list;
}

TEST(KeepBest, TiesGoToTheLowerPosition) {
  EXPECT_EQ(keep_best(list_of(std::vector<float>(8, 0.5f)), 2), (Entries{0, 1}));
  EXPECT_EQ(keep_best(list_of({-0.f, 0.f}), 1), (Entries{0})) << "zeros are equal whatever their sign";
  EXPECT_EQ(keep_best(list_of({0.f, -0.f}), 1), (Entries{0}));
  EXPECT_EQ(keep_best(list_of({1, 2, 1, 3, 1}), 4), (Entries{0, 1, 2, 3}));
}

// Enough equal scores that a selection algorithm moves them about.
TEST(KeepBest, TiesInALongList) {
  std::vector<float> scores(5000, 1.f);
  scores[4999] = 2;
  Entries expected;
  for (int32_t i = 0; i < 99; ++i) expected.push_back(i);
  expected.push_back(4999);
  EXPECT_EQ(keep_best(list_of(scores), 100), expected);
}

TEST(KeepBest, ScoresStayFloat32) {
  EXPECT_EQ(keep_best(list_of({256, 257}), 1), (Entries{1})) << "equal in bf16";
  std::vector<float> close(8192);
  for (int i = 0; i < 8192; ++i) close[i * 4099 % 8192] = 1.f + static_cast<float>(i) * 0x1p-23f;
  Entries expected;
  for (int i = 8192 - 64; i < 8192; ++i) expected.push_back(i * 4099 % 8192);
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(keep_best(list_of(close), 64), expected);
}

// A budget of 6 tokens buys one whole block of 4: blocks are chosen before they become tokens.
TEST(KeepBest, BlocksAreChosenWhole) { EXPECT_EQ(keep_best(list_of({1, 3, 2}), 6 / 4), (Entries{1})); }

TEST(KeepBest, NaNAndMinusInfinityAreNeverChosen) {
  EXPECT_EQ(keep_best(list_of({NAN, 1, 2}), 2), (Entries{1, 2}));
  EXPECT_EQ(keep_best(list_of({NAN, 1, 2}), 3), (Entries{1, 2}));
  EXPECT_EQ(keep_best(list_of({-NAN, NAN, NAN}), 2), (Entries{}));
  EXPECT_EQ(keep_best(list_of({-INFINITY, -3e38f, -INFINITY}), 3), (Entries{1}));
  EXPECT_EQ(keep_best(list_of({1, INFINITY, NAN, INFINITY}), 2), (Entries{1, 3}));
}

TEST(KeepBest, Budgets) {
  const ScoredList list{.entries = {3, 5, 100}, .scores = {1, 3, 2}};
  EXPECT_EQ(keep_best(list, 2), (Entries{5, 100}));
  EXPECT_EQ(keep_best(list, 3), (Entries{3, 5, 100}));
  EXPECT_EQ(keep_best(list, INT64_MAX), (Entries{3, 5, 100})) << "never more than there are";
  EXPECT_EQ(keep_best(list, 0), (Entries{}));
  EXPECT_EQ(keep_best(list, -5), (Entries{}));
  EXPECT_EQ(keep_best({}, 4), (Entries{}));
}

RC_GTEST_PROP(KeepBest, EqualsASort, ()) {
  const float palette[] = {NAN, -INFINITY, -2, -0.f, 0.f, 0x1p-149f, 1, 1.0000001f, INFINITY};
  std::vector<float> scores(*rc::gen::inRange(0, 200));
  for (float& score : scores) score = palette[*rc::gen::inRange(0, 9)];
  const auto budget = *rc::gen::inRange<int64_t>(0, 220);
  Entries model;
  for (size_t i = 0; i < scores.size(); ++i)
    if (!std::isnan(scores[i]) && scores[i] != -INFINITY) model.push_back(static_cast<int32_t>(i));
  std::stable_sort(model.begin(), model.end(), [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
  if (static_cast<int64_t>(model.size()) > budget) model.resize(budget);
  std::sort(model.begin(), model.end());
  RC_ASSERT(keep_best(list_of(scores), budget) == model);
}

}  // namespace
}  // namespace tamis
