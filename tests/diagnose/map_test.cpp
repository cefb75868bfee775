#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>

#include "diagnose/svg_reader.h"
#include "tamis/explain.h"

namespace tamis {
namespace {

using testing::Cells;
using testing::cells_of;
using testing::count;
using testing::xml_fault;

// A problem without numbers: q, k and v have shapes only, which is all that sets and maps need.
struct Made {
  std::vector<int32_t> cu_q{0}, kv_len, cu_kv{0}, entries, counts, q_pos;
  std::vector<int64_t> indptr;
  Problem problem;

  Made(const Made&) = delete;  // the views point into the vectors
  Made(const std::vector<int32_t>& q_lens, const std::vector<int32_t>& kv_lens, int64_t index_heads)
      : kv_len(kv_lens) {
    for (int32_t n : q_lens) cu_q.push_back(cu_q.back() + n);
    for (int32_t n : kv_lens) cu_kv.push_back(cu_kv.back() + n);
    const int64_t heads = index_heads, requests = static_cast<int64_t>(kv_len.size());
    problem.query = {.q = dense_view(nullptr, DType::kF32, {cu_q.back(), heads, 4}),
                     .cu_q = dense_view(cu_q.data(), DType::kI32, {requests + 1})};
    problem.cache = {.k = dense_view(nullptr, DType::kF32, {cu_kv.back(), heads, 4}),
                     .v = dense_view(nullptr, DType::kF32, {cu_kv.back(), heads, 4}),
                     .kv_len = dense_view(kv_len.data(), DType::kI32, {requests}),
                     .cu_kv = dense_view(cu_kv.data(), DType::kI32, {requests + 1})};
    problem.candidates.index_heads = index_heads;
  }

  void fixed_width(std::vector<int32_t> e, int64_t width, std::vector<int32_t> n = {}) {
    entries = std::move(e);
    counts = std::move(n);
    CandidateView& c = problem.candidates;
    const int64_t rows = static_cast<int64_t>(entries.size()) / width;
    c.form = CandidateForm::kFixedWidth;
    c.indices = dense_view(entries.data(), DType::kI32, {rows, width});
    if (!counts.empty()) c.count = dense_view(counts.data(), DType::kI32, {rows});
  }

  void csr(std::vector<int64_t> bounds, std::vector<int32_t> e) {
    indptr = std::move(bounds);
    entries = std::move(e);
    CandidateView& c = problem.candidates;
    c.form = CandidateForm::kCsr;
    c.indptr = dense_view(indptr.data(), DType::kI64, {static_cast<int64_t>(indptr.size())});
    c.indices = dense_view(entries.data(), DType::kI32, {static_cast<int64_t>(entries.size())});
  }

