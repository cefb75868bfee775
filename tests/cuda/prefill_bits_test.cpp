// Where the same bits are promised of the prefill kernel: repeats, whatever else the device does; page sizes
// and layouts; the order of candidates; neighbours of a batch that is invariant; chunks of one long prompt.
#include <gtest/gtest.h>

#include "cuda/draw.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

class CudaPrefillBits : public OnPrefillDevice {};

cuda::StepOptions split(int32_t splits, int32_t block = 16) {
  cuda::StepOptions o{.block = block};
  o.plan.splits = splits;
  return prefill(o);
}

void shuffle(std::vector<int32_t>* row, Dice& d) {
  for (size_t i = row->size(); i > 1; --i)
    std::swap((*row)[i - 1], (*row)[d.from(0, static_cast<int64_t>(i) - 1)]);
}

// Two requests of 97 and 30 queries, lists of blocks of 16 tokens for blocks of 32 queries, by KV head.
TestProblem on_pages(int64_t page_size, Layout layout, int64_t dim, int64_t order = 0) {
  TestProblem t({.kv_len = {1507, 333},
                 .q_len = {97, 30},
                 .q_heads = 6,
                 .kv_heads = 2,
                 .head_dim = dim,
                 .v_head_dim = 64,
                 .dtype = DType::kF16,
                 .page_size = page_size,
                 .layout = layout,
                 .q = q_noise(1),
                 .k = kv_noise(2),
                 .v = kv_noise(3)});
  t.problem.candidates.unit = 16;
  t.problem.candidates.query_block = 32;
  t.problem.candidates.index_heads = 2;
  Dice d(11), other(order + 1);
  Rows rows;
  for (const int32_t entries : {95, 95, 95, 95, 21}) {
    for (int h = 0; h < 2; ++h) {
      rows.emplace_back();
      for (int32_t e = 0; e < entries; ++e)
        if (d.one_in(2)) rows.back().push_back(e);
      if (order != 0) shuffle(&rows.back(), other);
    }
  }
  t.csr(rows);
  t.problem.mask = {.causal = true, .window = 40, .sink = 3};
  return t;
}

// Equal bits prove nothing where nothing was computed.
void expect_right(const DeviceRan& r, const TestProblem& t) {
  Context context(0);
  const Wanted want = wanted_by_cpu(t.problem, context, 13);
  EXPECT_EQ(complaint(r, want.answer, want.tolerance), "");
}
bool finite(const std::vector<double>& x) {
  return std::all_of(x.begin(), x.end(), [](double y) { return std::isfinite(y); });
}

TEST_F(CudaPrefillBits, PageSizesDoNotMatter) {
  for (const int64_t dim : {64, 128, 256})
    for (const int32_t splits : {1, 3}) {
      const DeviceRan first = run_on_device(on_pages(0, Layout::kNHD, dim).problem, split(splits));
      ASSERT_TRUE(first.status.ok()) << first.status.message();
      expect_right(first, on_pages(0, Layout::kNHD, dim));
      for (const int64_t page : {0, 16, 48, 64, 128, 256})
        for (const Layout layout : {Layout::kNHD, Layout::kHND})
          EXPECT_EQ(unlike(run_on_device(on_pages(page, layout, dim).problem, split(splits)), first), "")
              << "head size " << dim << ", splits " << splits << ", pages of " << page
              << (layout == Layout::kNHD ? ", NHD" : ", HND");
    }
}

TEST_F(CudaPrefillBits, TheOrderOfCandidatesDoesNotMatter) {
  for (const int32_t splits : {1, 3}) {
    const DeviceRan first = run_on_device(on_pages(64, Layout::kNHD, 128).problem, split(splits));
    expect_right(first, on_pages(64, Layout::kNHD, 128));
    for (int64_t order = 1; order < 6; ++order)
      EXPECT_EQ(unlike(run_on_device(on_pages(64, Layout::kNHD, 128, order).problem, split(splits)), first),
                "")
          << "order " << order << ", splits " << splits;
  }
}

