// docs/faults.md, groups A and B: candidate lists that other libraries have misread. Each test is named after
// its entry and holds the smallest input that shows the fault.
#include <gtest/gtest.h>

#include "support/expect.h"
#include "support/problems.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

// Not causal, as the entries are unless they say so.
TestProblem open_problem(Spec spec) {
  TestProblem t(std::move(spec));
  t.problem.mask.causal = false;
  return t;
}

TEST(FaultA1, RangeIsTestedOnBothSidesAndExactly) {
  TestProblem t = open_problem({.kv_len = {8}});
  t.csr({{3, 8, -2, INT32_MIN, INT32_MAX}});
  EXPECT_EQ(refusal(t.problem, Code::kIndexOutOfRange).where().value, 8);
  t.problem.candidates.invalid = OnInvalid::kDrop;
  const reference::Answer a = answer(t.problem);
  EXPECT_EQ(a.output.out, std::vector<double>(4, 3));
  EXPECT_EQ(a.output.lse, std::vector<double>{0});
  EXPECT_EQ(a.sets.counts.invalid, 4);

  t.problem.candidates.invalid = OnInvalid::kReject;
  for (const int32_t bad : {8, -2, INT32_MIN, INT32_MAX}) {
    t.csr({{bad}});
    expect_code(t.problem, Code::kIndexOutOfRange);
  }
  t.csr({{7}});
  EXPECT_EQ(answer(t.problem).output.out[0], 7);
}

TEST(FaultA2, ValidityIsJudgedByTheEntryNotBySlotOrLength) {
  TestProblem t = open_problem({.kv_len = {3}});
  const Rows row = {{-1, -1, -1, -1, 0, 1, 2, -1}};
  t.fixed(row);
  const reference::Answer a = answer(t.problem);
  EXPECT_EQ(a.sets.tokens, (std::vector<int32_t>{0, 1, 2}));
  EXPECT_DOUBLE_EQ(a.output.out[0], 1);
  EXPECT_DOUBLE_EQ(a.output.lse[0], std::log(3.0));
  t.fixed(row, {8});
  EXPECT_TRUE(same_answer(answer(t.problem), a));
  t.fixed(row, {0});
  EXPECT_EQ(answer(t.problem).output.lse[0], -kInf);
  EXPECT_EQ(answer(t.problem).output.out, std::vector<double>(4, 0));
  for (const int32_t count : {-1, 9}) {
    t.fixed(row, {count});
    expect_code(t.problem, Code::kInvalidArgument);
  }
}

TEST(FaultA3, OffsetsAreNotTrusted) {
  TestProblem t = open_problem({.kv_len = {8}, .q_len = {2}});
  t.csr({{0, 1}, {2}});
  expect_code(t.problem, Code::kOk);
  t.indptr32() = {0, 5, 3};
  t.problem.candidates.indptr.data = t.indptr32().data();
  EXPECT_TRUE(says(refusal(t.problem, Code::kInvalidArgument), "cand_indptr"));
}

TEST(FaultA4, HeadMapWhereGroupAndKvHeadsDiffer) {
  TestProblem odd = open_problem({.q_heads = 5, .kv_heads = 2});
  odd.all();
  expect_code(odd.problem, Code::kInvalidArgument);

  struct Heads {
    int64_t q, kv;
  };
  for (const Heads heads : {Heads{6, 2}, Heads{2, 2}, Heads{6, 3}, Heads{12, 3}, Heads{5, 1}}) {
    TestProblem t =
        open_problem({.q_heads = heads.q,
                      .kv_heads = heads.kv,
                      .head_dim = 8,
                      .v_head_dim = 3,
                      .v = [](int64_t, int64_t, int64_t h, int64_t) { return static_cast<double>(h); }});
    t.all();
    const reference::Answer a = answer(t.problem);
    for (int64_t h = 0; h < heads.q; ++h)
      EXPECT_DOUBLE_EQ(a.output.out[h * 3], static_cast<double>(h / (heads.q / heads.kv)))
          << h << " of " << heads.q;
  }
}

