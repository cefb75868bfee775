// Where the same bits are promised: repeats, garbage in the buffers, neighbours, batches in another order,
// page sizes; and what one row's NaN must not do to another's.
#include <gtest/gtest.h>

#include "cuda/draw.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

class CudaBits : public OnDevice {};

cuda::StepOptions split(int32_t splits, cuda::Load load = cuda::Load::kAuto) {
  cuda::StepOptions o{.load = load};
  o.plan.splits = splits;
  o.plan.min_tiles = 1;
  return o;
}

TEST_F(CudaBits, RepeatsAndGarbage) {
  for (int64_t number = first_problem(); number < first_problem() + std::max<int64_t>(1, problems() / 30);
       ++number) {
    Dice d(number);
    const TestProblem t = draw_problem(d, true);
    const DeviceProblem device(t.problem);
    for (const int32_t splits : {0, 3}) {
      const std::unique_ptr<DeviceStep> step = planned(t.problem, split(splits));
      const DeviceRan first = run_step(*step, device);
      ASSERT_TRUE(first.status.ok()) << first.status.message();
      for (int i = 0; i < 50; ++i) {
        if (i % 3 != 0) {  // a third of the repeats finds what the last one left
          step->scratch.fill(i % 3 == 1 ? 0xFF : 0);
          step->index.fill(i % 3 == 1 ? 0 : 0xFF);
        }
        ASSERT_EQ(unlike(run_step(*step, device), first), "")
            << "TAMIS_CUDA_FIRST=" << number << ", repeat " << i;
      }
    }
  }
}

// Requests by identity: the same numbers wherever a request stands in the batch.
TestProblem batch_of(const std::vector<int>& ids) {
  static const int32_t lengths[] = {8193, 300, 64, 1, 5000, 129, 0, 777};
  Spec s{.kv_len = {},
         .q_heads = 8,
         .kv_heads = 2,
         .head_dim = 64,
         .v_head_dim = 64,
         .dtype = DType::kBF16,
         .page_size = 16,
         .q = [ids](int64_t i, int64_t h, int64_t d) { return noise(1, ids[i], h, d); },
         .k = [ids](int64_t b, int64_t t, int64_t h, int64_t d) { return noise(2, ids[b], t, h, d); },
         .v = [ids](int64_t b, int64_t t, int64_t h, int64_t d) { return noise(3, ids[b], t, h, d); }};
  Rows rows;
  for (const int id : ids) {
    const int32_t length = lengths[id % 8];
    s.kv_len.push_back(length);
    rows.emplace_back();
    for (int32_t t = 0; t < length; t += 1 + id % 3) rows.back().push_back(t);
  }
  TestProblem t(std::move(s));
  t.csr(rows);
  return t;
}

TEST_F(CudaBits, NeighboursDoNotMatterWhereTheBatchIsInvariant) {
  std::vector<int> crowd{0};
  for (int i = 1; i < 100; ++i) crowd.push_back(i % 7 + 1);
  for (const cuda::Load load : {cuda::Load::kBlocks, cuda::Load::kTokens}) {
    cuda::StepOptions o = split(0, load);
    o.plan.batch_invariant = true;
    std::vector<std::vector<double>> alone;  // out, then lse, of each identity by itself
    for (int id = 0; id < 8; ++id) {
      const DeviceRan r = run_on_device(batch_of({id}).problem, o);
      ASSERT_TRUE(r.status.ok()) << r.status.message();
      if (id == 0) {
        EXPECT_GT(r.stats.most_parts, 1) << "splits are what could differ";
      }
      alone.push_back(r.out);
      alone.back().insert(alone.back().end(), r.lse.begin(), r.lse.end());
    }
    for (const std::vector<int>& ids : {std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7},
                                        {7, 6, 5, 4, 3, 2, 1, 0},
                                        {3, 0, 3},
                                        {4, 4, 0, 1, 0},
                                        crowd}) {
      const DeviceRan r = run_on_device(batch_of(ids).problem, o);
      ASSERT_TRUE(r.status.ok()) << r.status.message();
      for (size_t i = 0; i < ids.size(); ++i) {
        std::vector<double> row(r.out.begin() + i * 8 * 64, r.out.begin() + (i + 1) * 8 * 64);
        row.insert(row.end(), r.lse.begin() + i * 8, r.lse.begin() + (i + 1) * 8);
        ASSERT_TRUE(same_bits(row, alone[ids[i]])) << cuda::load_name(load) << ", request " << i;
      }
    }
  }
}