// 250 times, with the caches of the device swept or warm, and other work on another stream. More row tiles
// than CTAs, so that who draws which differs from one to the next.
TEST_F(CudaPrefillBits, Repeats) {
  const int64_t repeats = number_from("TAMIS_CUDA_PROBLEMS", 300) < 50 ? 8 : 250;
  TestProblem t({.kv_len = {1200, 300, 700},
                 .q_len = {150, 149, 50},
                 .q_heads = 8,
                 .kv_heads = 4,
                 .head_dim = 128,
                 .v_head_dim = 64,
                 .dtype = DType::kBF16,
                 .page_size = 16,
                 .q = q_noise(1),
                 .k = kv_noise(2),
                 .v = kv_noise(3)});
  t.problem.candidates.query_block = 4;
  t.all();
  const DeviceProblem device(t.problem);
  DeviceBuffer sweep(repeats < 50 ? int64_t{1} << 20 : int64_t{128} << 20);
  Context context(0);
  const Wanted want = wanted_by_cpu(t.problem, context, 17);
  for (const int32_t splits : {1, 0, 3}) {
    const std::unique_ptr<DeviceStep> step = planned(t.problem, split(splits));
    DeviceStream stream, other;
    DeviceOut out(t.problem);
    DeviceCounters counters;
    DeviceRan first;
    for (int64_t i = 0; i < repeats; ++i) {
      out.reset();
      if (i % 3 != 0)
        cuda_ok(cudaMemsetAsync(sweep.data(), static_cast<int>(i), static_cast<size_t>(sweep.bytes()),
                                i % 3 == 1 ? stream : other));
      if (i % 4 == 3) {  // garbage in what a step need not find in order
        step->scratch.fill(i % 8 == 3 ? 0xFF : 0);
        step->index.fill(i % 8 == 3 ? 0 : 0xFF);
      }
      ASSERT_TRUE(
          cuda::step(step->plan, device.problem, out.view(), step->buffers(), stream, counters.get()).ok());
      const DeviceRan r = result_of(*step, device, out, counters, stream);
      if (i == 0) {
        first = r;
        ASSERT_EQ(complaint(first, want.answer, want.tolerance), "") << "splits " << splits;
      }
      ASSERT_EQ(unlike(r, first), "") << "splits " << splits << ", repeat " << i;
    }
  }
}

// Requests by identity: the same numbers wherever a request stands in the batch.
TestProblem batch_of(const std::vector<int>& ids) {
  static const int32_t lengths[] = {8193, 300, 64, 1, 2000, 129, 0, 777};
  static const int32_t queries[] = {5, 40, 33, 1, 17, 64, 2, 16};
  Spec s{
      .kv_len = {},
      .q_len = {},
      .q_heads = 4,
      .kv_heads = 2,
      .head_dim = 64,
      .v_head_dim = 64,
      .dtype = DType::kBF16,
      .page_size = 16,
      .k = [ids](int64_t b, int64_t t, int64_t h, int64_t d) { return noise(2, ids[b] * 10000 + t, h, d); },
      .v = [ids](int64_t b, int64_t t, int64_t h, int64_t d) { return noise(3, ids[b] * 10000 + t, h, d); }};
  std::vector<int64_t> of_query;
  Rows rows;
  for (const int id : ids) {
    s.kv_len.push_back(lengths[id]);
    s.q_len.push_back(queries[id]);
    for (int32_t i = 0; i < queries[id]; ++i) of_query.push_back(id * 1000 + i);
    for (int32_t r = 0; r < (queries[id] + 15) / 16; ++r) {
      rows.emplace_back();
      for (int32_t e = r % 2; e < lengths[id]; e += 1 + id % 3) rows.back().push_back(e);
    }
  }
  s.q = [of_query](int64_t i, int64_t h, int64_t d) { return noise(1, of_query[i], h, d); };
  TestProblem t(std::move(s));
  t.problem.candidates.query_block = 16;
  t.csr(rows);
  return t;
}

TEST_F(CudaPrefillBits, NeighboursDoNotMatterWhereTheBatchIsInvariant) {
  cuda::StepOptions o = split(0);
  o.plan.batch_invariant = true;
  o.plan.min_tiles = 2;
  std::vector<int> crowd{0};
  for (int i = 1; i < 60; ++i) crowd.push_back(i % 7 + 1);
  std::vector<DeviceRan> alone;
  for (int id = 0; id < 8; ++id) {
    alone.push_back(run_on_device(batch_of({id}).problem, o));
    expect_right(alone.back(), batch_of({id}));
    if (id == 0) {
      EXPECT_GT(alone.back().stats.most_parts, 1) << "splits are what could differ";
    }
  }
  for (const std::vector<int>& ids : {std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7},
                                      {7, 6, 5, 4, 3, 2, 1, 0},
                                      {3, 0, 3},
                                      {4, 4, 0, 1, 0},
                                      crowd}) {
    const DeviceRan r = run_on_device(batch_of(ids).problem, o);
    ASSERT_TRUE(r.status.ok()) << r.status.message();
    auto out = r.out.begin();
    auto lse = r.lse.begin();
    for (size_t i = 0; i < ids.size(); ++i) {
      const DeviceRan& want = alone[ids[i]];
      ASSERT_TRUE(same_bits({out, out + static_cast<int64_t>(want.out.size())}, want.out)) << "request " << i;
      ASSERT_TRUE(same_bits({lse, lse + static_cast<int64_t>(want.lse.size())}, want.lse)) << "request " << i;
      out += static_cast<int64_t>(want.out.size());
      lse += static_cast<int64_t>(want.lse.size());
    }
  }
}

