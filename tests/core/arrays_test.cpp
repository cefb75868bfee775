// check_arrays(): the contents of cu_q, kv_len, cu_kv, cand_indptr and cand_count.
#include <gtest/gtest.h>

#include "core/broken.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of broken.h

TEST(CheckArrays, Queries) {
  const Broken rules[] = {
      {"start", [](auto& t) { t.cu_q()[0] = 1; }, "cu_q", "starts at 1"},
      {"negative start", [](auto& t) { t.cu_q()[0] = -1; }, "cu_q", "starts at -1"},
      {"falls",
       [](auto& t) {
         t.cu_q() = {0, 5, 4}, t.problem.query.cu_q.data = t.cu_q().data();
       },
       "cu_q", "falls from 5 to 4"},
      {"ends early", [](auto& t) { t.cu_q().back() = 3; }, "cu_q", "ends at 3, q has 4"},
      {"ends late", [](auto& t) { t.cu_q().back() = 5; }, "cu_q", "ends at 5, q has 4"},
      {"lowest", [](auto& t) { t.cu_q()[1] = INT32_MIN; }, "cu_q", "-2147483648"},
  };
  for (const Broken& rule : rules) expect_refused(good_paged(), rule);
}

TEST(CheckArrays, LengthsOfAPagedCache) {
  // Request 0 has room for 4 pages of 4 tokens.
  const Broken rules[] = {
      {"negative", [](auto& t) { t.kv_len()[1] = -1; }, "kv_len", "-1 of request 1"},
      {"lowest", [](auto& t) { t.kv_len()[0] = INT32_MIN; }, "kv_len", "-2147483648 of request 0"},
      {"one token too many", [](auto& t) { t.kv_len()[0] = 17; }, "kv_len",
       "17 of request 0 exceeds 4 pages of 4"},
      {"highest", [](auto& t) { t.kv_len()[1] = INT32_MAX; }, "kv_len", "2147483647 of request 1"},
  };
  for (const Broken& rule : rules) expect_refused(good_paged(), rule);
  TestProblem t = good_paged();
  t.kv_len()[0] = 16;
  EXPECT_TRUE(check(t.problem).ok()) << "exactly full: " << check(t.problem).message();
  t.problem.cache.page_table.shape[1] = t.problem.cache.table_stamps.shape[1] = 0;
  EXPECT_TRUE(says(check(t.problem), "kv_len: 16 of request 0 exceeds 0 pages"));
  const Where where = check(t.problem).where();
  EXPECT_EQ(where.request, 0);
  EXPECT_EQ(where.value, 16);
  EXPECT_EQ(where.limit, 1);
  t.kv_len() = {0, 0};
  t.problem.cache.kv_len.data = t.kv_len().data();
  EXPECT_TRUE(check(t.problem).ok()) << "nothing fits into no pages";
}

TEST(CheckArrays, RowsOfAContiguousCache) {
  // cu_kv 1, 11, 15; k has 16 rows; lengths 9 and 3 with a row to spare each.
  const Broken rules[] = {
      {"below zero", [](auto& t) { t.cu_kv()[0] = -1; }, "cu_kv", "starts at -1"},
      {"falls", [](auto& t) { t.cu_kv()[1] = 16; }, "cu_kv", "falls from 16 to 15"},
      {"past the cache", [](auto& t) { t.cu_kv()[2] = 17; }, "cu_kv", "ends at 17, k has 16 rows"},
      {"too long for its rows", [](auto& t) { t.kv_len()[0] = 11; }, "kv_len",
       "11 of request 0 exceeds its 10 rows"},
      {"into the next request", [](auto& t) { t.cu_kv()[1] = 9; }, "kv_len",
       "9 of request 0 exceeds its 8 rows"},
      {"negative length", [](auto& t) { t.kv_len()[1] = -3; }, "kv_len", "-3 of request 1"},
  };
  for (const Broken& rule : rules) expect_refused(good_contiguous(), rule);
  TestProblem t = good_contiguous();
  t.cu_kv()[0] = 0;
  t.cu_kv()[2] = 16;
  EXPECT_TRUE(check(t.problem).ok()) << "all rows, none to spare: " << check(t.problem).message();
}

