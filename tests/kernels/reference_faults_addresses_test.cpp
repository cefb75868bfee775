// docs/faults.md, group C: pages, tables and addresses. C6 (page sizes and placement) is layouts_test.cpp.
#include <gtest/gtest.h>

#include "support/expect.h"
#include "support/mapped.h"
#include "support/problems.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

constexpr int64_t kTwo31 = int64_t{1} << 31;

TEST(FaultC1, PagesBeyondTwoToThe31AreTheirOwn) {
  // Page 64, Hkv 8, D 128: 65 536 elements a page, so page 32 768 starts at element 2^31.
  const int64_t page_elements = 64 * 8 * 128, pages = 32770;
  const SparseBuffer cache(pages * page_elements * 2);
  if (!cache.data()) GTEST_SKIP() << "no address space for " << pages * page_elements * 2 << " bytes";
  TestProblem t({.kv_len = {128},
                 .q_heads = 8,
                 .kv_heads = 8,
                 .head_dim = 128,
                 .v_head_dim = 128,
                 .dtype = DType::kBF16,
                 .page_size = 64,
                 .table = {{0, 1}}});
  t.table(0, 0) = 32767;
  t.table(0, 1) = 32768;
  t.problem.cache.k = t.problem.cache.v = dense_view(cache.data(), DType::kBF16, {pages, 64, 8, 128});
  // The last token below 2^31 and the first two at and above.
  const int64_t slots[] = {kTwo31 / 1024 - 1, kTwo31 / 1024, kTwo31 / 1024 + 1};
  for (int64_t i = 0; i < 3; ++i)
    for (int64_t h = 0; h < 8; ++h) t.put_v(slots[i], h, 127, static_cast<double>(10 * (i + 1) + h));
  t.problem.score.scale = 0;
  for (int64_t i = 0; i < 3; ++i) {
    t.csr({{static_cast<int32_t>(63 + i)}});
    const reference::Answer a = answer(t.problem);
    for (int64_t h = 0; h < 8; ++h)
      EXPECT_EQ(a.output.out[h * 128 + 127], static_cast<double>(10 * (i + 1) + h));
  }
}

TEST(FaultC1, RowsTimesWidthBeyondTwoToThe31) {
  const int64_t rows = int64_t{1} << 20, width = 2048;
  const SparseBuffer entries(rows * width * 4);
  if (!entries.data()) GTEST_SKIP() << "no address space for " << rows * width * 4 << " bytes";
  TestProblem t({.kv_len = {8}, .q_len = {static_cast<int32_t>(rows)}, .head_dim = 1, .v_head_dim = 1});
  t.problem.mask.causal = false;
  t.problem.candidates.form = CandidateForm::kFixedWidth;
  t.problem.candidates.indices = dense_view(entries.data(), DType::kI32, {rows, width});
  std::vector<int32_t> counts(rows, 0);
  counts.front() = counts.back() = 2;
  t.problem.candidates.count = dense_view(counts.data(), DType::kI32, {rows});
  t.q_pos(std::vector<int32_t>(rows, 0));
  int32_t* last = static_cast<int32_t*>(entries.data()) + (rows - 1) * width;
  last[0] = 7;
  last[1] = 5;
  const Result<reference::Sets> sets = reference::build_sets(t.problem);
  ASSERT_TRUE(sets.ok()) << sets.status().message();
  EXPECT_EQ(sets->tokens, (std::vector<int32_t>{0, 5, 7}));
  EXPECT_EQ(sets->empty_rows, rows - 2);
}

TEST(FaultC1, MoreOutputsThanTheJudgeHoldsAreRefused) {
  TestProblem t({.kv_len = {1}, .q_len = {65536}});
  // 65 536 rows of 128 heads of 256 are 2^31 outputs; one query stands for all of them.
  t.problem.query.q = dense_view(t.problem.query.q.data, DType::kF32, {65536, 128, 256});
  t.problem.query.q.stride = {0, 0, 0};
  t.problem.cache.k = t.problem.cache.v = dense_view(t.problem.cache.k.data, DType::kF32, {2, 4, 1, 256});
  t.problem.cache.k.stride = t.problem.cache.v.stride = {0, 0, 0, 0};
  t.all();
  expect_code(t.problem, Code::kCapacityExceeded);
}

TEST(FaultC2, PaddingIsNotDereferenced) {
  TestProblem t({.kv_len = {4}, .page_size = 2, .table = {{1, 0}}});
  t.problem.mask.causal = false;
  t.csr({{-1, 2}});
  for (const int64_t token : {0, 3}) {
    t.put_k(t.slot(0, token), kNaN);
    t.put_v(t.slot(0, token), kNaN);
  }
  const reference::Answer a = answer(t.problem);
  EXPECT_EQ(a.output.out, std::vector<double>(4, 2));
  EXPECT_EQ(a.output.lse[0], 0);
  t.table(0, 0) = -1;  // there is no default page that padding could look up
  EXPECT_TRUE(same_answer(answer(t.problem), a));
}

TEST(FaultC3, UnusedTableEntriesAreNotReadAndUsedOnesAreChecked) {
  TestProblem wide({.kv_len = {5}, .table = {{2, 0, 99999, -7}}, .pages = 4});
  wide.problem.mask.causal = false;
  wide.csr({{0, 4}});
  EXPECT_EQ(answer(wide.problem).output.out[0], 2);

  for (const auto& [entry, code] : {std::pair{4, Code::kPageOutOfRange}, {-1, Code::kPageUnmapped}}) {
    TestProblem t({.kv_len = {8}, .table = {{0, entry}}, .pages = 4});
    t.problem.mask.causal = false;
    t.csr({{5}});
    EXPECT_EQ(refusal(t.problem, code).where().page, 1);
    t.csr({{3}});
    EXPECT_EQ(answer(t.problem).output.out[0], 3);
  }
}

TEST(FaultC4, AForeignPageRefusesTheWholeBatch) {
  TestProblem t({.kv_len = {4, 4}, .table = {{0}, {1}}});
  t.csr({{0}, {0}}).stamps({7, 9});
  t.table(0, 0) = 1;  // A was mapped to a page stamped 7 and now names page 1
  for (int64_t at = 4; at < 8; ++at) t.put_v(at, 10000);
  const Status s = refusal(t.problem, Code::kForeignPage);
  EXPECT_EQ(s.where().request, 0);
  EXPECT_TRUE(says(s, "stamp 7"));
  EXPECT_TRUE(says(s, "has 9"));
  t.table(0, 0) = 0;
  EXPECT_EQ(answer(t.problem).output.out[0], 0);
}

TEST(FaultC5, TokensAreTranslatedOnce) {
  TestProblem t({.kv_len = {8}, .table = {{1, 3}}});
  for (int64_t at = 0; at < t.slots(); ++at) {
    t.put_k(at, 0);
    t.put_v(at, static_cast<double>(at));
  }
  t.csr({{5}});
  EXPECT_EQ(answer(t.problem).output.out[0], 13) << "5 untranslated";
  EXPECT_EQ(reference::physical_slots(t.problem, answer(t.problem).sets), std::vector<int64_t>{13});
}

}  // namespace
}  // namespace tamis
