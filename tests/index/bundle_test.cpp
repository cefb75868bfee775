// Bundles on rows small enough to read.
#include "tamis/bundle.h"

#include <gtest/gtest.h>

#include "index/bundle_storage.h"
#include "index/bundle_support.h"
#include "support/expect.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

using Numbers = std::vector<int32_t>;
using Words = std::vector<uint64_t>;

TEST(BundleRows, KeepRowsApartOnTheArraysOfTheIndex) {
  const Hand h({.kv_len = {64, 64}, .q_len = {1, 1}, .q_heads = 4, .kv_heads = 2, .index_heads = 2, .gap = 3},
               {row_of({0, 3}), row_of({}), row_of({1}), row_of({0, 1, 2})});
  const auto made = h.bundle(BundlePolicy::kRows);
  ASSERT_TRUE(made.ok());
  const BundleView v = made->view();
  const IndexView index = h.set.view();
  ASSERT_EQ(v.bundles, 4);
  EXPECT_EQ(v.blocks, index.blocks);
  EXPECT_EQ(v.members, index.members);
  EXPECT_EQ(v.full, index.full);
  EXPECT_EQ(v.span_begin, index.span_begin);
  EXPECT_EQ(v.spans, index.spans);
  EXPECT_EQ(v.row, index.row);
  EXPECT_EQ(v.entries, index.entries);
  EXPECT_EQ(v.max_lists, 1);
  for (int r = 0; r < 4; ++r) {
    const Bundle& b = v.bundle[r];
    EXPECT_EQ(b.request, r / 2);
    EXPECT_EQ(b.kv_head, r % 2);
    EXPECT_EQ(b.kv_heads, 1);
    EXPECT_EQ(rows_of(v, b), Numbers{r});
    EXPECT_EQ(b.begin, index.begin[r]);
    EXPECT_EQ(b.count, index.count[r]);
  }
  EXPECT_EQ(blocks_of(v, v.bundle[3]), (Numbers{0, 1, 2}));
  EXPECT_EQ(words_of(v, v.bundle[3]), (Words{1, 2, 4}));
  EXPECT_EQ(made->stats().policy, BundlePolicy::kRows);
  EXPECT_EQ(made->stats().listed_blocks, 6);
  EXPECT_EQ(made->stats().union_blocks, 6);
}

TEST(BundleRows, WhichKvHeadsAListServes) {
  const auto served = [](int64_t index_heads) {
    const Hand h({.q_heads = 6, .kv_heads = 2, .index_heads = index_heads},
                 std::vector<HandRow>(index_heads, row_of({0})));
    const auto made = h.bundle(BundlePolicy::kRows);
    std::vector<std::pair<int, int>> heads;
    for (int64_t i = 0; i < made->view().bundles; ++i)
      heads.emplace_back(made->view().bundle[i].kv_head, made->view().bundle[i].kv_heads);
    return heads;
  };
  using Heads = std::vector<std::pair<int, int>>;
  EXPECT_EQ(served(1), (Heads{{0, 2}}));
  EXPECT_EQ(served(2), (Heads{{0, 1}, {1, 1}}));
  EXPECT_EQ(served(6), (Heads{{0, 1}, {0, 1}, {0, 1}, {1, 1}, {1, 1}, {1, 1}}));
}

TEST(BundleHeads, JoinThePrivateListsOfAKvHead) {
  const Hand h({.q_heads = 4, .kv_heads = 2, .index_heads = 4},
               {row_of({0, 2}), row_of({1, 2}), row_of({3}), row_of({})});
  const auto made = h.bundle(BundlePolicy::kHeads);
  ASSERT_TRUE(made.ok());
  const BundleView v = made->view();
  ASSERT_EQ(v.bundles, 2);
  EXPECT_EQ(v.max_lists, 2);
  EXPECT_EQ(v.bundle[0].kv_head, 0);
  EXPECT_EQ(v.bundle[1].kv_head, 1);
  EXPECT_EQ(v.bundle[1].kv_heads, 1);
  EXPECT_EQ(rows_of(v, v.bundle[0]), (Numbers{0, 1}));
  EXPECT_EQ(rows_of(v, v.bundle[1]), (Numbers{2, 3}));
  EXPECT_EQ(blocks_of(v, v.bundle[0]), (Numbers{0, 1, 2}));
  EXPECT_EQ(words_of(v, v.bundle[0]), (Words{1, 0, 0, 2, 4, 4}));
  EXPECT_EQ(blocks_of(v, v.bundle[1]), Numbers{3});
  EXPECT_EQ(words_of(v, v.bundle[1]), (Words{8, 0}));
  EXPECT_EQ(made->stats().policy, BundlePolicy::kHeads);
  EXPECT_EQ(made->stats().listed_blocks, 5);
  EXPECT_EQ(made->stats().union_blocks, 4);
}