TestProblem on_pages(int64_t page_size, Layout layout) {
  TestProblem t({.kv_len = {507, 1000},
                 .q_len = {1, 2},
                 .q_heads = 8,
                 .kv_heads = 2,
                 .head_dim = 128,
                 .v_head_dim = 64,
                 .dtype = DType::kF16,
                 .page_size = page_size,
                 .layout = layout,
                 .q = q_noise(1),
                 .k = kv_noise(2),
                 .v = kv_noise(3)});
  t.problem.candidates.index_heads = 2;
  Rows rows;
  Dice d(11);
  for (const int32_t length : {507, 507, 1000, 1000, 1000, 1000}) {
    rows.emplace_back(200);
    for (int32_t& e : rows.back()) e = d.i32(0, length - 1);
  }
  t.csr(rows);
  t.problem.mask = {.causal = true, .window = 40, .sink = 3};
  return t;
}

TEST_F(CudaBits, PageSizesDoNotMatter) {
  for (const cuda::Load load : {cuda::Load::kTokens, cuda::Load::kBlocks})
    for (const int32_t splits : {1, 3}) {
      cuda::StepOptions o = split(splits, load);
      o.block = 16;
      const DeviceRan first = run_on_device(on_pages(0, Layout::kNHD).problem, o);
      ASSERT_TRUE(first.status.ok()) << first.status.message();
      for (const int64_t page : {1, 2, 16, 48, 61, 64, 69, 128, 256, 576})
        for (const Layout layout : {Layout::kNHD, Layout::kHND}) {
          if (load == cuda::Load::kBlocks && page % 16 != 0) continue;
          EXPECT_EQ(unlike(run_on_device(on_pages(page, layout).problem, o), first), "")
              << cuda::load_name(load) << ", splits " << splits << ", pages of " << page;
        }
    }
}

// One request of 200 tokens whose eight query heads have lists of their own.
TestProblem private_lists(int64_t query_block) {
  TestProblem t({.kv_len = {200},
                 .q_len = {static_cast<int32_t>(query_block)},
                 .q_heads = 8,
                 .kv_heads = 2,
                 .head_dim = 64,
                 .v_head_dim = 64,
                 .dtype = DType::kBF16,
                 .page_size = 16,
                 .q = q_noise(1),
                 .k = kv_noise(2),
                 .v = kv_noise(3)});
  t.problem.candidates.index_heads = 8;
  t.problem.candidates.query_block = query_block;
  return t;
}

// One head selects a token whose V is not finite: its own row shows it, the rows that share the load do not.
TEST_F(CudaBits, ANaNStaysInItsRow) {
  for (const double poison : {kNaN, kInf, -kInf})
    for (const bool in_k : {false, true})
      for (const int64_t query_block : {1, 16}) {
        TestProblem t = private_lists(query_block);
        Rows rows;
        for (int h = 0; h < 8; ++h)
          rows.push_back(h == 1 ? std::vector<int32_t>{90, 100, 7} : std::vector<int32_t>{90, 101, 8, 99});
        t.csr(rows);
        in_k ? t.put_k(t.slot(0, 100), poison) : t.put_v(t.slot(0, 100), poison);
        const reference::Answer want = answer(t.problem);
        // The yardstick is the row that is finite: poison has no error.
        TestProblem clean = private_lists(1);
        clean.csr(rows);
        const Tolerance tolerance = wanted(clean.problem).tolerance;
        for (const cuda::Load load : {cuda::Load::kTokens, cuda::Load::kBlocks})
          for (const int32_t splits : {1, 2}) {
            const DeviceRan r = run_on_device(t.problem, split(splits, load));
            ASSERT_TRUE(r.status.ok()) << r.status.message();
            for (size_t i = 0; i < r.out.size(); ++i) {
              const bool of_head = i / 64 % 8 == 1;
              if (of_head && in_k && std::isinf(poison)) continue;  // the sign of q decides
              ASSERT_EQ(std::isfinite(r.out[i]), std::isfinite(want.output.out[i])) << i << " of " << poison;
              if (of_head) continue;
              ASSERT_NEAR(r.out[i], want.output.out[i], tolerance.out) << i;
            }
            // A key that is not finite makes its own rows so, and may have them summed again for nothing.
            if (!in_k) {
              EXPECT_GT(r.device.rows_redone, 0u) << cuda::load_name(load);
            }
          }
      }
}

}  // namespace
}  // namespace tamis
