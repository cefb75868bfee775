// Sections 3 and 4: candidate rows and the sets they make, by hand. The same against a set comprehension is
// in reference_sets_property_test.cpp.
#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "support/expect.h"
#include "support/problems.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/
using Set = std::vector<int32_t>;

reference::Sets sets_of(const TestProblem& t) {
  Result<reference::Sets> sets = reference::build_sets(t.problem);
  EXPECT_TRUE(sets.ok()) << sets.status().message();
  return sets.ok() ? std::move(*sets) : reference::Sets{};
}

Set range(int32_t first, int32_t last) {
  Set s(last - first);
  std::iota(s.begin(), s.end(), first);
  return s;
}

void expect_counts(const CandidateCounts& c, CandidateCounts want) {
  EXPECT_EQ(c.raw, want.raw);
  EXPECT_EQ(c.padding, want.padding);
  EXPECT_EQ(c.invalid, want.invalid);
  EXPECT_EQ(c.duplicates, want.duplicates);
  EXPECT_EQ(c.unique, want.unique);
}

TEST(ReferenceSets, ASetIsAscendingWhateverTheOrder) {
  TestProblem t({.kv_len = {9}});
  t.csr({{8, 0, -1, 5, 0, 3}});
  const reference::Sets sets = sets_of(t);
  EXPECT_EQ(sets.indptr, (std::vector<int64_t>{0, 4}));
  EXPECT_EQ(sets.tokens, (Set{0, 3, 5, 8}));
  expect_counts(sets.counts, {.raw = 6, .padding = 1, .duplicates = 1, .unique = 4});
  EXPECT_EQ(sets.empty_rows, 0);
}

TEST(ReferenceSets, UnitsExpandAndClipToTheLength) {
  TestProblem t({.kv_len = {10}});
  t.problem.candidates.unit = 4;
  t.csr({{2, 0}});
  EXPECT_EQ(sets_of(t).tokens, (Set{0, 1, 2, 3, 8, 9}));
  t.csr({{3}});  // starts at 12
  EXPECT_EQ(refusal(t.problem, Code::kIndexOutOfRange).where().value, 3);
  t.problem.candidates.unit = std::numeric_limits<int64_t>::max();
  t.csr({{0}});
  EXPECT_EQ(sets_of(t).tokens, range(0, 10));
  t.csr({{1}});
  EXPECT_EQ(refusal(t.problem, Code::kIndexOutOfRange).where().value, 1);
}

TEST(ReferenceSets, RowsAreQueryBlocksTimesIndexHeads) {
  // Requests of 3 and 2 queries in blocks of 2: blocks {0,1} {2} {3,4}, index heads innermost.
  TestProblem t({.kv_len = {9, 9}, .q_len = {3, 2}, .q_heads = 4, .kv_heads = 2});
  t.problem.mask.causal = false;
  t.problem.candidates.query_block = 2;
  t.problem.candidates.index_heads = 2;
  t.csr({{0}, {1}, {2}, {3}, {4}, {5}});
  const reference::Sets sets = sets_of(t);
  EXPECT_EQ(sets.tokens, (Set{0, 1, 0, 1, 2, 3, 4, 5, 4, 5}));
  EXPECT_EQ(sets.indptr.size(), 11u);
}

TEST(ReferenceSets, QueriesOfABlockSeeTheirOwnPast) {
  TestProblem t({.kv_len = {4}, .q_len = {4}});
  t.problem.candidates.query_block = 4;
  t.csr({{0, 2, 3}});
  const reference::Sets sets = sets_of(t);
  EXPECT_EQ(sets.tokens, (Set{0, 0, 0, 2, 0, 2, 3}));
  expect_counts(sets.counts, {.raw = 3, .unique = 3});
}

TEST(ReferenceSets, TheLastQueryIsTheLastToken) {
  TestProblem t({.kv_len = {5, 1}, .q_len = {2, 3}});
  t.all();
  const reference::Sets sets = sets_of(t);
  EXPECT_EQ(sets.indptr, (std::vector<int64_t>{0, 4, 9, 9, 9, 10})) << "queries before token 0 see nothing";
  EXPECT_EQ(sets.empty_rows, 2);
  expect_counts(sets.counts, {});
}

