// merge_states: normalized results of disjoint key sets.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "merge/states.h"
#include "tamis/merge.h"

namespace tamis {
namespace {

using namespace testing;
using Array = std::vector<float>;

struct Merged {
  Array out, lse;
};

// outs[s] is [rows, dim], lses[s] is [rows]; the results start as NaN.
Merged merge(const std::vector<Array>& outs, const std::vector<Array>& lses, int64_t rows, int64_t dim) {
  std::vector<const float*> o, l;
  for (const Array& x : outs) o.push_back(x.data());
  for (const Array& x : lses) l.push_back(x.data());
  Merged r{Array(rows * dim, kFloatNaN), Array(rows, kFloatNaN)};
  const Status status = merge_states(o, l, rows, dim, r.out.data(), r.lse.data());
  EXPECT_TRUE(status.ok()) << status.message();
  return r;
}

// docs/semantics.md section 14, as finished results: (m, l, o) is (O = o / l, LSE = m + ln l).
TEST(MergeStates, WorkedNumbers) {
  const Merged two = merge({{2}, {2}}, {{2 + std::log(3.f)}, {1 + std::log(4.f)}}, 1, 1);
  EXPECT_FLOAT_EQ(two.out[0], 2);
  EXPECT_NEAR(two.lse[0], 2 + std::log(4.4715), 1e-5);
  std::vector<Array> outs, lses;
  for (const auto& [m, l] : {std::pair{8.f, 12.f}, {7.f, 18.f}, {9.f, 10.f}, {6.f, 20.f}}) {
    outs.push_back({0});
    lses.push_back({m + std::log(l)});
  }
  EXPECT_NEAR(std::exp(merge(outs, lses, 1, 1).lse[0] - 9), 17.846, 5e-4);
}

// Why the same key must not reach one softmax twice: the merge, which takes keys for disjoint, gives the
// result of a logit that is larger by ln 2.
TEST(MergeStates, AKeyListedTwiceGainsLn2) {
  const double a = 0.75, b = 1.25;
  const Finished both = attention({{a, 1}, {b, 5}}), again = attention({{a, 1}}),
                 gained = attention({{a + std::log(2), 1}, {b, 5}});
  const Merged r = merge({{static_cast<float>(both.out)}, {static_cast<float>(again.out)}},
                         {{static_cast<float>(both.lse)}, {static_cast<float>(again.lse)}}, 1, 1);
  EXPECT_NEAR(r.out[0], gained.out, 1e-6);
  EXPECT_NEAR(r.lse[0], gained.lse, 1e-6);
  EXPECT_GT(std::fabs(r.out[0] - both.out), 0.1);
}

TEST(MergeStates, EmptyPartsWeighNothingAndMayHoldAnything) {
  const float inf = kFloatInf;
  // Rows: both empty; only the second empty; only the first empty; both empty and unwritten.
  const Merged r = merge({{0, 1, kFloatNaN, kFloatNaN}, {0, kFloatNaN, 4, inf}},
                         {{-inf, 0, -inf, -inf}, {-inf, -inf, 3, -inf}}, 4, 1);
  EXPECT_EQ(r.out, (Array{0, 1, 4, 0}));
  EXPECT_EQ(r.lse, (Array{-inf, 0, 3, -inf}));
}

TEST(MergeStates, NoPartsAtAllAreEmpty) {
  const Merged r = merge({}, {}, 2, 2);
  EXPECT_EQ(r.out, (Array{0, 0, 0, 0}));
  EXPECT_EQ(r.lse, (Array{-kFloatInf, -kFloatInf}));
}

// Read as natural, a base-2 LSE would have given 0.119 here.
TEST(MergeStates, NaturalLogarithm) {
  const Merged r = merge({{0}, {1}}, {{std::log(4.f)}, {0}}, 1, 1);
  EXPECT_NEAR(r.out[0], 0.2, 1e-7);
  EXPECT_NEAR(r.lse[0], std::log(5), 1e-6);
  const Merged converted = merge({{0}, {1}}, {{lse_from_base2(2)}, {lse_from_base2(0)}}, 1, 1);
  EXPECT_NEAR(converted.out[0], 0.2, 1e-7);
  EXPECT_NEAR(merge({{0}, {1}}, {{2}, {0}}, 1, 1).out[0], 0.119, 5e-4);
}

TEST(MergeStates, BaseTwoAndBack) {
  EXPECT_FLOAT_EQ(lse_from_base2(1), std::log(2.f));
  EXPECT_FLOAT_EQ(lse_to_base2(std::log(8.f)), 3);
  EXPECT_EQ(lse_from_base2(-kFloatInf), -kFloatInf);
  EXPECT_EQ(lse_to_base2(-kFloatInf), -kFloatInf);
  for (const float x : {-1000.f, -3.5f, 0.f, 0.25f, 44.f, 1e4f})
    EXPECT_FLOAT_EQ(lse_from_base2(lse_to_base2(x)), x);
}

TEST(MergeStates, OneResultComesOutAsItself) {
  const Array out{0.1f, -3.f, 1e-30f, 7e20f}, lse{1234.567f, -88.8f};
  const Array unwritten(4, kFloatNaN), empty(2, -kFloatInf);
  for (const Merged& r : {merge({out}, {lse}, 2, 2), merge({out, unwritten}, {lse, empty}, 2, 2),
                          merge({unwritten, out}, {empty, lse}, 2, 2)}) {
    EXPECT_EQ(r.out, out);
    EXPECT_EQ(r.lse, lse);
  }
}

// exp(LSE_s - LSE) with a rounded LSE of this size would be wrong in the fourth digit.
TEST(MergeStates, ALargeLseCostsNoAccuracy) {
  const Merged r = merge({{1}, {1}, {1}}, {{5000}, {5000}, {4999}}, 1, 1);
  EXPECT_NEAR(r.out[0], 1, 1e-6);
  EXPECT_NEAR(r.lse[0], 5000 + std::log(2 + std::exp(-1)), 3e-4);
}

TEST(MergeStates, BrokenLsesAreNotHidden) {
  for (const float bad : {kFloatNaN, kFloatInf}) {
    const Merged r = merge({{1}, {2}}, {{0}, {bad}}, 1, 1);
    EXPECT_TRUE(std::isnan(r.out[0])) << bad;
    EXPECT_TRUE(std::isnan(r.lse[0])) << bad;
  }
}

// Rows and columns are kept apart at every length of a row, also around the pieces it is summed in.
TEST(MergeStates, RowsAndColumns) {
  for (const int64_t dim : {0, 1, 127, 128, 129, 300}) {
    const int64_t rows = 3;
    Array a(rows * dim), b(rows * dim), expected(rows * dim);
    for (int64_t i = 0; i < rows * dim; ++i) {
      a[i] = static_cast<float>(i);
      b[i] = static_cast<float>(1000 - 2 * i);
      expected[i] = (a[i] + b[i]) / 2;
    }
    const Array lse{5, -7, 0.5f};
    const Merged r = merge({a, b}, {lse, lse}, rows, dim);
    for (int64_t i = 0; i < rows * dim; ++i) ASSERT_FLOAT_EQ(r.out[i], expected[i]) << dim << " " << i;
    for (int64_t i = 0; i < rows; ++i) EXPECT_FLOAT_EQ(r.lse[i], lse[i] + std::log(2.f));
  }
}

TEST(MergeStates, MayWriteOverAnInput) {
  Array a{1, 2, 3, 4}, b{5, 6, 7, 8}, la{0, 1}, lb{2, 0};
  const Merged apart = merge({a, b}, {la, lb}, 2, 2);
  const float *const outs[] = {a.data(), b.data()}, *const lses[] = {la.data(), lb.data()};
  ASSERT_TRUE(merge_states(outs, lses, 2, 2, b.data(), lb.data()).ok());
  EXPECT_EQ(b, apart.out);
  EXPECT_EQ(lb, apart.lse);
}

RC_GTEST_PROP(MergeStates, SplittingAnywhereEqualsTheWhole, ()) {
  const std::vector<Key> keys = any_keys();
  std::vector<Array> outs, lses;
  for (const std::vector<Key>& piece : any_split(keys)) {
    const Finished part = attention(piece);
    outs.push_back({piece.empty() ? kFloatNaN : static_cast<float>(part.out)});
    lses.push_back({static_cast<float>(part.lse)});
  }
  const Finished whole = attention(keys);
  const Merged r = merge(outs, lses, 1, 1);
  RC_ASSERT(near(r.out[0], whole.out, kOutTolerance));
  RC_ASSERT(near(r.lse[0], whole.lse, kLseTolerance));
}

TEST(MergeStates, Refusals) {
  const Array x(4, 1.f);
  Array out(4), lse(2);
  const std::vector<const float*> two{x.data(), x.data()}, one{x.data()}, hole{x.data(), nullptr};
  const auto refused = [](const Status& s, const char* argument) {
    EXPECT_EQ(s.code(), Code::kInvalidArgument);
    EXPECT_EQ(s.message().find(argument), 0u) << s.message();
  };
  refused(merge_states(two, two, -1, 2, out.data(), lse.data()), "rows:");
  refused(merge_states(two, two, 2, -1, out.data(), lse.data()), "dim:");
  refused(merge_states(two, two, int64_t{1} << 40, int64_t{1} << 40, out.data(), lse.data()), "rows:");
  refused(merge_states(two, one, 2, 2, out.data(), lse.data()), "lses: 1 arrays for 2 outs");
  refused(merge_states(one, two, 2, 2, out.data(), lse.data()), "lses: 2 arrays for 1 outs");
  refused(merge_states(hole, two, 2, 2, out.data(), lse.data()), "outs:");
  refused(merge_states(two, hole, 2, 2, out.data(), lse.data()), "lses:");
  refused(merge_states(two, two, 2, 2, nullptr, lse.data()), "out:");
  refused(merge_states(two, two, 2, 2, out.data(), nullptr), "lse:");
  EXPECT_TRUE(merge_states(hole, hole, 0, 2, nullptr, nullptr).ok()) << "no rows, nothing to point at";
}

}  // namespace
}  // namespace tamis
