// Lengths of rows in entries, tokens and pages.
#include <gtest/gtest.h>

#include "support/expect.h"
#include "support/problems.h"
#include "tamis/explain.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/
using Lengths = std::vector<int64_t>;

Lengths measured(const Problem& problem, LengthOf what) {
  const auto lengths = row_lengths(problem, what);
  EXPECT_TRUE(lengths.ok()) << lengths.status().message();
  return lengths.ok() ? *lengths : Lengths{-1};
}

TEST(RowLengths, EntriesTokensPages) {
  TestProblem t({.kv_len = {32, 8}, .q_len = {2, 1}, .q_heads = 2, .kv_heads = 2, .page_size = 4});
  t.problem.candidates.index_heads = 2;
  t.problem.mask.window = 2;
  t.csr({{3, 3, -1, 9}, {}, {31, 30, 0}, {-1}, {7, 6}, {0}});
  EXPECT_EQ(measured(t.problem, LengthOf::kEntries), (Lengths{3, 0, 3, 0, 2, 1}));
  // Queries sit at 30 and 31, then at 7; the window adds the query's own token and the one before it.
  EXPECT_EQ(measured(t.problem, LengthOf::kTokens), (Lengths{4, 2, 3, 2, 2, 3}));
  EXPECT_EQ(measured(t.problem, LengthOf::kPages), (Lengths{3, 1, 2, 1, 1, 2}));
}

TEST(RowLengths, ARowOfSeveralQueriesIsTheirUnion) {
  TestProblem t({.kv_len = {40}, .q_len = {3}, .page_size = 0});
  t.problem.candidates.query_block = 2;
  t.problem.candidates.unit = 8;
  t.csr({{0, 4}, {4}});  // block 4: tokens 32 .. 39; positions 37, 38 and 39
  EXPECT_EQ(measured(t.problem, LengthOf::kEntries), (Lengths{2, 1}));
  EXPECT_EQ(measured(t.problem, LengthOf::kTokens), (Lengths{8 + 7, 8}));
  EXPECT_EQ(measured(t.problem, LengthOf::kPages), (Lengths{2, 1})) << "contiguous: pages of `unit` tokens";
}

TEST(RowLengths, FixedWidthStopsAtTheCount) {
  TestProblem t({.kv_len = {8}, .q_len = {2}});
  t.fixed({{1, -1, 2}, {3, 4, 5}}, {2, 3});
  EXPECT_EQ(measured(t.problem, LengthOf::kEntries), (Lengths{1, 3}));
}

TEST(RowLengths, RowsThatListNothing) {
  TestProblem t({.kv_len = {8}});
  t.all();
  EXPECT_EQ(measured(t.problem, LengthOf::kEntries), Lengths{0});
  EXPECT_EQ(measured(t.problem, LengthOf::kTokens), Lengths{8});
}

TEST(RowLengths, Refusals) {
  TestProblem t({.kv_len = {8}});
  t.csr({{8}});
  EXPECT_EQ(measured(t.problem, LengthOf::kEntries), Lengths{1}) << "entries are not judged";
  EXPECT_EQ(row_lengths(t.problem, LengthOf::kTokens).status().code(), Code::kIndexOutOfRange);
  t.indptr32()[1] = 5;
  EXPECT_EQ(row_lengths(t.problem, LengthOf::kEntries).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace tamis
