// The prefill kernel at the edge: pools beyond 2^31 elements, and a chunk of queries over a long context
// beside the decode engine.
#include <gtest/gtest.h>

#include "cuda/draw.h"
#include "cuda/pool.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

class CudaPrefillExtents : public OnPrefillDevice {};

cuda::StepOptions split(int32_t splits) {
  cuda::StepOptions o;
  o.plan.splits = splits;
  return prefill(o);
}

// Pages of 64 tokens, 8 heads, 128 numbers: page 32768 starts at element 2^31. Only a few pages are written;
// all others are NaN on the device.
TEST_F(CudaPrefillExtents, PagesBeyondTwoToTheThirtyOne) {
  constexpr int64_t kPages = 32776, kTokens = 64, kHeads = 8, kDim = 128, kOnePage = kTokens * kHeads * kDim;
  constexpr int64_t kBytes = kPages * kOnePage * 2;
  if (!room_for(2 * kBytes)) GTEST_SKIP() << "no room for the pool";
  const std::vector<int32_t> pages{0, 32767, 32768, 32775};
  for (const Layout layout : {Layout::kNHD, Layout::kHND}) {
    TestProblem small({.kv_len = {250},
                       .q_len = {40},
                       .q_heads = 16,
                       .kv_heads = kHeads,
                       .head_dim = kDim,
                       .v_head_dim = kDim,
                       .dtype = DType::kBF16,
                       .page_size = kTokens,
                       .table = {{0, 1, 2, 3}},
                       .layout = layout,
                       .q = q_noise(1),
                       .k = kv_noise(2),
                       .v = kv_noise(3)});
    small.problem.candidates.query_block = 32;
    small.csr({{0, 63, 64, 127, 128, 129, 191, 192, 230, 249}, {5, 70, 130, 200, 201, 249}});
    const Wanted want = wanted(small.problem);
    const Problem& p = small.problem;
    DeviceProblem device(p);
    CacheView& cache = device.problem.cache;
    const auto k = spread(p.cache.k, pages, kPages, kOnePage * 2, &cache.k),
               v = spread(p.cache.v, pages, kPages, kOnePage * 2, &cache.v);
    cuda_ok(cudaMemcpy(const_cast<void*>(cache.page_table.data), pages.data(), pages.size() * sizeof pages[0],
                       cudaMemcpyHostToDevice));
    cuda_ok(cudaDeviceSynchronize());
    for (const int32_t splits : {1, 3}) {
      const std::unique_ptr<DeviceStep> step = planned(device.problem, split(splits));
      EXPECT_EQ(complaint(run_step(*step, device), want.answer, want.tolerance), "") << "splits " << splits;
    }
    EXPECT_TRUE(k->fences_stand() && v->fences_stand());
  }
}

// A contiguous cache of 2^21 + 24 rows of 8 heads of 128 numbers, of which the last 200 are a request, and 3
// in front another. The last block reaches past the end.
TEST_F(CudaPrefillExtents, RowsBeyondTwoToTheThirtyOne) {
  constexpr int64_t kRows = (int64_t{1} << 21) + 24, kHeads = 8, kDim = 128, kOneRow = kHeads * kDim * 2;
  constexpr int64_t kBytes = kRows * kOneRow;
  if (!room_for(2 * kBytes)) GTEST_SKIP() << "no room for the cache";
  TestProblem small({.kv_len = {3, 200},
                     .q_len = {2, 40},
                     .q_heads = 8,
                     .kv_heads = kHeads,
                     .head_dim = kDim,
                     .v_head_dim = kDim,
                     .dtype = DType::kBF16,
                     .page_size = 0,
                     .slack = 0,
                     .q = q_noise(1),
                     .k = kv_noise(2),
                     .v = kv_noise(3)});
  small.problem.candidates.query_block = 32;
  small.all();
  const Wanted want = wanted(small.problem);
  const Problem& p = small.problem;
  ASSERT_EQ(p.cache.k.shape[0], 203);
  DeviceProblem device(p);
  const auto spread = [&](const TensorView& from, TensorView* to) {
    auto pool = std::make_unique<DeviceBuffer>(kBytes);
    pool->fill(0xFF);
    cuda_ok(
        cudaMemcpy(pool->data() + (kRows - 203) * kOneRow, from.data, 203 * kOneRow, cudaMemcpyHostToDevice));
    to->data = pool->data();
    to->shape[0] = kRows;
    return pool;
  };
  const auto k = spread(p.cache.k, &device.problem.cache.k), v = spread(p.cache.v, &device.problem.cache.v);
  const int32_t cu_kv[] = {kRows - 203, kRows - 200, kRows};
  cuda_ok(cudaMemcpy(const_cast<void*>(device.problem.cache.cu_kv.data), cu_kv, sizeof cu_kv,
                     cudaMemcpyHostToDevice));
  cuda_ok(cudaDeviceSynchronize());
  for (const int32_t block : {16, 64}) {
    cuda::StepOptions o = split(1);
    o.block = block;
    const std::unique_ptr<DeviceStep> step = planned(device.problem, o);
    EXPECT_EQ(complaint(run_step(*step, device), want.answer, want.tolerance), "") << "block " << block;
  }
  EXPECT_TRUE(k->fences_stand() && v->fences_stand());
}