TEST(BundleHeads, AreRowsWhereAKvHeadHasOneList) {
  for (const int64_t index_heads : {1, 2}) {
    const Hand h({.q_heads = 4, .kv_heads = 2, .index_heads = index_heads},
                 std::vector<HandRow>(index_heads, row_of({0})));
    const auto made = h.bundle(BundlePolicy::kHeads);
    EXPECT_EQ(made->stats().policy, BundlePolicy::kRows);
    EXPECT_EQ(made->view().blocks, h.set.view().blocks);
  }
}

TEST(BundleNeighbours, StopAtTheEndOfARequest) {
  // Three query blocks of two, the last one short; a request without queries; one query block.
  const Hand h({.kv_len = {64, 64, 64}, .q_len = {5, 0, 1}, .query_block = 2},
               {row_of({0}), row_of({1}), row_of({1, 2}), row_of({1})});
  const auto made = h.bundle(BundlePolicy::kNeighbours, 2);
  ASSERT_TRUE(made.ok());
  const BundleView v = made->view();
  ASSERT_EQ(v.bundles, 3);
  EXPECT_EQ(rows_of(v, v.bundle[0]), (Numbers{0, 1}));
  EXPECT_EQ(rows_of(v, v.bundle[1]), Numbers{2});
  EXPECT_EQ(rows_of(v, v.bundle[2]), Numbers{3});
  EXPECT_EQ(v.bundle[2].request, 2);
  EXPECT_EQ(words_of(v, v.bundle[0]), (Words{1, 0, 0, 2}));
  EXPECT_EQ(made->stats().neighbours, 2);
}

TEST(BundleNeighbours, PutHeadsInsideQueryBlocks) {
  const Hand h({.q_len = {2}, .q_heads = 4, .kv_heads = 2, .index_heads = 4},
               {row_of({0}), row_of({1}), row_of({2}), row_of({3}),    //
                row_of({0}), row_of({2}), row_of({3}), row_of({3})});  //
  const auto made = h.bundle(BundlePolicy::kNeighbours, 8);
  const BundleView v = made->view();
  ASSERT_EQ(v.bundles, 2);
  EXPECT_EQ(rows_of(v, v.bundle[0]), (Numbers{0, 1, 4, 5}));
  EXPECT_EQ(rows_of(v, v.bundle[1]), (Numbers{2, 3, 6, 7}));
  EXPECT_EQ(words_of(v, v.bundle[0]), (Words{1, 0, 1, 0, 0, 2, 0, 0, 0, 0, 0, 4}));
  EXPECT_EQ(v.max_lists, 4);
}

TEST(BundleNeighbours, AreRowsInDecode) {
  const Hand h({.kv_len = {64, 64}, .q_len = {1, 1}}, {row_of({0}), row_of({0})});
  const auto made = h.bundle(BundlePolicy::kNeighbours, 4);
  EXPECT_EQ(made->stats().policy, BundlePolicy::kRows);
  EXPECT_EQ(made->stats().neighbours, 1);
  EXPECT_EQ(made->view().bundles, 2);
}

// Blocks of 128 tokens have two words; pages of 48 do not divide them.
TEST(BundleUnion, TwoWordsAndPiecesOfBlocks) {
  const HandRow a{{0, {.words = {1, 0}, .pieces = {0}}},
                  {1, {.words = {~0ull, ~0ull}, .full = true, .pieces = {0, 1, 2, 3}}}},
      b{{0, {.words = {0, 1ull << 63}, .pieces = {0, 2}}},
        {1, {.words = {~0ull, ~0ull}, .full = true, .pieces = {0, 1, 2, 3}}}},
      c{{1, {.words = {~0ull, ~0ull}, .full = true, .pieces = {0, 1, 2, 3}}}};
  const HandSpec spec{.kv_len = {256}, .q_len = {3}, .page_size = 48, .block = 128};
  const Hand h(spec, {a, b, c});
  const auto two = h.bundle(BundlePolicy::kNeighbours, 2);
  const BundleView v = two->view();
  EXPECT_EQ(v.words, 2);
  EXPECT_EQ(words_of(v, v.bundle[0]), (Words{1, 0, 0, 1ull << 63, ~0ull, ~0ull, ~0ull, ~0ull}));
  EXPECT_EQ(tokens_of(v, 0), (Numbers{0, 96}));
  EXPECT_EQ(tokens_of(v, 1), (Numbers{128, 144, 192, 240}));
  EXPECT_EQ(v.full[0], 0);
  EXPECT_EQ(v.full[1], 1);
  EXPECT_EQ(v.spans[1].length, 32);  // [96, 128) of page [96, 144)
  EXPECT_EQ(v.bundle[1].members_at, 8);

  const auto three = h.bundle(BundlePolicy::kNeighbours, 3);
  EXPECT_EQ(three->view().full[0], 0);
  EXPECT_EQ(three->view().full[1], 1);
}