TEST(ReferenceSets, GivenPositionsDecide) {
  TestProblem t({.kv_len = {6}, .q_len = {5}});
  t.all().q_pos({2, -1, 99, 0, INT32_MIN});
  EXPECT_EQ(sets_of(t).indptr, (std::vector<int64_t>{0, 3, 3, 9, 10, 10}));
  t.problem.mask.causal = false;
  EXPECT_EQ(sets_of(t).indptr, (std::vector<int64_t>{0, 6, 6, 12, 18, 18}))
      << "a negative position sees nothing";
}

TEST(ReferenceSets, WindowEndsAtTheQuery) {
  TestProblem t({.kv_len = {10}});
  t.q_pos({6});
  t.problem.mask.window = 3;
  for (const bool causal : {true, false}) {
    t.problem.mask.causal = causal;
    EXPECT_EQ(sets_of(t).tokens, (Set{4, 5, 6}));
  }
  t.problem.mask.window = 1;
  EXPECT_EQ(sets_of(t).tokens, (Set{6}));
  t.problem.mask.window = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(sets_of(t).tokens, range(0, 7));
  t.problem.mask.window = 4;
  t.q_pos({11});
  EXPECT_EQ(sets_of(t).tokens, (Set{8, 9}))
      << "a query past the cache sees the part of its window that is there";
  t.q_pos({13});
  EXPECT_EQ(sets_of(t).tokens, Set{});
}

TEST(ReferenceSets, SinkIsBoundedByCausalityAndLength) {
  TestProblem t({.kv_len = {5}});
  t.q_pos({2});
  t.problem.mask.sink = 4;
  EXPECT_EQ(sets_of(t).tokens, (Set{0, 1, 2}));
  t.problem.mask.causal = false;
  EXPECT_EQ(sets_of(t).tokens, (Set{0, 1, 2, 3}));
  t.problem.mask.sink = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(sets_of(t).tokens, range(0, 5));
}

TEST(ReferenceSets, OverlapOfScopesIsNoDuplicate) {
  TestProblem t({.kv_len = {8}});
  t.problem.mask.window = 2;
  t.problem.mask.sink = 1;
  t.problem.candidates.duplicates = OnDuplicate::kReject;
  t.csr({{0, 7}});
  const reference::Sets sets = sets_of(t);
  EXPECT_EQ(sets.tokens, (Set{0, 6, 7}));
  expect_counts(sets.counts, {.raw = 2, .unique = 2});
}

TEST(ReferenceSets, PoliciesOfBadAndRepeatedEntries) {
  TestProblem t({.kv_len = {4, 0}, .q_len = {1, 1}});
  t.csr({{3, -1, -2, 4, 3}, {0, INT32_MIN}});
  Status s = refusal(t.problem, Code::kIndexOutOfRange);
  EXPECT_EQ(s.where().request, 0);
  EXPECT_EQ(s.where().row, 0);
  EXPECT_EQ(s.where().value, -2);
  EXPECT_EQ(s.where().limit, 4);
  EXPECT_TRUE(says(s, "cand_indices: row 0 of request 0 holds -2"));
  t.problem.candidates.unit = 3;
  EXPECT_EQ(refusal(t.problem, Code::kIndexOutOfRange).where().limit, 2)
      << "the first entry too large, no token";
  t.problem.candidates.unit = 1;

  t.problem.candidates.invalid = OnInvalid::kDrop;
  const reference::Sets sets = sets_of(t);
  EXPECT_EQ(sets.indptr, (std::vector<int64_t>{0, 1, 1}));
  expect_counts(sets.counts, {.raw = 7, .padding = 1, .invalid = 4, .duplicates = 1, .unique = 1});

  t.problem.candidates.duplicates = OnDuplicate::kReject;
  s = refusal(t.problem, Code::kDuplicateIndex);
  EXPECT_EQ(s.where().row, 0);
  EXPECT_EQ(s.where().value, 3);
  EXPECT_TRUE(says(s, "cand_indices: row 0 of request 0 holds 3 twice"));
}