// 2048 queries, the last of 131072 tokens. Their last four are a problem of their own for the reference; the
// others are compared with the decode engine.
constexpr int32_t kContext = 131072, kChunk = 2048;

TestProblem last_queries(int32_t queries) {
  TestProblem t({.kv_len = {kContext},
                 .q_len = {queries},
                 .q_heads = 2,
                 .kv_heads = 1,
                 .head_dim = 128,
                 .v_head_dim = 128,
                 .dtype = DType::kBF16,
                 .page_size = 64,
                 .q = [queries](int64_t i, int64_t h, int64_t d) { return noise(1, i - queries, h, d); },
                 .k = kv_noise(2),
                 .v = kv_noise(3)});
  t.problem.candidates.query_block = std::min(queries, 64);
  return t;
}

void expect_close(const DeviceRan& got, const DeviceRan& want, const Tolerance& one) {
  ASSERT_TRUE(got.status.ok()) << got.status.message();
  ASSERT_TRUE(want.status.ok()) << want.status.message();
  EXPECT_EQ(got.damage + want.damage, "");
  EXPECT_EQ(differs(got.out, want.out, 2 * one.out), "");  // each may be off by one
  EXPECT_EQ(differs(got.lse, want.lse, 2 * one.lse), "");
}

TEST_F(CudaPrefillExtents, ALongContext) {
  TestProblem few = last_queries(4), many = last_queries(kChunk);
  few.all();
  many.all();
  const Wanted want = wanted(few.problem);
  const DeviceProblem device(many.problem);
  const std::unique_ptr<DeviceStep> of_decode =
      planned(many.problem, {.load = cuda::Load::kBlocks, .engine = cuda::Engine::kDecode});
  const DeviceRan decode = run_step(*of_decode, device);
  for (const int32_t splits : {0, 1, 5}) {
    SCOPED_TRACE(::testing::Message() << "splits " << splits);
    const std::unique_ptr<DeviceStep> step = planned(many.problem, split(splits));
    DeviceRan r = run_step(*step, device);
    expect_close(r, decode, want.tolerance);
    if (HasFatalFailure()) return;
    EXPECT_EQ(differs({r.out.end() - 4 * 2 * 128, r.out.end()}, want.answer.output.out, want.tolerance.out),
              "");
    EXPECT_EQ(differs({r.lse.end() - 4 * 2, r.lse.end()}, want.answer.output.lse, want.tolerance.lse), "");
  }
}

// The same with lists of 80 blocks of 64 tokens for each 64 queries, the last ones and others anywhere.
TEST_F(CudaPrefillExtents, ListsOverALongContext) {
  TestProblem t = last_queries(kChunk);
  t.problem.candidates.unit = 64;
  Dice d(3);
  Rows rows;
  for (int32_t r = 0; r < kChunk / 64; ++r) {
    const int32_t own = (kContext - kChunk) / 64 + r;
    rows.push_back({0, own, own - 1});
    while (rows.back().size() < 80) rows.back().push_back(d.i32(0, own));
  }
  t.csr(rows);
  Context context(0);
  const Wanted want = wanted_by_cpu(t.problem, context, 101);
  for (const int32_t splits : {1, 3}) {
    const DeviceRan r = run_on_device(t.problem, split(splits));
    EXPECT_EQ(complaint(r, want.answer, want.tolerance), "") << "splits " << splits;
    EXPECT_EQ(r.stats.most_parts, splits);
  }
}

}  // namespace
}  // namespace tamis
