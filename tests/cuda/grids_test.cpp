// Shapes that suites of other libraries go through: lists longer than the context, lengths around tiles, odd
// pages, prefill beside decode. The CPU backend judges.
#include <gtest/gtest.h>

#include "cuda/draw.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

class CudaGrids : public OnDevice {
 protected:
  // `requests` of `queries` each, every row with `listed` random entries, some of them padding.
  struct Cell {
    int64_t requests, queries, kv, listed, page, group, dim;
    int64_t window = 0;
    bool invalid = false;  // nothing but entries that are dropped
  };

  void expect_right(const Cell& c) {
    SCOPED_TRACE(::testing::Message() << c.requests << " requests, " << c.queries << " queries, kv " << c.kv
                                      << ", listed " << c.listed << ", pages of " << c.page << ", group "
                                      << c.group << ", head size " << c.dim << ", window " << c.window);
    Dice d(c.kv + c.listed + c.page + c.queries);
    const size_t requests = static_cast<size_t>(c.requests);
    TestProblem t({.kv_len = std::vector<int32_t>(requests, static_cast<int32_t>(c.kv)),
                   .q_len = std::vector<int32_t>(requests, static_cast<int32_t>(c.queries)),
                   .q_heads = c.group,
                   .head_dim = c.dim,
                   .v_head_dim = c.dim,
                   .dtype = DType::kBF16,
                   .page_size = c.page,
                   .q = q_noise(1),
                   .k = kv_noise(2),
                   .v = kv_noise(3)});
    t.problem.candidates.invalid = OnInvalid::kDrop;
    t.problem.mask.window = c.window;
    Rows rows(static_cast<size_t>(c.requests * c.queries),
              std::vector<int32_t>(static_cast<size_t>(c.listed)));
    for (auto& row : rows)
      for (int32_t& e : row)
        e = c.invalid      ? d.of<int32_t>({INT32_MIN, -123456, -1, static_cast<int32_t>(c.kv), INT32_MAX})
            : d.one_in(20) ? -1
                           : d.i32(0, c.kv - 1);
    t.fixed(rows);
    const Wanted want = wanted_by_cpu(t.problem, context_);
    for (const cuda::Load load : {cuda::Load::kTokens, cuda::Load::kBlocks}) {
      if (load == cuda::Load::kBlocks && !blocks_must_load(t.problem)) continue;
      const DeviceRan r = run_on_device(t.problem, {.load = load});
      EXPECT_EQ(complaint(r, want.answer, want.tolerance), "") << cuda::load_name(load);
    }
  }

  Context context_{0};
};

TEST_F(CudaGrids, SparseDecode) {
  for (const int64_t page : {2, 64, 69}) expect_right({4, 1, 512, 64, page, 16, 128});
  for (const int64_t page : {2, 61}) expect_right({3, 3, 1024, 576, page, 16, 128});
  for (const int64_t page : {2, 64, 576}) expect_right({2, 1, 2046, 2048, page, 16, 256});
  expect_right({74, 1, 512, 64, 64, 16, 64});
  expect_right({5, 1, 512, 64, 64, 16, 128, 0, true});
}

TEST_F(CudaGrids, SparsePrefill) {
  const int64_t shapes[][2] = {{128, 128}, {592, 128}, {1592, 384}, {1521, 512},
                               {95, 128},  {153, 256}, {114, 384}};
  for (const auto& [kv, listed] : shapes)
    for (const int64_t queries : {1, 62}) expect_right({1, queries, kv, listed, 64, 8, 64});
  expect_right({1, 213, 592, 128, 64, 8, 64});
}

TEST_F(CudaGrids, QueriesBesideTokens) {
  const int64_t shapes[][2] = {{113, 203}, {127, 127}, {128, 217}, {64, 63}, {65, 64}, {200, 33}};
  for (const auto& [queries, kv] : shapes)
    for (const int64_t dim : {64, 128}) expect_right({1, queries, kv, 40, 16, 2, dim});
}

TEST_F(CudaGrids, FewTokensAndWindows) {
  for (const int64_t listed : {0, 1, 2, 3, 4, 73})
    for (const int64_t dim : {32, 64, 128})
      for (const int64_t window : {0, 4, 8, 136})
        expect_right({2, 2, 300, listed, 16, dim == 64 ? 17 : 4, dim, window});
}

TEST_F(CudaGrids, BatchesOverPages) {
  for (const int64_t page : {1, 8, 16, 48, 64, 128, 256})
    for (const int64_t requests : {1, 4, 32}) expect_right({requests, 1, 700, 96, page, 8, 128});
}

}  // namespace
}  // namespace tamis
