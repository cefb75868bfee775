// Section 9: which pages are touched, what is wrong with them, and in which order faults are reported.
#include <gtest/gtest.h>

#include "support/expect.h"
#include "support/problems.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

// Two requests of two pages of 4 tokens each; rows {5} and {1, 6}: pages 1, then 0 and 1, are touched.
TestProblem two_requests() {
  TestProblem t({.kv_len = {8, 8}, .table = {{2, 0}, {1, 3}}});
  t.csr({{5}, {1, 6}});
  return t;
}

TEST(ReferencePages, AllMappedIsGood) {
  TestProblem t = two_requests();
  const reference::Answer a = answer(t.problem);
  EXPECT_EQ(a.output.out[0], 5);
  EXPECT_EQ(a.output.out[4], 3.5);
  EXPECT_EQ(reference::physical_slots(t.problem, a.sets), (std::vector<int64_t>{1, 5, 14}));
}

TEST(ReferencePages, UnmappedIsMinusOneAlone) {
  TestProblem t = two_requests();
  t.table(1, 0) = -1;
  const Status s = refusal(t.problem, Code::kPageUnmapped);
  EXPECT_EQ(s.where().request, 1);
  EXPECT_EQ(s.where().page, 0) << "the logical page";
  EXPECT_EQ(s.where().value, -1) << "the stored entry";
  EXPECT_TRUE(says(s, "page_table: page 0 of request 1"));
}

TEST(ReferencePages, OutOfRangeIsAnythingElseOutside) {
  for (const int32_t bad : {4, 5, -2, INT32_MIN, INT32_MAX}) {
    TestProblem t = two_requests();
    t.table(0, 1) = bad;
    const Status s = refusal(t.problem, Code::kPageOutOfRange);
    EXPECT_EQ(s.where().request, 0);
    EXPECT_EQ(s.where().page, 1);
    EXPECT_EQ(s.where().value, bad);
    EXPECT_EQ(s.where().limit, 4);
    EXPECT_TRUE(says(s, "page_table: page 1 of request 0 is " + std::to_string(bad)));
  }
}

TEST(ReferencePages, TheFirstOffenceByRequestAndLogicalPage) {
  TestProblem t = two_requests();
  t.stamps({10, 11, 12, 13});
  t.table(0, 1) = 99;
  t.table(1, 0) = -1;
  t.table_stamp(1, 1) = 0;
  EXPECT_EQ(refusal(t.problem, Code::kPageOutOfRange).where().request, 0);
  t.table(0, 1) = 0;
  EXPECT_EQ(refusal(t.problem, Code::kPageUnmapped).where().page, 0);
  t.table(1, 0) = 1;
  EXPECT_EQ(refusal(t.problem, Code::kForeignPage).where().page, 1);
  t.table_stamp(1, 1) = 13;
  expect_code(t.problem, Code::kOk);
}

TEST(ReferencePages, OrderIsByLogicalPageNotByQueryOrHead) {
  // The later query and the later head touch the earlier page.
  TestProblem t({.kv_len = {8}, .q_len = {2}, .q_heads = 2, .kv_heads = 2, .table = {{-1, 9}}, .pages = 2});
  t.problem.mask.causal = false;
  t.problem.candidates.index_heads = 2;
  t.csr({{7}, {7}, {7}, {0}});
  EXPECT_EQ(refusal(t.problem, Code::kPageUnmapped).where().page, 0);
  t.csr({{7}, {7}, {7}, {4}});
  EXPECT_EQ(refusal(t.problem, Code::kPageOutOfRange).where().page, 1);
}

TEST(ReferencePages, ForeignPages) {
  TestProblem t = two_requests();
  t.stamps({10, 11, 12, UINT64_MAX});
  expect_code(t.problem, Code::kOk);
  t.table_stamp(1, 1) = 13;
  Status s = refusal(t.problem, Code::kForeignPage);
  EXPECT_EQ(s.where().request, 1);
  EXPECT_EQ(s.where().page, 1);
  EXPECT_EQ(s.where().value, 3) << "the stored entry";
  EXPECT_TRUE(says(s, "table_stamps: page 1 of request 1 was mapped with stamp 13"));
  EXPECT_TRUE(says(s, "18446744073709551615"));
  t.table_stamp(1, 1) = UINT64_MAX - (uint64_t{1} << 32);
  expect_code(t.problem, Code::kForeignPage);  // stamps count in full, not by their low half
}

