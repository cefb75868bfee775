// Which query heads a list and a KV head have in common, against the definition, head by head.
#include "plan/rows.h"

#include <gtest/gtest.h>

namespace tamis {
namespace {

TEST(Rows, HeadsOfAListAndAKvHead) {
  for (const int64_t kv_heads : {1, 2, 3, 8})
    for (const int64_t group : {1, 3, 4, 16})
      for (const int64_t index_heads : {int64_t{1}, kv_heads, kv_heads * group}) {
        const int64_t q_heads = kv_heads * group;
        const HeadRuns runs = head_runs(q_heads, kv_heads, index_heads);
        for (int64_t list = 0; list < index_heads; ++list)
          for (int64_t kv = 0; kv < kv_heads; ++kv) {
            const HeadRange range = heads_of(runs, list, kv);
            for (int64_t h = 0; h < q_heads; ++h) {
              const bool both = h / (q_heads / index_heads) == list && h / group == kv;
              EXPECT_EQ(both, range.first <= h && h < range.first + range.count);
            }
          }
      }
}

TEST(Rows, OfAGroup) {
  // Two lists of 3 and 2 queries, index heads 0 and 5 of 8 query heads over 2 KV heads.
  const RowInfo row[] = {{0, 0, 0, 3}, {0, 5, 3, 5}};
  const int32_t rows[] = {1, 0};
  Bundle bundle{};
  bundle.lists = 2;
  BundleView view;
  view.rows = rows;
  view.row = row;
  const HeadRuns runs = head_runs(8, 2, 8);
  EXPECT_EQ(group_rows(runs, view, bundle, 0), 3);
  EXPECT_EQ(group_rows(runs, view, bundle, 1), 2);
  EXPECT_EQ(list_rows(runs, view, bundle, 0, 0), 0);
  EXPECT_EQ(list_rows(runs, view, bundle, 0, 1), 2);
}

}  // namespace
}  // namespace tamis
