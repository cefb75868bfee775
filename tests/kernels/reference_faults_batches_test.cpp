// docs/faults.md, groups D, F, I and J: shapes of batches, neighbours, and one meaning on every way there is.
#include <gtest/gtest.h>

#include "support/expect.h"
#include "support/mapped.h"
#include "support/problems.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

std::vector<double> part(const std::vector<double>& x, int64_t first, int64_t count) {
  return {x.begin() + first, x.begin() + first + count};
}

TEST(FaultD5, PaddedRowsAreNoWork) {
  // A graph of 4 rows, 3 of them live.
  TestProblem t({.kv_len = {5, 3, 8, 0}, .v_head_dim = 1, .table = {{0, 1}, {2, -1}, {3, 4}, {-1, -1}}});
  t.fixed({{4, 0}, {2, -1}, {7, 7}, {6, INT32_MAX}}, {2, 2, 2, 0});
  const reference::Answer a = answer(t.problem);
  EXPECT_EQ(a.output.out, (std::vector<double>{2, 2, 7, 0}));
  EXPECT_EQ(a.output.lse[3], -kInf);
  EXPECT_EQ(a.sets.empty_rows, 1);

  // A buffer shared with prefill: decode owns 2 of its 4 rows and must be given no more.
  TestProblem decode({.kv_len = {4, 4}, .v_head_dim = 1});
  decode.fixed({{1}, {2}, {99}, {99}});
  expect_code(decode.problem, Code::kInvalidArgument);
  decode.problem.candidates.indices.shape[0] = 2;
  EXPECT_EQ(answer(decode.problem).output.out, (std::vector<double>{1, 2}));
}

TEST(FaultD6, NothingIsReadBehindTheLastRequest) {
  for (const int32_t requests : {31, 32, 33, 64}) {
    TestProblem t({.kv_len = std::vector<int32_t>(requests, 0), .v_head_dim = 1});
    t.csr(Rows(requests));
    const WalledCopy lengths(t.kv_len().data(), requests * 4), cu_q(t.cu_q().data(), (requests + 1) * 4),
        indptr(t.indptr32().data(), (requests + 1) * 4);
    ASSERT_TRUE(lengths.data() && cu_q.data() && indptr.data());
    t.problem.cache.kv_len.data = lengths.data();
    t.problem.query.cu_q.data = cu_q.data();
    t.problem.candidates.indptr.data = indptr.data();
    const reference::Answer a = answer(t.problem);
    EXPECT_EQ(a.output.lse, std::vector<double>(requests, -kInf));
    EXPECT_EQ(a.output.out, std::vector<double>(requests, 0));
    EXPECT_EQ(a.sets.empty_rows, requests);
  }
}

TEST(FaultD6, ManyRowsManyRequestsOneLongRow) {
  TestProblem rows({.kv_len = {1},
                    .q_len = {65536},
                    .head_dim = 1,
                    .v_head_dim = 1,
                    .v = [](int64_t, int64_t, int64_t, int64_t) { return 3.0; }});
  rows.q_pos(std::vector<int32_t>(65536, 0)).csr(Rows(65536, {0}));
  EXPECT_EQ(answer(rows.problem).output.out, std::vector<double>(65536, 3));

  const int32_t requests = 11623;
  TestProblem batch({.kv_len = std::vector<int32_t>(requests, 1),
                     .head_dim = 1,
                     .v_head_dim = 1,
                     .page_size = 1,
                     .v = [](int64_t b, int64_t, int64_t, int64_t) { return static_cast<double>(b); }});
  batch.csr(Rows(requests, {0}));
  const reference::Answer a = answer(batch.problem);
  for (int32_t b = 0; b < requests; ++b) ASSERT_EQ(a.output.out[b], b);

  const int32_t length = 161 * 64;
  TestProblem row({.kv_len = {length}, .head_dim = 1, .v_head_dim = 1, .page_size = 64});
  row.all();
  EXPECT_NEAR(answer(row.problem).output.out[0], (length - 1) / 2.0, 1e-8);
  EXPECT_DOUBLE_EQ(answer(row.problem).output.lse[0], std::log(length));
}

TEST(FaultF2, TheLogarithmIsNatural) {
  TestProblem t({.kv_len = {5}, .v_head_dim = 1, .v = [](int64_t, int64_t token, int64_t, int64_t) {
                   return token == 4 ? 1.0 : 0.0;
                 }});
  t.csr({{0, 1, 2, 3}});
  EXPECT_DOUBLE_EQ(answer(t.problem).output.lse[0], std::log(4.0));
  t.csr({{0, 1, 2, 3, 4}});
  EXPECT_DOUBLE_EQ(answer(t.problem).output.lse[0], std::log(5.0));
  EXPECT_DOUBLE_EQ(answer(t.problem).output.out[0], 0.2);
}