TEST(BundleUnion, FullOnlyWhereEveryListIs) {
  HandRow full{{1, {.words = {0xFFFF}, .full = true}}}, part{{1, {.words = {1}}}};
  const auto mark = [&](const HandRow& second) {
    const Hand h({.q_len = {2}}, {full, second});
    return h.bundle(BundlePolicy::kNeighbours)->view().full[0];
  };
  EXPECT_EQ(mark(full), 1);
  EXPECT_EQ(mark(part), 0);
  EXPECT_EQ(mark({}), 0);
}

TEST(Bundle, OfNothing) {
  for (const BundlePolicy policy :
       {BundlePolicy::kAuto, BundlePolicy::kRows, BundlePolicy::kHeads, BundlePolicy::kNeighbours}) {
    const Hand none({.kv_len = {8, 8}, .q_len = {0, 0}, .q_heads = 2, .index_heads = 2}, {});
    const auto made = none.bundle(policy);
    ASSERT_TRUE(made.ok()) << made.status().message();
    EXPECT_EQ(made->view().bundles, 0);
    EXPECT_EQ(made->view().max_lists, 0);
    const Hand empty({.q_len = {2}, .q_heads = 2, .index_heads = 2}, {{}, {}, {}, {}});
    const auto rows = empty.bundle(policy);
    ASSERT_TRUE(rows.ok());
    EXPECT_EQ(rows->stats().union_blocks, 0);
    EXPECT_EQ(rows->view().span_begin[0], 0);
  }
}

TEST(Bundle, OutlivesAMove) {
  const Hand h({.q_len = {2}}, {row_of({0, 1}), row_of({1})});
  auto made = h.bundle(BundlePolicy::kNeighbours);
  Bundles kept = std::move(*made);
  EXPECT_EQ(blocks_of(kept.view(), kept.view().bundle[0]), (Numbers{0, 1}));
}

TEST(Bundle, RefusesBadOptions) {
  const Hand h({}, {row_of({0})});
  for (const int32_t n : {-1, 0, 129}) {
    const Status s = h.bundle(BundlePolicy::kRows, n).status();
    EXPECT_EQ(s.code(), Code::kInvalidArgument);
    EXPECT_TRUE(says(s, "neighbours"));
    EXPECT_EQ(s.where().value, n);
  }
  EXPECT_TRUE(h.bundle(BundlePolicy::kNeighbours, 128).ok());
  EXPECT_EQ(h.bundle(static_cast<BundlePolicy>(9)).status().code(), Code::kInvalidArgument);
}

// Four blocks and two lists: eight words.
TEST(Bundle, RefusesMoreWordsThanItsBound) {
  const Hand h({.q_len = {2}, .head_dim = 128}, {row_of({0, 1, 2, 3}), row_of({0, 1})});
  const auto made = [&](size_t words, BundlePolicy policy) {
    return index::bundle_within(words, h.made.problem, h.set, {.policy = policy});
  };
  EXPECT_TRUE(made(8, BundlePolicy::kNeighbours).ok());
  EXPECT_EQ(made(7, BundlePolicy::kNeighbours).status().code(), Code::kCapacityExceeded);
  // The choice itself never fails: rows stay apart instead.
  EXPECT_EQ(made(8, BundlePolicy::kAuto)->stats().policy, BundlePolicy::kNeighbours);
  const auto apart = made(7, BundlePolicy::kAuto);
  ASSERT_TRUE(apart.ok());
  EXPECT_EQ(apart->stats().policy, BundlePolicy::kRows);
  EXPECT_EQ(apart->view().bundles, 2);
  EXPECT_EQ(apart->stats().listed_blocks, 6);
}

TEST(Bundle, RefusesTheIndexOfAnotherProblem) {
  const Hand one({}, {row_of({0})}), two({.q_len = {2}}, {row_of({0}), row_of({0})});
  EXPECT_TRUE(says(bundle(two.made.problem, one.set).status(), "1 rows, the problem has 2"));
  EXPECT_TRUE(says(bundle(two.made.problem, IndexSet()).status(), "0 rows"));
}

}  // namespace
}  // namespace tamis
