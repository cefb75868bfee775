// docs/faults.md, group E: what must not enter a softmax, and numbers that must not overflow in it.
#include <gtest/gtest.h>

#include "support/expect.h"
#include "support/problems.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

QFill per_query(std::vector<double> values) {
  return [values](int64_t i, int64_t, int64_t) { return values[i]; };
}
double one(int64_t, int64_t, int64_t, int64_t) { return 1; }

TEST(FaultE1, TheRaggedTailHasNoWeight) {
  for (const int32_t length : {1, 63, 65, 127, 129}) {
    TestProblem t(
        {.kv_len = {length}, .head_dim = 1, .page_size = 64, .q = per_query({-10}), .k = one, .v = one});
    t.problem.score.scale = 1;
    t.all();
    const reference::Answer a = answer(t.problem);
    EXPECT_NEAR(a.output.out[0], 1, 1e-12) << length;
    EXPECT_NEAR(a.output.lse[0], -10 + std::log(length), 1e-12) << length;
  }
}

TEST(FaultE2, SlotsPastTheCountAreNotUsed) {
  for (const int32_t queries : {64, 65}) {
    TestProblem t({.kv_len = {4}, .q_len = {queries}, .v_head_dim = 1});
    t.problem.mask.causal = false;
    t.q_pos(std::vector<int32_t>(queries, 0));
    std::vector<int32_t> row(64, 3);
    row[0] = 2;
    t.fixed(Rows(queries, row), std::vector<int32_t>(queries, 1));
    const reference::Answer a = answer(t.problem);
    EXPECT_EQ(a.output.out, std::vector<double>(queries, 2));
    EXPECT_EQ(a.sets.counts.raw, queries);
  }
}

TEST(FaultE3, ZeroTimesNaN) {
  TestProblem t({.kv_len = {4}, .q = q_noise(4), .k = kv_noise(5), .v = kv_noise(6)});
  t.problem.mask.causal = false;
  t.csr({{0, 1, 2}});
  const reference::Answer clean = answer(t.problem);
  EXPECT_TRUE(std::isfinite(clean.output.out[0]) && std::isfinite(clean.output.lse[0]));
  for (const double poison : {kNaN, kInf, -kInf}) {
    t.put_v(t.slot(0, 3), poison);
    EXPECT_TRUE(same_answer(answer(t.problem), clean)) << "V " << poison;
    t.put_k(t.slot(0, 3), poison);
    EXPECT_TRUE(same_answer(answer(t.problem), clean)) << "K " << poison;
  }
  t.kv_len()[0] = 3;
  t.q_pos({3});
  EXPECT_TRUE(same_answer(answer(t.problem), clean)) << "behind the length";
  t.kv_len()[0] = 4;
  t.csr({{0, 1, 2, 3}});
  EXPECT_TRUE(std::isnan(answer(t.problem).output.out[0])) << "selected, it does show";
}

TEST(FaultE3, ANeighboursSlotIsPoisonForThisRow) {
  TestProblem t({.kv_len = {4}, .q_len = {2}, .q_heads = 2, .k = kv_noise(5), .v = kv_noise(6)});
  t.problem.mask.causal = false;
  t.problem.candidates.index_heads = 2;
  t.put_k(t.slot(0, 3), kNaN);
  t.put_v(t.slot(0, 3), kNaN);
  t.csr({{0, 1}, {0, 3}, {1, 2}, {2}});
  const reference::Answer a = answer(t.problem);
  for (int64_t row = 0; row < 4; ++row) EXPECT_EQ(std::isnan(a.output.out[row * 4]), row == 1) << row;
}