TEST(CheckArrays, CsrOffsets) {
  const Broken rules[] = {
      {"start", [](auto& t) { t.indptr32()[0] = 1; }, "cand_indptr", "starts at 1"},
      {"falls", [](auto& t) { t.indptr32()[1] = 4; }, "cand_indptr", "falls from 4 to 3"},
      {"past the data", [](auto& t) { t.indptr32()[4] = 7; }, "cand_indptr", "ends at 7, cand_indices has 6"},
      {"short of the data", [](auto& t) { t.indptr32()[4] = 5; }, "cand_indptr",
       "ends at 5, cand_indices has 6"},
      {"a row is missing", [](auto& t) { t.problem.candidates.indptr.shape[0] = 4; }, "cand_indptr",
       "4 offsets for 4 rows"},
      {"longer blocks, fewer rows", [](auto& t) { t.problem.candidates.query_block = 2; }, "cand_indptr",
       "5 offsets for 3 rows"},
      {"more index heads, more rows", [](auto& t) { t.problem.candidates.index_heads = 2; }, "cand_indptr",
       "5 offsets for 8 rows"},
  };
  for (const Broken& rule : rules) expect_refused(good_paged(), rule);
}

TEST(CheckArrays, CsrOffsetsOf64BitsAreNotCut) {
  TestProblem t = good_paged();
  t.csr64({{0, 8}, {1}, {-1}, {2, 2}});
  ASSERT_TRUE(check(t.problem).ok()) << check(t.problem).message();
  for (const int64_t wraps : {(int64_t{1} << 32) + 2, INT64_MIN, INT64_MAX}) {
    t.indptr64()[1] = wraps;  // the low half alone would pass
    EXPECT_EQ(check(t.problem).code(), Code::kInvalidArgument);
    EXPECT_TRUE(says(check(t.problem), "cand_indptr: falls"));
    EXPECT_TRUE(says(check(t.problem), std::to_string(wraps)));
  }
}

TEST(CheckArrays, FixedWidthCounts) {
  TestProblem rows = good_contiguous();
  rows.problem.candidates.indices.shape[0] = rows.problem.candidates.count.shape[0] = 3;
  EXPECT_TRUE(says(check(rows.problem), "cand_indices: 3 rows, expected 4"));
  for (const int32_t bad : {-1, 4, INT32_MIN, INT32_MAX}) {
    TestProblem t = good_contiguous();
    t.fixed({{0, 8, -1}, {1, -1, -1}, {-1, 0, 0}, {2, 2, 2}}, {3, 0, bad, 1});
    const Status status = check(t.problem);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_TRUE(says(status, "cand_count: " + std::to_string(bad) + " of row 2"));
    EXPECT_EQ(status.where().row, 2);
    EXPECT_EQ(status.where().value, bad);
    EXPECT_EQ(status.where().limit, 4) << "the first value that is too large";
  }
}

TEST(CheckArrays, JudgesNoCandidateAndNoPage) {
  TestProblem t = good_paged();
  t.csr({{INT32_MAX}, {}, {}, {INT32_MIN}});
  t.table(0, 0) = -5;
  EXPECT_TRUE(check(t.problem).ok());
}

// Also where 64 bits do not hold the number of elements.
TEST(CheckValues, ElementsNeedMemory) {
  for (const int64_t pages : {int64_t{1}, int64_t{1} << 30})
    for (const auto& [name, member] : {std::pair{"k", &CacheView::k}, {"v", &CacheView::v}}) {
      TestProblem t = good_paged();
      EXPECT_TRUE(check_values(t.problem).ok());
      TensorView& view = t.problem.cache.*member;
      view = dense_view(nullptr, DType::kF32, {pages, 1 << 20, 1 << 8, 64});
      const Status s = check_values(t.problem);
      EXPECT_EQ(s.code(), Code::kInvalidArgument);
      EXPECT_TRUE(says(s, std::string(name) + ": has elements but no memory"));
      view.shape[1] = 0;
      EXPECT_TRUE(check_values(t.problem).ok());
    }
}

TEST(CountQueryBlocks, CutsEveryRequestOnItsOwn) {
  TestProblem t({.kv_len = {0, 0, 0, 0}, .q_len = {5, 0, 4, 1}});
  const auto blocks = [&](int64_t size) {
    t.problem.candidates.query_block = size;
    return count_query_blocks(t.problem);
  };
  EXPECT_EQ(blocks(1), 10);
  EXPECT_EQ(blocks(2), 3 + 0 + 2 + 1);
  EXPECT_EQ(blocks(4), 2 + 0 + 1 + 1);
  EXPECT_EQ(blocks(5), 3);
  EXPECT_EQ(blocks(INT64_MAX), 3);
}

}  // namespace
}  // namespace tamis