TEST(ReferencePages, UntouchedEntriesMayHoldAnything) {
  TestProblem t = two_requests();
  t.stamps({10, 11, 12, 13});
  t.table(0, 0) = INT32_MIN;
  t.table_stamp(0, 0) = 7;
  EXPECT_EQ(answer(t.problem).output.out[0], 5);
}

TEST(ReferencePages, TokensOutsideTheSetTouchNothing) {
  TestProblem t({.kv_len = {12}, .table = {{0, -1, 77}}, .pages = 1});
  // A future token, padding, a dropped entry and a merged duplicate.
  t.csr({{3, 3, -1, 4, 11, 500}}).q_pos({3});
  t.problem.candidates.invalid = OnInvalid::kDrop;
  EXPECT_EQ(answer(t.problem).output.out[0], 3);
  t.q_pos({4});
  EXPECT_EQ(refusal(t.problem, Code::kPageUnmapped).where().page, 1);
}

TEST(ReferencePages, WindowAndSinkTouchPages) {
  TestProblem t({.kv_len = {12}, .table = {{0, 1, -1}}, .pages = 2});
  t.csr({{0}}).q_pos({9});
  expect_code(t.problem, Code::kOk);
  t.problem.mask.window = 2;
  EXPECT_EQ(refusal(t.problem, Code::kPageUnmapped).where().page, 2);
  t.problem.mask = {.causal = false, .sink = 9};
  EXPECT_EQ(refusal(t.problem, Code::kPageUnmapped).where().page, 2);
  t.problem.mask.sink = 8;
  expect_code(t.problem, Code::kOk);
}

TEST(ReferencePages, ArgumentsThenCandidatesThenPages) {
  TestProblem t = two_requests();
  t.table(0, 1) = -1;
  expect_code(t.problem, Code::kPageUnmapped);
  t.csr({{5}, {1, 8}});
  EXPECT_EQ(refusal(t.problem, Code::kIndexOutOfRange).where().row, 1) << "a later row goes before any page";
  t.problem.dropout.p = 1;
  expect_code(t.problem, Code::kInvalidArgument);
  t.problem.dropout.p = 0;
  t.kv_len()[1] = 9;
  expect_code(t.problem, Code::kInvalidArgument);
  t.kv_len()[1] = 8;
  t.problem.candidates.semantics = Semantics::kMultiset;
  expect_code(t.problem, Code::kUnsupportedSemantics);
}

TEST(ReferencePages, ContiguousCachesHaveNone) {
  TestProblem t({.kv_len = {8}, .page_size = 0});
  t.csr({{7}});
  const Result<reference::Sets> sets = reference::build_sets(t.problem);
  ASSERT_TRUE(sets.ok());
  EXPECT_TRUE(reference::check_pages(t.problem, *sets).ok());
  EXPECT_EQ(reference::physical_slots(t.problem, *sets), (std::vector<int64_t>{t.cu_kv()[0] + 7}));
}

TEST(ReferencePages, SharedPrefixesPassWithTheirStamp) {
  TestProblem t({.kv_len = {8, 8}, .table = {{1, 0}, {1, 2}}});
  t.csr({{0, 4}, {0, 4}}).stamps({5, 6, 7});
  const reference::Answer a = answer(t.problem);
  EXPECT_EQ(a.sets.tokens, (std::vector<int32_t>{0, 4, 0, 4}));
  t.table_stamp(1, 0) = 5;
  EXPECT_EQ(refusal(t.problem, Code::kForeignPage).where().request, 1)
      << "the healthy request is refused with it";
}

}  // namespace
}  // namespace tamis