TEST(FaultE4, EmptyRows) {
  TestProblem t({.kv_len = {2}, .q_len = {2}, .v_head_dim = 1});
  t.problem.mask.causal = false;
  t.csr({{-1, -1}, {1}});
  reference::Answer a = answer(t.problem);
  EXPECT_EQ(a.output.out, (std::vector<double>{0, 1}));
  EXPECT_EQ(a.output.lse, (std::vector<double>{-kInf, 0}));
  EXPECT_EQ(a.sets.empty_rows, 1);
  t.csr({{}, {-1}});
  a = answer(t.problem);
  EXPECT_EQ(a.output.out, (std::vector<double>{0, 0}));
  EXPECT_EQ(a.output.lse, (std::vector<double>{-kInf, -kInf}));
  EXPECT_EQ(a.sets.empty_rows, 2);

  TestProblem none({.kv_len = {0}, .v_head_dim = 1});
  none.problem.mask = {.causal = false, .window = 4, .sink = 4};
  none.all();
  a = answer(none.problem);
  EXPECT_EQ(a.output.out, std::vector<double>{0});
  EXPECT_EQ(a.output.lse, std::vector<double>{-kInf});
}

TEST(FaultE5, LeadingTilesWithoutWork) {
  TestProblem t({.kv_len = {65}, .q_len = {2}, .v_head_dim = 1, .page_size = 16});
  t.problem.mask.causal = false;
  std::vector<int32_t> first(64);
  for (int32_t i = 0; i < 64; ++i) first[i] = i;
  t.csr({first, {64}});
  EXPECT_DOUBLE_EQ(answer(t.problem).output.out[0], 31.5);
  EXPECT_EQ(answer(t.problem).output.out[1], 64);
  // Packed behind a tile of padding.
  std::vector<int32_t> padded(64, -1);
  padded.push_back(5);
  t.csr({padded, {64}});
  EXPECT_EQ(answer(t.problem).output.out[0], 5);
  EXPECT_EQ(answer(t.problem).output.lse[0], 0);
}

TEST(FaultE6, WorkAmongEmptyRows) {
  const auto run = [](int32_t rows, const std::vector<int32_t>& with_work) {
    TestProblem t({.kv_len = {4}, .q_len = {rows}, .v_head_dim = 1, .v = one});
    t.q_pos(std::vector<int32_t>(rows, 0));
    Rows lists(rows);
    std::vector<double> want(rows, 0);
    for (const int32_t row : with_work) {
      lists[row] = {0};
      want[row] = 1;
    }
    t.csr(lists);
    const reference::Answer a = answer(t.problem);
    EXPECT_EQ(a.output.out, want);
    EXPECT_EQ(a.sets.empty_rows, rows - static_cast<int64_t>(with_work.size()));
  };
  run(320, {0, 256});
  run(2, {1});
  run(3, {2});
}

TEST(FaultE7, CausalityIsAlignedToTheEnd) {
  TestProblem longer({.kv_len = {1}, .q_len = {2}, .v_head_dim = 1, .v = one});
  longer.all();
  reference::Answer a = answer(longer.problem);
  EXPECT_EQ(a.output.lse, (std::vector<double>{-kInf, 0})) << "exactly -inf, no large negative number";
  EXPECT_EQ(a.output.out, (std::vector<double>{0, 1}));

  TestProblem decode({.kv_len = {4}, .v_head_dim = 1});
  decode.csr({{0, 3}});
  EXPECT_DOUBLE_EQ(answer(decode.problem).output.out[0], 1.5);

  // A future token is an empty row, no error, and does not touch its page.
  TestProblem future({.kv_len = {4}, .q_len = {2}, .v_head_dim = 1, .page_size = 2, .table = {{0, -1}}});
  future.csr({{3}, {0}});
  a = answer(future.problem);
  EXPECT_EQ(a.output.lse, (std::vector<double>{-kInf, 0}));
  EXPECT_EQ(a.sets.empty_rows, 1);
}

TEST(FaultE8, TheMaximumIsTheRowsOwn) {
  for (const double score : {200.0, -120.0, 3e4, -3e4}) {
    TestProblem t({.kv_len = {1},
                   .q_len = {2},
                   .head_dim = 1,
                   .v_head_dim = 1,
                   .q = per_query({score, 0}),
                   .k = one,
                   .v = one});
    t.q_pos({0, 0});
    t.problem.score.scale = 1;
    t.problem.candidates.query_block = 2;
    t.csr({{0}});
    const reference::Answer a = answer(t.problem);
    EXPECT_EQ(a.output.lse, (std::vector<double>{score, 0}));
    EXPECT_EQ(a.output.out, (std::vector<double>{1, 1}));
  }
}

}  // namespace
}  // namespace tamis
