// gated_sum: branches with gates of their own.
#include <gtest/gtest.h>

#include "merge/states.h"
#include "tamis/merge.h"

namespace tamis {
namespace {

using namespace testing;
using Array = std::vector<float>;

Array gated(const std::vector<Array>& outs, const std::vector<Array>& gates, int64_t rows, int64_t dim) {
  std::vector<const float*> o, g;
  for (const Array& x : outs) o.push_back(x.data());
  for (const Array& x : gates) g.push_back(x.data());
  Array out(rows * dim, kFloatNaN);
  const Status status = gated_sum(o, g, rows, dim, out.data());
  EXPECT_TRUE(status.ok()) << status.message();
  return out;
}

TEST(GatedSum, SumsByRow) {
  EXPECT_EQ(gated({{1, 2, 3, 4}, {10, 20, 30, 40}}, {{1, 0.5f}, {2, -1}}, 2, 2),
            (Array{21, 42, -28.5f, -38}));
  EXPECT_EQ(gated({}, {}, 1, 2), (Array{0, 0}));
}

TEST(GatedSum, AGateOfZeroSkipsItsBranch) {
  for (const float zero : {0.f, -0.f})
    for (const float garbage : {kFloatNaN, kFloatInf})
      EXPECT_EQ(gated({{garbage}, {3}}, {{zero}, {2}}, 1, 1)[0], 6);
  EXPECT_TRUE(std::isnan(gated({{kFloatNaN}, {3}}, {{1e-30f}, {2}}, 1, 1)[0])) << "only 0 skips";
  EXPECT_TRUE(std::isnan(gated({{1}, {3}}, {{kFloatNaN}, {2}}, 1, 1)[0]));
}

// Gates 1 and 1 add two softmaxes; one softmax over the union would give the mean.
TEST(GatedSum, IsNoSoftmaxOverTheUnion) { EXPECT_EQ(gated({{2}, {4}}, {{1}, {1}}, 1, 1)[0], 6); }

TEST(GatedSum, SumsInTheOrderGiven) {
  EXPECT_EQ(gated({{1e8f}, {-1e8f}, {1}}, {{1}, {1}, {1}}, 1, 1)[0], 1);
  EXPECT_EQ(gated({{1}, {1e8f}, {-1e8f}}, {{1}, {1}, {1}}, 1, 1)[0], 0);
}

TEST(GatedSum, Refusals) {
  const Array x(4, 1.f);
  Array out(4);
  const std::vector<const float*> two{x.data(), x.data()}, one{x.data()}, hole{x.data(), nullptr};
  const auto refused = [](const Status& s, const char* argument) {
    EXPECT_EQ(s.code(), Code::kInvalidArgument);
    EXPECT_EQ(s.message().find(argument), 0u) << s.message();
  };
  refused(gated_sum(two, two, -1, 2, out.data()), "rows:");
  refused(gated_sum(two, two, 2, -1, out.data()), "dim:");
  refused(gated_sum(two, one, 2, 2, out.data()), "gates: 1 arrays for 2 outs");
  refused(gated_sum(one, two, 2, 2, out.data()), "gates: 2 arrays for 1 outs");
  refused(gated_sum(hole, two, 2, 2, out.data()), "outs:");
  refused(gated_sum(two, hole, 2, 2, out.data()), "gates:");
  refused(gated_sum(two, two, 2, 2, nullptr), "out:");
}

}  // namespace
}  // namespace tamis