TEST(FaultA5, ListsOfAHeadStayItsOwn) {
  TestProblem t = open_problem({.q_heads = 2, .v_head_dim = 1});
  t.problem.candidates.index_heads = 2;
  t.csr({{0}, {1}});
  EXPECT_EQ(answer(t.problem).output.out, (std::vector<double>{0, 1}));

  // Lists per KV head: the first half of the query heads uses the first.
  TestProblem kv = open_problem({.q_heads = 4, .kv_heads = 2, .v_head_dim = 1});
  kv.problem.candidates.index_heads = 2;
  kv.csr({{3}, {5}});
  EXPECT_EQ(answer(kv.problem).output.out, (std::vector<double>{3, 3, 5, 5}));
}

TEST(FaultA6, BasesAndStridesComeFromTheRightExtent) {
  for (const Placement placement : {Placement::kDense, Placement::kSpread}) {
    for (const int64_t page : {4, 0}) {
      TestProblem t =
          open_problem({.kv_len = {5, 7},
                        .q_len = {3, 3},
                        .q_heads = 6,
                        .kv_heads = 2,
                        .head_dim = 64,
                        .v_head_dim = 64,
                        .page_size = page,
                        .placement = placement,
                        .v = [](int64_t b, int64_t token, int64_t, int64_t) { return 1000.0 * b + token; }});
      t.all();
      const reference::Answer a = answer(t.problem);
      for (int64_t i = 0; i < 6 * 6 * 64; ++i)
        ASSERT_NEAR(a.output.out[i], i < 3 * 6 * 64 ? 2 : 1003, 1e-9) << i;
    }
  }
}

TEST(FaultB1, ATokenCountsOnce) {
  TestProblem t = open_problem({.kv_len = {2}});
  t.csr({{0, 0, 1}});
  reference::Answer a = answer(t.problem);
  EXPECT_DOUBLE_EQ(a.output.out[0], 0.5) << "1/3 when the duplicate counts twice";
  EXPECT_DOUBLE_EQ(a.output.lse[0], std::log(2.0));
  EXPECT_EQ(a.sets.counts.duplicates, 1);
  t.problem.candidates.duplicates = OnDuplicate::kReject;
  expect_code(t.problem, Code::kDuplicateIndex);

  TestProblem scopes = open_problem({.kv_len = {8}});
  scopes.problem.mask.sink = 1;
  scopes.problem.mask.window = 2;
  scopes.csr({{0, 7}});
  for (const OnDuplicate policy : {OnDuplicate::kMerge, OnDuplicate::kReject}) {
    scopes.problem.candidates.duplicates = policy;
    a = answer(scopes.problem);
    EXPECT_DOUBLE_EQ(a.output.out[0], 13.0 / 3);
    EXPECT_DOUBLE_EQ(a.output.lse[0], std::log(3.0));
  }
}

TEST(FaultB2, OrderAndHolesChangeNoBit) {
  TestProblem t = open_problem({.kv_len = {8}, .q = q_noise(1), .k = kv_noise(2), .v = kv_noise(3)});
  t.csr({{3, 5}});
  const reference::Answer plain = answer(t.problem);
  EXPECT_NE(plain.output.out[0], 0);
  for (const auto& row : Rows{{-1, 5, -1, 3}, {5, 3}, {3, -1, -1, 5}, {5, 3, 5, 3}}) {
    t.csr({row});
    EXPECT_TRUE(same_answer(answer(t.problem), plain));
  }
}

TEST(FaultB3, TheUnitIsTheCandidatesOwn) {
  TestProblem t = open_problem({.kv_len = {128}});
  t.problem.candidates.unit = 16;
  t.csr({{3}});
  EXPECT_DOUBLE_EQ(answer(t.problem).output.out[0], 55.5) << "111.5 when read as blocks of 32";
  TestProblem tail = open_problem({.kv_len = {100}});
  tail.problem.candidates.unit = 64;
  tail.csr({{1}});
  const reference::Answer a = answer(tail.problem);
  EXPECT_DOUBLE_EQ(a.output.out[0], 81.5);
  EXPECT_DOUBLE_EQ(a.output.lse[0], std::log(36.0));
  tail.csr({{2}});
  expect_code(tail.problem, Code::kIndexOutOfRange);
}

}  // namespace
}  // namespace tamis
