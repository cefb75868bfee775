// The monoid of docs/semantics.md section 5: its laws, its worked numbers, and what it never reads.
#include "merge/state.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "merge/states.h"

namespace tamis {
namespace {

using namespace testing;

State joined(State a, const State& b) {
  const Weights w = join(a.m, a.l, b.m, b.l);
  a.o = weigh(w.a, a.o) + weigh(w.b, b.o);
  return a;
}

Finished finished(const State& s) { return {finish_out(s.o, s.l), finish_lse(s.m, s.l)}; }

void expect_same(const State& a, const State& b) {
  EXPECT_EQ(a.m, b.m);
  EXPECT_EQ(a.l, b.l);
  EXPECT_EQ(a.o, b.o);
}

TEST(State, WorkedSplitMerge) {
  const State s = joined({2, 3, 6}, {1, 4, 8});
  EXPECT_EQ(s.m, 2);
  EXPECT_NEAR(s.l, 4.4715, 5e-5);
  EXPECT_NEAR(s.o, 8.9430, 5e-5);
  EXPECT_FLOAT_EQ(static_cast<float>(finished(s).out), 2.f) << "4 is the sum of outputs normalized too early";
  EXPECT_NEAR(finished(s).lse, 2 + std::log(3 + 4 / std::exp(1)), 1e-6);
}

TEST(State, WorkedMergeOfFour) {
  State s{};
  for (const State& part : {State{8, 12, 0}, State{7, 18, 0}, State{9, 10, 0}, State{6, 20, 0}})
    s = joined(s, part);
  EXPECT_EQ(s.m, 9);
  EXPECT_NEAR(s.l, 17.846, 5e-4);
}

TEST(State, EmptyStatesGiveAnEmptyState) {
  const State s = joined(State{}, State{});
  EXPECT_EQ(s.l, 0);
  EXPECT_EQ(finished(s).out, 0);
  EXPECT_EQ(finished(s).lse, -kFloatInf);
}

TEST(State, WhatAnEmptyStateHoldsIsNeverRead) {
  const State full{3, 2, 5};
  for (const float garbage : {kFloatNaN, kFloatInf, -kFloatInf, 1e30f}) {
    const State empty{garbage, 0, garbage};
    expect_same(joined(full, empty), full);
    expect_same(joined(empty, full), full);
    EXPECT_EQ(finished(joined(empty, empty)).out, 0);
    EXPECT_EQ(finished(joined(empty, empty)).lse, -kFloatInf);
  }
}

TEST(State, ScoresFarApartNeitherOverflowNorUnderflow) {
  const State high{200, 1, 7}, low{-120, 1, 3};
  for (const State& s : {joined(high, low), joined(low, high)}) {
    EXPECT_EQ(finished(s).out, 7);
    EXPECT_EQ(finished(s).lse, 200);
  }
  EXPECT_EQ(finished(joined(low, State{})).lse, -120);
}

TEST(State, NaNInAStateThatIsNotEmptyIsNotHidden) {
  const State good{1, 2, 3};
  for (const State& bad : {State{kFloatNaN, 1, 1}, State{kFloatInf, 1, 1}})
    for (const State& s : {joined(good, bad), joined(bad, good)}) {
      EXPECT_TRUE(std::isnan(finished(s).lse));
      EXPECT_TRUE(std::isnan(finished(s).out));
    }
}

RC_GTEST_PROP(State, TheIdentityIsExactOnBothSides, ()) {
  const State s = state_of(any_keys());
  for (const State& t : {joined(s, State{}), joined(State{}, s)}) {
    RC_ASSERT(t.l == s.l);
    RC_ASSERT(t.o == s.o);
    RC_ASSERT(s.l == 0 || t.m == s.m);
  }
}

// Not bit for bit: where multiplication and addition fuse, the order of the terms shows in the last bit.
RC_GTEST_PROP(State, JoinCommutes, ()) {
  const State a = state_of(any_keys()), b = state_of(any_keys());
  const Finished ab = finished(joined(a, b)), ba = finished(joined(b, a));
  RC_ASSERT(near(ab.out, ba.out, kOutTolerance));
  RC_ASSERT(near(ab.lse, ba.lse, kLseTolerance));
}

RC_GTEST_PROP(State, JoinIsAssociative, ()) {
  const State a = state_of(any_keys()), b = state_of(any_keys()), c = state_of(any_keys());
  const Finished left = finished(joined(joined(a, b), c)), right = finished(joined(a, joined(b, c)));
  RC_ASSERT(near(left.out, right.out, kOutTolerance));
  RC_ASSERT(near(left.lse, right.lse, kLseTolerance));
}

RC_GTEST_PROP(State, SplittingAnywhereEqualsTheWhole, ()) {
  const std::vector<Key> keys = any_keys();
  State s{};
  for (const std::vector<Key>& piece : any_split(keys)) s = joined(s, state_of(piece));
  const Finished whole = attention(keys);
  RC_ASSERT(near(finished(s).out, whole.out, kOutTolerance));
  RC_ASSERT(near(finished(s).lse, whole.lse, kLseTolerance));
}

}  // namespace
}  // namespace tamis
