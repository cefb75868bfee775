// Tier edges: worked numbers, edges of the input, and brute force over every choice.
#include "tamis/tiers.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <set>

#include "support/expect.h"

namespace tamis {
namespace {

using testing::says;
using Edges = std::vector<int64_t>;
using Lengths = std::vector<LengthWeight>;

Edges chosen(const Lengths& lengths, const TierCost& cost, const TierOptions& options = {}) {
  const auto edges = choose_tiers(lengths, cost, options);
  EXPECT_TRUE(edges.ok()) << edges.status().message();
  return edges.ok() ? *edges : Edges{-1};
}

TierReport report(const Lengths& lengths, const Edges& edges, const TierCost& cost = {}) {
  const auto found = evaluate_tiers(lengths, edges, cost);
  EXPECT_TRUE(found.ok()) << found.status().message();
  return found.ok() ? *found : TierReport{};
}

Status refused(const Lengths& lengths, const TierCost& cost = {}, const TierOptions& options = {}) {
  const Status status = choose_tiers(lengths, cost, options).status();
  EXPECT_FALSE(status.ok());
  return status;
}

const Lengths kWorked{{64, 1}, {100, 1}, {129, 1}};

// docs/semantics.md section 14.
TEST(Tiers, Worked) {
  const TierReport one = report({{129, 1}}, {128, 256});
  ASSERT_EQ(one.tiers.size(), 2u);
  EXPECT_EQ(one.tiers[0].rows, 0);
  EXPECT_EQ(one.tiers[1].rows, 1);
  EXPECT_EQ(one.tiers[1].allocated - one.tiers[1].used, 127);
  const TierReport three = report(kWorked, {64, 128, 256}, {.per_row = 2, .price = 10});
  EXPECT_NEAR(100 * three.fixed.utilization, 38.15, 0.005);
  EXPECT_NEAR(100 * three.utilization, 65.40, 0.005);
  EXPECT_EQ(three.fixed.edge, 256);
  EXPECT_DOUBLE_EQ(three.expected_cost, 2 + 448. / 3);
  EXPECT_DOUBLE_EQ(three.total_cost, 2 + 448. / 3 + 30);
  EXPECT_DOUBLE_EQ(three.fixed_expected_cost, 258);
  EXPECT_DOUBLE_EQ(three.fixed_total_cost, 268);
}

// Of (64, 100, 129): all in one tier cost 129 a row; {64, 129} 322/3, {100, 129} 329/3; all three 293/3.
TEST(Tiers, ThePriceDecidesHowMany) {
  EXPECT_EQ(chosen(kWorked, {.price = 0}), (Edges{64, 100, 129}));
  EXPECT_EQ(chosen(kWorked, {.price = 9.5}), (Edges{64, 100, 129}));  // 29 / 3 is what the third saves
  EXPECT_EQ(chosen(kWorked, {.price = 10}), (Edges{64, 129}));
  EXPECT_EQ(chosen(kWorked, {.price = 21.5}), (Edges{64, 129}));  // 65 / 3 is what the second saves
  EXPECT_EQ(chosen(kWorked, {.price = 22}), (Edges{129}));
  EXPECT_EQ(chosen(kWorked, {.per_entry = 2, .price = 19}), (Edges{64, 100, 129})) << "only the ratio counts";
  EXPECT_EQ(chosen(kWorked, {.per_row = 1e9, .price = 10}), (Edges{64, 129})) << "no choice saves a row";
}

TEST(Tiers, MultiplesAndMost) {
  EXPECT_EQ(chosen(kWorked, {}, {.multiple_of = 64}), (Edges{64, 128, 192}));
  EXPECT_EQ(chosen(kWorked, {}, {.multiple_of = 128}), (Edges{128, 256}));
  EXPECT_EQ(chosen(kWorked, {}, {.multiple_of = 1000}), (Edges{1000}));
  EXPECT_EQ(chosen(kWorked, {}, {.most = 3}), (Edges{64, 100, 129}));
  EXPECT_EQ(chosen(kWorked, {}, {.most = 2}), (Edges{64, 129}));
  EXPECT_EQ(chosen(kWorked, {}, {.most = 1}), (Edges{129}));
}

TEST(Tiers, TiesGoToFewerThenToSmaller) {
  // A tier of its own saves 2 rows x 10 entries of 4 rows: 5 a row, exactly its price.
  EXPECT_EQ(chosen({{10, 2}, {20, 2}}, {.price = 5}), (Edges{20}));
  // {1, 3} and {2, 3} both cost 1 + 3 + 3 = 2 + 2 + 3 entries.
  EXPECT_EQ(chosen({{1, 1}, {2, 1}, {3, 1}}, {}, {.most = 2}), (Edges{1, 3}));
  EXPECT_EQ(chosen({{10, 1}, {20, 1}}, {.per_entry = 0}), (Edges{20})) << "padding is free";
}

TEST(Tiers, OddDistributions) {
  EXPECT_EQ(chosen({}, {}), Edges{});
  EXPECT_EQ(chosen({{7, 0}, {9, 0}}, {}), Edges{}) << "weight 0 is absent";
  EXPECT_EQ(chosen({{7, 3}, {900, 0}}, {}), Edges{7});
  EXPECT_EQ(chosen({{0, 5}}, {}), Edges{0});
  EXPECT_EQ(chosen({{0, 5}}, {}, {.multiple_of = 16}), Edges{0});
  EXPECT_EQ(chosen({{0, 1}, {8, 1}}, {.price = 3}), (Edges{0, 8}));
  EXPECT_EQ(chosen({{8, 1}, {8, 1}, {8, 5}}, {.price = 3}), Edges{8});
  EXPECT_EQ(chosen({{129, 1}, {64, 1}, {100, 1}}, {}), (Edges{64, 100, 129})) << "in any order";
  EXPECT_EQ(report({}, {}).rows, 0);
  EXPECT_EQ(report({}, {}).utilization, 0);
  EXPECT_EQ(report({{0, 4}}, {0}).utilization, 0);
  EXPECT_EQ(report({}, {4, 8}, {.price = 2}).total_cost, 4) << "kept ready for nobody";
  EXPECT_EQ(report({{500, 0}, {4, 1}}, {4}).rows, 1);
}

// The sums pass 2^63 long before they pass 128 bits.
TEST(Tiers, HugeSums) {
  const int64_t many = (int64_t{1} << 61) - 1, length = int64_t{1} << 30;
  const Lengths huge{{length - 1, many}, {length, many}};
  EXPECT_EQ(chosen(huge, {.price = 0.25}), (Edges{length - 1, length})) << "half an entry a row is saved";
  EXPECT_EQ(chosen(huge, {.price = 0.75}), (Edges{length}));
  // Just below 2^63 entries apart, above it together.
  EXPECT_EQ(chosen({{10, 2}, {length, (int64_t{1} << 33) - 1}}, {}), (Edges{10, length}));
  EXPECT_EQ(chosen(huge, {.per_entry = 1e-300, .price = 1e300}), (Edges{length}));
  EXPECT_EQ(chosen(huge, {.price = std::numeric_limits<double>::max()}), (Edges{length}));
  const TierReport r = report(huge, {length});
  EXPECT_EQ(r.rows, 2 * many);
  EXPECT_EQ(r.tiers[0].allocated, std::numeric_limits<int64_t>::max()) << "saturates";
  EXPECT_NEAR(r.utilization, 1, 1e-8);
  EXPECT_DOUBLE_EQ(r.expected_cost, static_cast<double>(length));
  EXPECT_TRUE(says(refused({{1, many}, {2, many}, {3, 2}}), "weight"));
  EXPECT_TRUE(says(refused({{1, std::numeric_limits<int64_t>::max()}, {2, 1}}), "weight"));
}

TEST(Tiers, Refusals) {
  for (const int64_t bad : {int64_t{-1}, (int64_t{1} << 30) + 1, std::numeric_limits<int64_t>::min()}) {
    EXPECT_EQ(refused({{bad, 1}}).code(), Code::kInvalidArgument);
    EXPECT_EQ(refused({{bad, 1}}).where().value, bad);
  }
  EXPECT_TRUE(says(refused({{1, -1}}), "weight"));
  for (const double bad : {-1., std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_TRUE(says(refused(kWorked, {.price = bad}), "price"));
    EXPECT_TRUE(says(refused(kWorked, {.per_row = bad}), "per_row"));
    EXPECT_TRUE(says(refused(kWorked, {.per_entry = bad}), "per_entry"));
  }
  EXPECT_TRUE(says(refused(kWorked, {}, {.multiple_of = 0}), "multiple_of"));
  EXPECT_TRUE(says(refused(kWorked, {}, {.multiple_of = int64_t{1} << 40}), "multiple_of"));
  EXPECT_TRUE(says(refused(kWorked, {}, {.most = -1}), "most"));
  const Status cut = evaluate_tiers(kWorked, Edges{64, 128}, {}).status();
  EXPECT_EQ(cut.code(), Code::kCapacityExceeded) << "never cut";
  EXPECT_EQ(cut.where().value, 129);
  EXPECT_EQ(evaluate_tiers(kWorked, Edges{}, {}).status().code(), Code::kCapacityExceeded);
  EXPECT_EQ(evaluate_tiers(kWorked, Edges{256, 128}, {}).status().code(), Code::kInvalidArgument);
}

TEST(Tiers, TooManyLengths) {
  Lengths lengths;
  for (int64_t i = 0; i <= 16384; ++i) lengths.push_back({i, 1});
  EXPECT_EQ(refused(lengths).code(), Code::kCapacityExceeded);
  EXPECT_TRUE(says(refused(lengths), "multiple_of"));
  EXPECT_EQ(chosen(lengths, {.price = 1e9}, {.multiple_of = 64}), Edges{16384});
  lengths.pop_back();
  EXPECT_TRUE(says(refused(lengths, {}, {.most = 100}), "most"));
}

// Every set of edges that ends at the longest, in exact numbers: prices are multiples of 1/8, and the price
// over all rows is compared, so nothing rounds.
Edges by_brute_force(const Lengths& lengths, double price, const TierOptions& options) {
  std::set<int64_t> all;
  int64_t rows = 0;
  for (const auto& [length, weight] : lengths) {
    if (weight == 0) continue;
    all.insert((length + options.multiple_of - 1) / options.multiple_of * options.multiple_of);
    rows += weight;
  }
  const Edges candidates(all.begin(), all.end());
  if (candidates.empty()) return {};
  Edges best;
  double least = 0;
  for (uint32_t bits = 0; bits < 1u << (candidates.size() - 1); ++bits) {
    Edges edges;
    for (size_t i = 0; i + 1 < candidates.size(); ++i)
      if (bits >> i & 1) edges.push_back(candidates[i]);
    edges.push_back(candidates.back());
    if (options.most > 0 && std::ssize(edges) > options.most) continue;
    double cost = price * static_cast<double>(rows) * static_cast<double>(edges.size());
    for (const auto& [length, weight] : lengths) {
      if (weight == 0) continue;
      int64_t edge = 0;
      for (size_t i = edges.size(); i-- > 0;)
        if (edges[i] >= length) edge = edges[i];
      cost += static_cast<double>(weight * edge);
    }
    const bool first = best.empty();
    if (first || cost < least ||
        (cost == least && (edges.size() < best.size() || (edges.size() == best.size() && edges < best)))) {
      best = edges;
      least = cost;
    }
  }
  return best;
}

// The whole range in every try: small tries would be small in everything at once.
int64_t any(int64_t first, int64_t last) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(first, last + 1));
}

// Few lengths and small prices, so that ties are common.
RC_GTEST_PROP(Tiers, EqualsBruteForce, ()) {
  const int64_t most_length = *rc::gen::element<int64_t>(4, 12, 30, 300);
  const TierOptions options{.multiple_of = *rc::gen::element<int64_t>(1, 1, 2, 7, 16), .most = any(0, 4)};
  for (int repeat = 0; repeat < 20; ++repeat) {
    Lengths lengths(any(0, 9));
    for (LengthWeight& x : lengths) x = {any(0, most_length), any(0, 5)};
    const double price = static_cast<double>(any(0, 4 * most_length)) / 8;
    const TierCost cost{.per_row = 3, .price = price};
    const auto edges = choose_tiers(lengths, cost, options);
    RC_ASSERT(edges.ok());
    RC_ASSERT(*edges == by_brute_force(lengths, price, options));
    // What is said of the choice is what was minimized.
    const auto found = evaluate_tiers(lengths, *edges, cost);
    RC_ASSERT(found.ok());
    RC_ASSERT(found->total_cost <= found->fixed_total_cost + 1e-9);
  }
}

}  // namespace
}  // namespace tamis