  std::string map(int64_t block) {
    const auto sets = reference::build_sets(problem);
    EXPECT_TRUE(sets.ok()) << sets.status().message();
    if (!sets.ok()) return "";
    const auto svg = draw_map(problem, *sets, block);
    EXPECT_TRUE(svg.ok()) << svg.status().message();
    return svg.ok() ? *svg : "";
  }
};

// Two queries at positions 6 and 7 of 8 tokens, two index heads, blocks of two tokens.
struct Small : Made {
  Small() : Made({2}, {8}, 2) {
    problem.mask = {.causal = true, .window = 2, .sink = 1};
    problem.candidates.invalid = OnInvalid::kDrop;
    fixed_width({0, 3, -1,    // query 0, head 0: 0 is the sink's too
                 7, 2, 2,     // query 0, head 1: a future token, the rest lies past the count
                 3, 7, 7,     // query 1, head 0: 7 is in the window, twice
                 99, -5, 4},  // query 1, head 1: two out of range
                3, {3, 1, 3, 3});
  }
};

TEST(DrawMap, ShowsHowEachBlockWasReached) {
  const std::string svg = Small().map(2);
  EXPECT_EQ(xml_fault(svg), "");
  EXPECT_EQ(cells_of(svg, 0, "dynamic"), (Cells{{0, 0}, {0, 1}, {1, 1}, {1, 3}}));
  EXPECT_EQ(cells_of(svg, 0, "window"), (Cells{{0, 2}, {0, 3}, {1, 3}}));
  EXPECT_EQ(cells_of(svg, 0, "sink"), (Cells{{0, 0}, {1, 0}}));
  EXPECT_EQ(cells_of(svg, 1, "dynamic"), (Cells{{1, 2}}));
  EXPECT_EQ(cells_of(svg, 1, "window"), (Cells{{0, 2}, {0, 3}, {1, 3}}));
  EXPECT_EQ(cells_of(svg, 1, "sink"), (Cells{{0, 0}, {1, 0}}));
}

TEST(DrawMap, SplitsBlocksReachedInSeveralWays) {
  Small small;
  std::string svg = small.map(2);
  EXPECT_EQ(cells_of(svg, 0, "window", "1"), (Cells{{0, 2}, {0, 3}}));
  EXPECT_EQ(cells_of(svg, 0, "window", "0.5"), (Cells{{1, 3}}));
  EXPECT_EQ(cells_of(svg, 0, "sink", "1"), (Cells{{1, 0}}));
  EXPECT_EQ(cells_of(svg, 0, "sink", "0.5"), (Cells{{0, 0}}));
  EXPECT_TRUE(cells_of(svg, 0, "sink", "0.3333333").empty());
  svg = small.map(8);  // one block: everything meets in it
  EXPECT_EQ(cells_of(svg, 0, "dynamic", "1"), (Cells{{0, 0}, {1, 0}}));
  EXPECT_EQ(cells_of(svg, 0, "window", "0.5"), (Cells{{0, 0}, {1, 0}}));
  EXPECT_EQ(cells_of(svg, 0, "sink", "0.3333333"), (Cells{{0, 0}, {1, 0}}));
}

TEST(DrawMap, IsSelfContained) {
  const std::string svg = Small().map(2);
  EXPECT_EQ(svg.rfind("<svg xmlns=\"http://www.w3.org/2000/svg\"", 0), 0u);
  EXPECT_EQ(count(svg, "http"), 1u);  // the namespace
  for (const char* no : {"<script", "href", "url(", "<style", "<image", "nan", "inf"})
    EXPECT_EQ(count(svg, no), 0u) << no;
  for (const char* yes : {"<title>", "index head 0", "index head 1", "query row", ">token<",
                          "dynamic candidates", ">window<", ">sink<", "split", "causal edge"})
    EXPECT_GE(count(svg, yes), 1u) << yes;
}

TEST(DrawMap, DrawsTheCausalEdgeOfEachBand) {
  Small small;
  EXPECT_EQ(count(small.map(2), "class=\"causal\""), 2u);
  small.problem.mask.causal = false;
  const std::string svg = small.map(2);
  EXPECT_EQ(count(svg, "causal"), 0u);
  EXPECT_EQ(cells_of(svg, 1, "dynamic"), (Cells{{0, 3}, {1, 2}}));  // token 7 is no longer in the future
}

TEST(DrawMap, ReadsRowsOfQueryBlocksAndUnits) {
  // Query blocks (0, 1), (2) of request 0 and (3) of request 1; units of two tokens.
  Made made({3, 1}, {8, 4}, 1);
  made.problem.candidates.query_block = 2;
  made.problem.candidates.unit = 2;
  made.csr({0, 1, 3, 4}, {1, 0, 2, 1});
  const std::string svg = made.map(2);
  EXPECT_EQ(xml_fault(svg), "");
  EXPECT_EQ(cells_of(svg, 0, "dynamic"), (Cells{{0, 1}, {1, 1}, {2, 0}, {2, 2}, {3, 1}}));
  EXPECT_EQ(count(svg, "req 1<"), 1u);
}

TEST(DrawMap, FormsWithoutLists) {
  Made made({1}, {8}, 1);
  made.problem.mask.window = 3;
  made.problem.candidates.form = CandidateForm::kNone;
  EXPECT_EQ(cells_of(made.map(4), 0, "window", "1"), (Cells{{0, 1}}));
  made.problem.candidates.form = CandidateForm::kAll;
  EXPECT_EQ(cells_of(made.map(4), 0, "dynamic", "1"), (Cells{{0, 0}, {0, 1}}));
  EXPECT_EQ(cells_of(made.map(4), 0, "window", "0.5"), (Cells{{0, 1}}));
}

TEST(DrawMap, QueriesBeforeTheFirstTokenSeeNothing) {
  Made made({2}, {4}, 1);
  made.q_pos = {-1, 1};
  made.problem.query.q_pos = dense_view(made.q_pos.data(), DType::kI32, {2});
  made.problem.candidates.form = CandidateForm::kAll;
  EXPECT_EQ(cells_of(made.map(1), 0, "dynamic"), (Cells{{1, 0}, {1, 1}}));
}

TEST(DrawMap, NothingToDraw) {
  EXPECT_EQ(xml_fault(Made({}, {}, 1).map(1)), "");
  EXPECT_EQ(xml_fault(Made({0}, {5}, 1).map(1)), "");
  EXPECT_EQ(xml_fault(Made({2}, {0}, 1).map(1)), "");
}

// Lists without neighbours are the worst case: every entry is a run of its own.
TEST(DrawMap, FoldsLargeProblems) {
  constexpr int kQueries = 300, kTokens = 20000, kWidth = kTokens / 16 / 3;
  Made made({kQueries}, {kTokens}, 2);
  std::mt19937 random(1);
  std::vector<int32_t> entries;
  for (int row = 0; row < kQueries * 2; ++row)
    for (int j = 0; j < kWidth; ++j) entries.push_back(3 * j + static_cast<int32_t>(random() % 2));
  made.fixed_width(entries, kWidth);
  made.problem.candidates.unit = 16;
  made.problem.mask = {.causal = true, .window = 64, .sink = 16};
  const std::string svg = made.map(16);
  EXPECT_EQ(xml_fault(svg), "");
  EXPECT_LE(svg.size(), 200'000u);
  EXPECT_GE(svg.size(), 10'000u);  // folded, not emptied
  EXPECT_EQ(count(svg, "Folded to fit"), 1u);
  EXPECT_EQ(count(svg, "by 1 query,"), 0u);  // rows too: 300 do not fit
  EXPECT_FALSE(cells_of(svg, 0, "sink").empty());
}

TEST(DrawMap, FoldsManyRequests) {
  constexpr int kRequests = 600;
  Made made(std::vector<int32_t>(kRequests, 1), std::vector<int32_t>(kRequests, 8), 1);
  made.problem.candidates.form = CandidateForm::kNone;
  made.problem.mask.sink = 1;
  const std::string svg = made.map(4);
  EXPECT_EQ(xml_fault(svg), "");
  EXPECT_EQ(cells_of(svg, 0, "sink").size(), 150u);
  EXPECT_EQ(count(svg, "all queries of 4 requests"), 1u);
}

TEST(DrawMap, BlocksLargerThanTheContext) {
  for (int64_t block : {int64_t{9}, std::numeric_limits<int64_t>::max()}) {
    const std::string svg = Small().map(block);
    EXPECT_EQ(xml_fault(svg), "");
    EXPECT_EQ(cells_of(svg, 0, "dynamic"), (Cells{{0, 0}, {1, 0}}));
  }
}

TEST(DrawMap, RefusesBadArguments) {
  Small small;
  const auto sets = reference::build_sets(small.problem);
  ASSERT_TRUE(sets.ok());
  for (int64_t block : {int64_t{0}, int64_t{-4}, std::numeric_limits<int64_t>::min()}) {
    const auto svg = draw_map(small.problem, *sets, block);
    ASSERT_FALSE(svg.ok());
    EXPECT_EQ(svg.status().code(), Code::kInvalidArgument);
    EXPECT_EQ(svg.status().message().rfind("block: ", 0), 0u);
  }
  EXPECT_EQ(draw_map(small.problem, reference::Sets{}, 2).status().code(), Code::kInvalidArgument);
  small.problem.mask.window = -1;
  EXPECT_EQ(draw_map(small.problem, *sets, 2).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace tamis