TEST(FaultF3, NeighboursChangeNoBit) {
  const auto decode_row = [](std::vector<int32_t> kv_len, std::vector<int32_t> q_len) {
    TestProblem t({.kv_len = std::move(kv_len),
                   .q_len = std::move(q_len),
                   .head_dim = 2,
                   .v_head_dim = 2,
                   .page_size = 64,
                   .q = q_noise(1),
                   .k = kv_noise(2),
                   .v = kv_noise(3)});
    t.all();
    const reference::Answer a = answer(t.problem);
    std::vector<double> row = part(a.output.out, 0, 2);
    row.push_back(a.output.lse[0]);
    return row;
  };
  const std::vector<double> alone = decode_row({8193}, {1});
  EXPECT_TRUE(same_bits(decode_row({8193, 9}, {1, 9}), alone));
  EXPECT_TRUE(same_bits(decode_row({8193, 10}, {1, 10}), alone));
  std::vector<int32_t> lengths(1001, 3), queries(1001, 1);
  lengths[0] = 8193;
  EXPECT_TRUE(same_bits(decode_row(lengths, queries), alone));
}

TEST(FaultF4, TheSameInputGivesTheSameBits) {
  TestProblem t({.kv_len = {300, 77},
                 .q_len = {9, 9},
                 .q_heads = 4,
                 .kv_heads = 2,
                 .page_size = 16,
                 .q = q_noise(1),
                 .k = kv_noise(2),
                 .v = kv_noise(3)});
  t.all();
  const reference::Answer first = answer(t.problem);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(same_answer(answer(t.problem), first));
}

TEST(FaultI1, SparseIsNotDense) {
  TestProblem t({.kv_len = {2}, .v_head_dim = 1});
  t.csr({{0}});
  EXPECT_EQ(answer(t.problem).output.out[0], 0);
  t.all();
  EXPECT_DOUBLE_EQ(answer(t.problem).output.out[0], 0.5);
}

Spec noisy(std::vector<int32_t> kv_len, std::vector<int32_t> q_len) {
  return {.kv_len = std::move(kv_len),
          .q_len = std::move(q_len),
          .q_heads = 2,
          .q = q_noise(1),
          .k = kv_noise(2),
          .v = kv_noise(3)};
}

TEST(FaultI3, EverythingListedIsFullAttention) {
  for (const int32_t queries : {1, 64, 65}) {
    TestProblem t(noisy({70}, {queries}));
    t.problem.score.softcap = 0.75;
    t.all();
    const reference::Answer dense = answer(t.problem);
    std::vector<int32_t> everything(70);
    for (int32_t i = 0; i < 70; ++i) everything[i] = 69 - i;
    everything.insert(everything.end(), {-1, 3, 3});
    t.csr(Rows(queries, everything));
    EXPECT_TRUE(same_answer(answer(t.problem), dense));
    t.csr(Rows(queries));
    t.problem.mask.window = 1000;
    EXPECT_TRUE(same_answer(answer(t.problem), dense)) << "a window over everything";
    t.problem.mask = {.sink = 70};
    EXPECT_TRUE(same_answer(answer(t.problem), dense)) << "a sink over everything";
  }
}

TEST(FaultI3, APrefillIsItsDecodeSteps) {
  // Rows with an empty one, a duplicate, padding, and a NaN in a slot that nobody uses.
  const Rows rows = {{0}, {-1}, {1, 1, 0}, {-1, 3, -1}, {4, 0}};
  TestProblem prefill(noisy({5}, {5}));
  prefill.csr(rows).alibi({0.5, 0.25});
  prefill.put_k(prefill.slot(0, 2), kNaN);
  prefill.put_v(prefill.slot(0, 2), kNaN);
  const reference::Answer together = answer(prefill.problem);
  for (int32_t step = 0; step < 5; ++step) {
    Spec spec = noisy({step + 1}, {1});
    spec.q = [&](int64_t, int64_t h, int64_t d) { return noise(1, step, h, d); };
    TestProblem decode(spec);
    decode.csr({rows[step]}).alibi({0.5, 0.25});
    const reference::Answer a = answer(decode.problem);
    EXPECT_TRUE(same_bits(a.output.out, part(together.output.out, step * 8, 8))) << step;
    EXPECT_TRUE(same_bits(a.output.lse, part(together.output.lse, step * 2, 2))) << step;
  }
  EXPECT_EQ(together.output.lse[2], -kInf);
}

TEST(FaultI3, RowsInABlockOrOneByOne) {
  for (const int32_t queries : {64, 65}) {
    TestProblem t(noisy({80}, {queries}));
    t.csr(Rows(queries, {3, 77, 20}));
    const reference::Answer alone = answer(t.problem);
    for (const int64_t block : {16, 64, 1000}) {
      t.problem.candidates.query_block = block;
      t.csr(Rows((queries + block - 1) / block, {77, 20, 3}));
      EXPECT_TRUE(same_answer(answer(t.problem), alone)) << block;
    }
  }
}

TEST(FaultJ1, CausalityComesFromPositions) {
  TestProblem t({.kv_len = {2}, .q_len = {2}, .v_head_dim = 1});
  t.csr({{0, 1}, {0, 1}});
  ASSERT_TRUE(t.problem.mask.causal) << "without being asked for";
  EXPECT_EQ(answer(t.problem).output.out[0], 0);
  EXPECT_DOUBLE_EQ(answer(t.problem).output.out[1], 0.5);
}

}  // namespace
}  // namespace tamis
