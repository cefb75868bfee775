// The lists of the device benches, and where in the pool they lead.
#include "bench/device_lists.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "bench/device_environment.h"
#include "bench/device_lab.h"

namespace tamis::bench {
namespace {

using Rows = std::vector<std::vector<int32_t>>;

Rows draw(const StepWork& work, uint64_t seed = 64) {
  StepWork seeded = work;
  seeded.seed = seed;
  RowMaker maker(seeded, nullptr);
  Rows rows;
  for (int64_t r = 0; r < work.requests; ++r)
    for (auto& row : maker.rows(0, r)) rows.push_back(std::move(row));
  return rows;
}

void expect_valid(const StepWork& work, const Rows& rows) {
  ASSERT_EQ(rows.size(), static_cast<size_t>(8 * work.requests));
  for (const auto& row : rows) {
    EXPECT_EQ(std::set<int32_t>(row.begin(), row.end()).size(), row.size());
    EXPECT_GE(*std::min_element(row.begin(), row.end()), 0);
    EXPECT_LT(*std::max_element(row.begin(), row.end()), work.units());
    EXPECT_LE(static_cast<int64_t>(row.size()), work.most_listed());
  }
}

TEST(DeviceLists, EveryRowListsWhatTheWorkSays) {
  for (const int64_t page : {16, 64})
    for (const int64_t kv_len : {8192, 32768, 65536})
      for (const Spread spread : {Spread::kUniform, Spread::kClustered}) {
        const StepWork work{.requests = 2,
                            .kv_len = kv_len,
                            .page = page,
                            .listed = kv_len / page / 16,
                            .unit = page,
                            .spread = spread};
        const Rows rows = draw(work);
        expect_valid(work, rows);
        for (const auto& row : rows) {
          EXPECT_EQ(static_cast<int64_t>(row.size()), work.listed);
          // Half of the window's pages are listed, so that the set grows by the other half.
          EXPECT_EQ(static_cast<int64_t>(with_window(work, row).size()), work.listed + 256 / page / 2);
        }
      }
}

TEST(DeviceLists, TheCaseOf64KHas264Pages) {
  const StepWork work;
  for (const auto& row : draw(work)) EXPECT_EQ(with_window(work, row).size(), 264u);
}

TEST(DeviceLists, SingleTokensNeedNoWindow) {
  const StepWork work{.listed = 2048, .unit = 1, .window = 0};
  const Rows rows = draw(work);
  expect_valid(work, rows);
  for (const auto& row : rows) EXPECT_EQ(with_window(work, row).size(), 2048u);
}

TEST(DeviceLists, HotRowsShareBlocksAndHaveALongTail) {
  const StepWork work{.requests = 16, .spread = Spread::kHot};
  const Rows rows = draw(work);
  expect_valid(work, rows);
  std::vector<size_t> lengths;
  size_t sum = 0;
  for (const auto& row : rows) lengths.push_back(row.size()), sum += row.size();
  std::sort(lengths.begin(), lengths.end());
  EXPECT_GE(lengths.front(), 128u);
  EXPECT_LT(lengths[lengths.size() / 2], 220u);
  EXPECT_GT(lengths.back(), 600u);
  EXPECT_NEAR(static_cast<double>(sum) / static_cast<double>(rows.size()), 240, 40);
  // Two heads of one request meet far more often than uniform lists of 6 % would.
  std::vector<int32_t> a = rows[0], b = rows[1], both;
  std::sort(a.begin(), a.end()), std::sort(b.begin(), b.end());
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  EXPECT_GT(both.size() * 8, std::min(a.size(), b.size()));
}

TEST(DeviceLists, SameSeedSameLists) {
  for (const Spread spread : {Spread::kUniform, Spread::kClustered, Spread::kHot}) {
    const StepWork work{.kv_len = 8192, .listed = 32, .spread = spread};
    EXPECT_EQ(draw(work, 7), draw(work, 7));
    EXPECT_NE(draw(work, 7), draw(work, 8));
  }
}

// Against the strides that the kernels go by.
TEST(DeviceLists, PiecesAreTheRowsOfTheSelectedTokens) {
  for (const Layout layout : {Layout::kNHD, Layout::kHND})
    for (const int64_t unit : {1, 16}) {
      const StepWork work{.kv_len = 8192, .unit = unit, .layout = layout};
      const std::vector<int32_t> table(512, 9);
      const TensorView k = layout == Layout::kNHD ? dense_view(nullptr, DType::kBF16, {12, 16, 8, 128})
                                                  : dense_view(nullptr, DType::kBF16, {12, 8, 16, 128});
      const KvStrides stride = kv_strides(k, layout);
      std::vector<int32_t> at;
      add_pieces(work, {3, 70}, table.data(), 5, 12 * 16 * 8, &at);
      ASSERT_EQ(at.size(), 4u);
      for (const auto& [place, entry] : {std::pair{0, 3}, {2, 70}}) {
        const int64_t offset = entry * unit % 16;
        EXPECT_EQ(int64_t{at[place]} * 128, 9 * stride.page + offset * stride.token + 5 * stride.head);
        EXPECT_EQ(at[place + 1], at[place] + 12 * 16 * 8);
      }
    }
}

TEST(DeviceLab, AGraphIsLongEnoughToTimeAndOfWholeCycles) {
  for (const int64_t turns : {1, 2, 19, 64})
    for (const double us : {0.5, 2.0, 8.0, 250.0, 4000.0}) {
      const int64_t nodes = nodes_of_graph(turns, us);
      EXPECT_EQ(nodes % turns, 0);
      EXPECT_LE(nodes, 128);
      EXPECT_TRUE(static_cast<double>(nodes) * us >= 250 || nodes + turns > 128) << turns << " " << us;
    }
}

TEST(DeviceEnvironment, FieldsThatNobodyKnowsAreNull) {
  const Json f = fields_of("580.1, 1980, [N/A],  , Enabled", {"a", "b", "c", "d", "e", "f"});
  EXPECT_EQ(f["a"], "580.1");
  EXPECT_EQ(f["b"], "1980");
  EXPECT_TRUE(f["c"].is_null() && f["d"].is_null() && f["f"].is_null());
  EXPECT_EQ(f["e"], "Enabled");
}

}  // namespace
}  // namespace tamis::bench