// CTAs that bring in half of each other's blocks: row tiles that are missing or cut, columns that one of the
// two does not see, or neither.
TEST_F(CudaPrefillBits, PairsDoNotMatter) {
#ifdef TAMIS_RACECHECK
  GTEST_SKIP() << "a build without pairs";
#endif
  for (const int64_t dim : {64, 128, 256})
    for (const int64_t page : {0, 16, 64})
      for (const bool causal : {true, false})
        for (const bool listed : {true, false}) {
          TestProblem t({.kv_len = {1507, 333},
                         .q_len = {260, 70},
                         .q_heads = 8,
                         .kv_heads = 2,
                         .head_dim = dim,
                         .v_head_dim = dim,
                         .dtype = DType::kBF16,
                         .page_size = page,
                         .q = q_noise(1),
                         .k = kv_noise(2),
                         .v = kv_noise(3)});
          t.problem.candidates.unit = 16;
          t.problem.candidates.query_block = 64;
          t.problem.candidates.index_heads = 2;
          t.problem.mask = {.causal = causal, .window = causal ? 40 : 0, .sink = 3};
          Dice d(11);
          Rows rows;
          for (const int32_t entries : {95, 95, 95, 95, 95, 21, 21})
            for (int h = 0; h < 2; ++h) {
              rows.emplace_back();
              for (int32_t e = 0; e < entries; ++e)
                if (d.one_in(2)) rows.back().push_back(e);
            }
          listed ? t.csr(rows) : t.all();
          const Result<reference::Sets> sets = reference::build_sets(t.problem);
          ASSERT_TRUE(sets.ok()) << sets.status().message();
          t.poison_outside(*sets, 6e4);  // NaN would have rows summed again, by another kernel
          const DeviceProblem device(t.problem);
          for (const int32_t splits : {1, 3}) {
            SCOPED_TRACE(::testing::Message() << "head size " << dim << ", pages of " << page << ", splits "
                                              << splits << (causal ? ", causal" : ""));
            cuda::StepOptions o = split(splits);
            const DeviceRan alone = run_step(*planned(t.problem, o), device);
            ASSERT_TRUE(alone.status.ok()) << alone.status.message();
            o.pairs = true;
            const std::unique_ptr<DeviceStep> step = planned(t.problem, o);
            ASSERT_TRUE(step->plan.pairs) << step->plan.plan.reason;
            for (int repeat = 0; repeat < 3; ++repeat) ASSERT_EQ(unlike(run_step(*step, device), alone), "");
          }
        }
}

// A prompt of 5120 tokens in chunks over one paged cache, each a step of its own, and in one step.
TEST_F(CudaPrefillBits, ChunksOfAPrompt) {
  constexpr int64_t kTokens = 5120, kHeads = 4, kDim = 128, kQueryBlock = 64, kUnit = 64;
  for (const bool listed : {false, true}) {
    TestProblem t({.kv_len = {kTokens},
                   .q_len = {kTokens},
                   .q_heads = kHeads,
                   .kv_heads = 2,
                   .head_dim = kDim,
                   .v_head_dim = kDim,
                   .dtype = DType::kBF16,
                   .page_size = 64,
                   .q = q_noise(1),
                   .k = kv_noise(2),
                   .v = kv_noise(3)});
    t.problem.candidates.query_block = kQueryBlock;
    t.problem.candidates.unit = kUnit;
    Rows rows;
    Dice d(4);
    for (int32_t r = 0; r < kTokens / kQueryBlock; ++r) {  // its own block, the first, and some before
      rows.push_back({r});
      for (int32_t e = 0; e < r; ++e)
        if (e == 0 || d.one_in(4)) rows.back().push_back(e);
    }
    const auto give = [&](TestProblem& to, const Rows& which) {
      if (listed)
        to.csr(which);
      else
        to.all();
    };
    give(t, rows);
    const cuda::StepOptions o = split(1, 64);
    const DeviceRan whole = run_on_device(t.problem, o);
    ASSERT_TRUE(whole.status.ok()) << whole.status.message();
    ASSERT_EQ(whole.stats.most_parts, 1);
    ASSERT_TRUE(finite(whole.out) && finite(whole.lse));
    int64_t begin = 0;
    for (const int64_t size : {2048, 1024, 2048}) {
      give(t, {rows.begin() + begin / kQueryBlock, rows.begin() + (begin + size) / kQueryBlock});
      Problem p = t.problem;
      const std::vector<int32_t> cu_q{0, static_cast<int32_t>(size)},
          kv_len{static_cast<int32_t>(begin + size)};
      p.query.q.data = static_cast<const uint16_t*>(p.query.q.data) + begin * p.query.q.stride[0];
      p.query.q.shape[0] = size;
      p.query.cu_q = dense_view(cu_q.data(), DType::kI32, {2});
      p.cache.kv_len = dense_view(kv_len.data(), DType::kI32, {1});
      const DeviceRan chunk = run_on_device(p, o);
      ASSERT_TRUE(chunk.status.ok()) << chunk.status.message();
      const auto rows_of = [&](const std::vector<double>& x, int64_t row) {
        return std::vector<double>(x.begin() + begin * row, x.begin() + (begin + size) * row);
      };
      EXPECT_TRUE(same_bits(chunk.out, rows_of(whole.out, kHeads * kDim))) << "from " << begin;
      EXPECT_TRUE(same_bits(chunk.lse, rows_of(whole.lse, kHeads))) << "from " << begin;
      begin += size;
    }
    ASSERT_EQ(begin, kTokens);
  }
}

}  // namespace
}  // namespace tamis