TEST(ReferenceSets, TheFirstOffenceByRowIsReported) {
  TestProblem t({.kv_len = {4, 4}, .q_len = {2, 1}});
  t.problem.candidates.duplicates = OnDuplicate::kReject;
  t.csr({{0}, {1, 1}, {9}});
  const Status s = refusal(t.problem, Code::kDuplicateIndex);
  EXPECT_EQ(s.where().request, 0);
  EXPECT_EQ(s.where().row, 1);
  t.csr({{0}, {1}, {9}});
  EXPECT_EQ(refusal(t.problem, Code::kIndexOutOfRange).where().request, 1);
  EXPECT_EQ(refusal(t.problem, Code::kIndexOutOfRange).where().row, 2);
}

TEST(ReferenceSets, ForeignBlocksAreJudgedByTheirOwnLength) {
  TestProblem t({.kv_len = {8, 3}, .q_len = {1, 1}});
  t.csr({{7}, {2}});
  EXPECT_EQ(sets_of(t).tokens, (Set{7, 2}));
  t.csr({{7}, {3}});
  EXPECT_EQ(refusal(t.problem, Code::kIndexOutOfRange).where().row, 1);
}

TEST(ReferenceSets, EntriesPastTheCountAreNeverCandidates) {
  TestProblem t({.kv_len = {8}, .q_len = {3}});
  t.problem.mask.causal = false;
  t.fixed({{5, INT32_MAX, 5}, {INT32_MIN, 0, 0}, {1, 2, 3}}, {1, 0, 3});
  const reference::Sets sets = sets_of(t);
  EXPECT_EQ(sets.tokens, (Set{5, 1, 2, 3}));
  expect_counts(sets.counts, {.raw = 4, .unique = 4});
  EXPECT_EQ(sets.empty_rows, 1);
}

TEST(ReferenceSets, CandidateArraysMayBeStrided) {
  TestProblem t({.kv_len = {8}, .q_len = {2}});
  t.problem.mask.causal = false;
  t.fixed({{1, 2}, {3, 4}});
  const int32_t transposed[] = {4, 2, 3, 1};  // read backwards: rows {1, 2} and {3, 4}
  t.problem.candidates.indices.data = transposed + 3;
  t.problem.candidates.indices.stride = {-1, -2};
  const int32_t counts[] = {1, 99, 2};
  t.problem.candidates.count = dense_view(counts, DType::kI32, {2});
  t.problem.candidates.count.stride[0] = 2;
  EXPECT_EQ(sets_of(t).tokens, (Set{1, 3, 4}));

  const int32_t indptr[] = {3, -9, 1, -9, 0}, entries[] = {6, 5, 4};
  t.csr({{4}, {5, 6}});
  t.problem.candidates.indptr.data = indptr + 4;
  t.problem.candidates.indptr.stride[0] = -2;
  t.problem.candidates.indices.data = entries + 2;
  t.problem.candidates.indices.stride[0] = -1;
  EXPECT_EQ(sets_of(t).tokens, (Set{4, 5, 6}));
}

TEST(ReferenceSets, FormsWithoutEntries) {
  TestProblem t({.kv_len = {3}});
  EXPECT_EQ(sets_of(t).empty_rows, 1) << "none: nothing but window and sink";
  t.all();
  EXPECT_EQ(sets_of(t).tokens, (Set{0, 1, 2}));
  t.problem.candidates.unit = 2;
  EXPECT_EQ(sets_of(t).tokens, (Set{0, 1, 2}));
}

TEST(ReferenceSets, WideOffsetsAndNarrowOnesAgree) {
  TestProblem t({.kv_len = {9}, .q_len = {2}});
  t.csr({{3, 1}, {8}});
  const reference::Sets narrow = sets_of(t);
  t.csr64({{3, 1}, {8}});
  const reference::Sets wide = sets_of(t);
  EXPECT_EQ(wide.tokens, (Set{1, 3, 8}));
  EXPECT_EQ(wide.tokens, narrow.tokens);
  EXPECT_EQ(wide.indptr, narrow.indptr);
}

TEST(ReferenceSets, NoQueriesAndNoRequests) {
  TestProblem none({.kv_len = {}, .q_len = {}});
  none.csr({});
  EXPECT_EQ(sets_of(none).indptr, (std::vector<int64_t>{0}));
  TestProblem idle({.kv_len = {5, 5}, .q_len = {0, 0}});
  idle.csr({});
  EXPECT_EQ(sets_of(idle).indptr, (std::vector<int64_t>{0}));
}

}  // namespace
}  // namespace tamis
