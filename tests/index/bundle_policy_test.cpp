// The measured choice: overlap joins, private lists stay apart.
#include "index/bundle_policy.h"

#include <gtest/gtest.h>

#include <random>

#include "index/bundle_support.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

constexpr int32_t kBlocks = 4096;

// `count` blocks out of kBlocks.
HandRow random_row(std::mt19937* rng, int count) {
  HandRow row;
  while (static_cast<int>(row.size()) < count) row[static_cast<int32_t>((*rng)() % kBlocks)] = {.words = {1}};
  return row;
}

HandSpec long_context(HandSpec s) {
  s.kv_len.assign(s.q_len.size(), kBlocks * s.block);
  s.page_size = 4096;
  s.head_dim = 1;
  return s;
}

BundleStats choice(const HandSpec& spec, const std::vector<HandRow>& rows) {
  const Hand h(long_context(spec), rows);
  const auto made = h.bundle(BundlePolicy::kAuto);
  EXPECT_TRUE(made.ok()) << made.status().message();
  const auto again = h.bundle(BundlePolicy::kAuto);
  EXPECT_EQ(again->stats().policy, made->stats().policy);
  EXPECT_EQ(again->stats().neighbours, made->stats().neighbours);
  return made->stats();
}

TEST(BundlePolicy, RandomPrivateListsStayApart) {
  std::mt19937 rng(7);
  for (const HandSpec& s : {HandSpec{.q_len = {24}, .q_heads = 8, .kv_heads = 2, .index_heads = 8},
                            HandSpec{.q_len = {9, 1, 30}, .q_heads = 8, .kv_heads = 2, .index_heads = 2},
                            HandSpec{.q_len = {40}, .q_heads = 4, .kv_heads = 4, .index_heads = 1}}) {
    std::vector<HandRow> rows;
    int64_t queries = 0;
    for (const int32_t n : s.q_len) queries += n;
    for (int64_t r = 0; r < queries * s.index_heads; ++r) rows.push_back(random_row(&rng, 40));
    EXPECT_EQ(choice(s, rows).policy, BundlePolicy::kRows) << s.index_heads;
  }
}

TEST(BundlePolicy, IdenticalListsJoin) {
  std::mt19937 rng(8);
  const HandRow row = random_row(&rng, 40);
  const HandSpec s{.q_len = {16}, .q_heads = 4, .kv_heads = 2, .index_heads = 2};
  const BundleStats stats = choice(s, std::vector<HandRow>(32, row));
  EXPECT_EQ(stats.policy, BundlePolicy::kNeighbours);
  EXPECT_EQ(stats.neighbours, 8);
  EXPECT_EQ(stats.listed_blocks, 32 * 40);
  EXPECT_EQ(stats.union_blocks, 4 * 40);
}

TEST(BundlePolicy, HeadsThatAgreeJoinAlsoInDecode) {
  std::mt19937 rng(9);
  std::vector<HandRow> rows;
  for (int kv = 0; kv < 2; ++kv) {
    const HandRow row = random_row(&rng, 40);
    for (int g = 0; g < 4; ++g) rows.push_back(row);
  }
  const BundleStats stats = choice({.q_len = {1}, .q_heads = 8, .kv_heads = 2, .index_heads = 8}, rows);
  EXPECT_EQ(stats.policy, BundlePolicy::kHeads);
  EXPECT_EQ(stats.union_blocks, 80);
}

// Lists of consecutive queries keep most of their blocks: with 16 query heads a list, some neighbours are
// worth joining. The same rows dealt out so that neighbours share nothing are not.
TEST(BundlePolicy, SlowlyChangingListsJoinAFew) {
  std::mt19937 rng(10);
  HandRow row = random_row(&rng, 64);
  std::vector<HandRow> rows;
  for (int q = 0; q < 64; ++q) {
    for (int i = 0; i < 12; ++i) row.erase(std::next(row.begin(), rng() % row.size()));
    while (row.size() < 64) row[static_cast<int32_t>(rng() % kBlocks)] = {.words = {1}};
    rows.push_back(row);
  }
  const HandSpec s{.q_len = {64}, .q_heads = 16, .kv_heads = 1, .index_heads = 1};
  EXPECT_EQ(choice(s, rows).policy, BundlePolicy::kNeighbours);
  EXPECT_GE(choice(s, rows).neighbours, 4);
  std::vector<HandRow> dealt;
  for (int q = 0; q < 64; ++q) dealt.push_back(rows[q * 27 % 64]);
  EXPECT_EQ(choice(s, dealt).policy, BundlePolicy::kRows);
}

// A tile holds 128 rows: a list that fills it alone gains nothing from a neighbour with the same blocks.
TEST(BundlePolicy, AFullTileStaysAlone) {
  std::mt19937 rng(11);
  const HandRow row = random_row(&rng, 40);
  const auto joined = [&](int64_t query_block) {
    return choice(
               {.q_len = {static_cast<int32_t>(4 * query_block)}, .q_heads = 2, .query_block = query_block},
               std::vector<HandRow>(4, row))
        .neighbours;
  };
  EXPECT_EQ(joined(64), 1);
  EXPECT_EQ(joined(16), 4);
}

// Seven heads of eight never change their lists. 1024 measurable runs for 64 samples: every sixteenth would
// always be head 0, the one that shares nothing.
TEST(BundlePolicy, TheSampleMeetsEveryHead) {
  std::mt19937 rng(12);
  std::vector<HandRow> rows;
  HandRow same[8];
  for (HandRow& row : same) row = random_row(&rng, 12);
  for (int q = 0; q < 1024; ++q)
    for (int g = 0; g < 8; ++g) rows.push_back(g == 0 ? random_row(&rng, 12) : same[g]);
  const HandSpec s{.q_len = {1024}, .q_heads = 8, .kv_heads = 8, .index_heads = 8};
  EXPECT_EQ(choice(s, rows).policy, BundlePolicy::kNeighbours);
}

TEST(BundlePolicy, TheFormula) {
  EXPECT_EQ(index::bundle_cost(10, 128, 96), 10 * (96 + 128));
  EXPECT_EQ(index::bundle_cost(10, 129, 96), 10 * (2 * 96 + 129));
  Shape s{};
  s.head_dim = 128;
  s.v_head_dim = 64;
  s.k_bits = s.v_bits = 16;
  EXPECT_EQ(index::load_of_block(s), index::kLoadRows);
  s.k_bits = 8;
  s.v_bits = 4;
  EXPECT_DOUBLE_EQ(index::load_of_block(s), index::kLoadRows * (128 * 8 + 64 * 4) / (192 * 16.0));
}

}  // namespace
}  // namespace tamis
