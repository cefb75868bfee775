// Extents at the edge: a pool beyond 2^31 elements, one long row among short ones, many rows, many requests.
#include <gtest/gtest.h>

#include "cuda/draw.h"
#include "cuda/pool.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

class CudaExtents : public OnDevice {};

// Pages of 64 tokens, 8 heads, 128 numbers: page 32768 starts at element 2^31. Only a few pages are written;
// all others are NaN on the device.
TEST_F(CudaExtents, PoolsBeyondTwoToTheThirtyOne) {
  constexpr int64_t kPages = 32776, kTokens = 64, kHeads = 8, kDim = 128, kOnePage = kTokens * kHeads * kDim;
  constexpr int64_t kBytes = kPages * kOnePage * 2;
  if (!room_for(2 * kBytes)) GTEST_SKIP() << "no room for the pool";
  const std::vector<int32_t> pages{0, 32767, 32768, 32775};
  for (const Layout layout : {Layout::kNHD, Layout::kHND}) {
    TestProblem small({.kv_len = {256},
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
    small.csr({{0, 63, 64, 127, 128, 129, 191, 192, 255}});
    const Wanted want = wanted(small.problem);
    const Problem& p = small.problem;
    DeviceProblem device(p);
    CacheView& cache = device.problem.cache;
    const auto k = spread(p.cache.k, pages, kPages, kOnePage * 2, &cache.k),
               v = spread(p.cache.v, pages, kPages, kOnePage * 2, &cache.v);
    cuda_ok(cudaMemcpy(const_cast<void*>(cache.page_table.data), pages.data(), pages.size() * sizeof pages[0],
                       cudaMemcpyHostToDevice));
    cuda_ok(cudaDeviceSynchronize());
    for (const cuda::Load load : {cuda::Load::kTokens, cuda::Load::kBlocks})
      for (const int32_t splits : {1, 3}) {
        cuda::StepOptions o{.load = load};
        o.plan.splits = splits;
        const std::unique_ptr<DeviceStep> step = planned(device.problem, o);
        EXPECT_EQ(complaint(run_step(*step, device), want.answer, want.tolerance), "")
            << cuda::load_name(load) << ", splits " << splits;
      }
    EXPECT_TRUE(k->fences_stand() && v->fences_stand());
  }
}

// One row of 131072 listed tokens among 63 of 128: right, and shared out, so that no task is much longer than
// an even share of the whole.
TEST_F(CudaExtents, OneLongRowAmongShortOnes) {
  Spec s{.kv_len = {131072},
         .q_heads = 4,
         .kv_heads = 1,
         .head_dim = 64,
         .v_head_dim = 64,
         .dtype = DType::kBF16,
         .page_size = 64,
         .q = q_noise(1),
         .k = kv_noise(2),
         .v = kv_noise(3)};
  for (int b = 1; b < 64; ++b) s.kv_len.push_back(128);
  TestProblem t(s);
  Rows rows;
  for (const int32_t length : s.kv_len) {
    rows.emplace_back(length);
    for (int32_t e = 0; e < length; ++e) rows.back()[e] = e;
  }
  t.csr(rows);
  Context context(0);
  const Wanted want = wanted_by_cpu(t.problem, context);
  for (const bool invariant : {false, true}) {
    cuda::StepOptions o;
    o.plan.batch_invariant = invariant;
    const std::unique_ptr<DeviceStep> step = planned(t.problem, o);
    const DeviceProblem device(t.problem);
    const DeviceRan r = run_step(*step, device);
    EXPECT_EQ(complaint(r, want.answer, want.tolerance), "") << (invariant ? "invariant" : "balanced");
    EXPECT_GT(r.stats.most_parts, 16);
    if (invariant) continue;
    const Result<cuda::FetchedStep> fetched = cuda::fetch(step->plan, step->buffers(), nullptr);
    ASSERT_TRUE(fetched.ok());
    int64_t longest = 0;
    for (const Task& task : fetched->tasks) longest = std::max<int64_t>(longest, task.end - task.begin);
    const int64_t share = (r.stats.blocks + step->plan.plan.shares - 1) / step->plan.plan.shares;
    EXPECT_LE(longest, std::max(share, step->plan.plan.min_part) * 2);
  }
}

TEST_F(CudaExtents, ManyRowsOfOneToken) {
  Spec s{.kv_len = {4},
         .q_len = {65536},
         .head_dim = 64,
         .v_head_dim = 64,
         .dtype = DType::kBF16,
         .v = [](auto...) { return 1.0; }};
  TestProblem t(s);
  t.q_pos(std::vector<int32_t>(65536, 3));
  t.csr(Rows(65536, {0}));
  const DeviceRan r = run_on_device(t.problem);
  ASSERT_TRUE(r.status.ok()) << r.status.message();
  EXPECT_EQ(r.damage, "");
  EXPECT_EQ(r.out, std::vector<double>(r.out.size(), 1));
  EXPECT_EQ(differs(r.lse, std::vector<double>(r.lse.size(), 0), 1e-5), "");
}

TEST_F(CudaExtents, ManyRequests) {
  Spec s{.kv_len = std::vector<int32_t>(11623, 3),
         .q_heads = 2,
         .head_dim = 8,
         .v_head_dim = 8,
         .dtype = DType::kBF16,
         .v = [](int64_t b, int64_t, int64_t, int64_t) { return static_cast<double>(b % 128); }};
  TestProblem t(s);
  t.all();
  const DeviceRan r = run_on_device(t.problem);
  ASSERT_TRUE(r.status.ok()) << r.status.message();
  EXPECT_EQ(r.damage, "");
  for (size_t i = 0; i < r.out.size(); ++i)
    ASSERT_NEAR(r.out[i], static_cast<double>(i / 16 % 128), 1e-2) << i;
}

// A row cut into 161 parts, most of them empty for the short row beside it.
TEST_F(CudaExtents, ManySplits) {
  TestProblem t({.kv_len = {161 * 64, 5},
                 .q_heads = 4,
                 .head_dim = 64,
                 .v_head_dim = 64,
                 .dtype = DType::kBF16,
                 .page_size = 64,
                 .q = q_noise(1),
                 .k = kv_noise(2),
                 .v = kv_noise(3)});
  t.all();
  const Wanted want = wanted(t.problem);
  for (const int32_t splits : {161, 64, 33}) {
    cuda::StepOptions o;
    o.plan.splits = splits;
    const DeviceRan r = run_on_device(t.problem, o);
    EXPECT_EQ(complaint(r, want.answer, want.tolerance), "") << splits;
    EXPECT_EQ(r.stats.most_parts, splits);
  }
}

}  // namespace
}  // namespace tamis
