// Steps captured once and replayed over other contents: lengths, lists, tables and batches that grow, shrink
// and vanish.
#include <gtest/gtest.h>

#include "cuda/graph.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

class CudaGraph : public OnDevice {};

TEST_F(CudaGraph, ContentsChangeBetweenReplays) {
  for (const int64_t heads : {1, 2, 8})
    for (const int32_t splits : {0, 3}) {
      LiveBatch batch(6, heads == 2 ? DType::kF16 : DType::kBF16, heads);
      Dice d(heads + splits);
      cuda::StepOptions o;
      o.plan.splits = splits;
      o.plan.min_tiles = 1;
      Captured captured(batch.made.problem, o);
      ASSERT_TRUE(captured.graph.status.ok()) << captured.graph.status.message();
      uint64_t epoch = 0;
      for (int64_t i = 0; i < 20; ++i) {
        batch.draw(d);
        const Wanted want = wanted(batch.made.problem);
        const DeviceRan r = captured.replay(batch.made.problem);
        ASSERT_EQ(complaint(r, want.answer, want.tolerance), "")
            << "replay " << i << ", " << heads << " lists";
        EXPECT_GT(r.stats.epoch, epoch);
        epoch = r.stats.epoch;
      }
    }
}

// A replay that is refused reports it, and the next good one is right.
TEST_F(CudaGraph, ARefusedReplayIsForgotten) {
  LiveBatch batch(4, DType::kBF16);
  Dice d(3);
  Captured captured(batch.made.problem, {});
  for (int i = 0; i < 6; ++i) {
    do batch.draw(d);
    while (batch.made.kv_len()[2] == 0);
    const Wanted want = wanted(batch.made.problem);
    EXPECT_EQ(complaint(captured.replay(batch.made.problem), want.answer, want.tolerance), "");
    int32_t& count = elements<int32_t>(batch.made.problem.candidates.count)[2];
    count = LiveBatch::kWidth + 1;
    const DeviceRan bad = captured.replay(batch.made.problem);
    EXPECT_EQ(bad.status.code(), Code::kInvalidArgument);
    EXPECT_TRUE(all_nan(bad.out));
  }
}

// Batches that are a multiple of a warp, or one off, without a token; nothing is mapped.
TEST_F(CudaGraph, EmptyBatches) {
  for (const int64_t requests : {1, 31, 32, 33, 64}) {
    LiveBatch batch(requests, DType::kBF16);
    std::fill(batch.made.kv_len().begin(), batch.made.kv_len().end(), 0);
    for (int64_t b = 0; b < requests; ++b)
      for (int64_t page = 0; page < LiveBatch::kPages; ++page) batch.made.table(b, page) = -1;
    for (const int32_t splits : {0, 1, 4}) {
      cuda::StepOptions o;
      o.plan.splits = splits;
      Captured captured(batch.made.problem, o);
      for (int i = 0; i < 2; ++i) {
        const DeviceRan r = captured.replay(batch.made.problem);
        ASSERT_TRUE(r.status.ok()) << r.status.message();
        EXPECT_EQ(r.damage, "");
        EXPECT_EQ(r.out, std::vector<double>(r.out.size(), 0)) << requests << " requests";
        EXPECT_EQ(r.lse, std::vector<double>(r.lse.size(), -kInf));
        EXPECT_EQ(r.stats.empty_bundles, r.stats.bundles);
        EXPECT_EQ(r.stats.blocks, 0);
        EXPECT_EQ(r.device.tokens_loaded, 0u);
      }
    }
  }
}

// The batch shrinks below the extents of the graph: rows beyond cu_q are neither read nor written.
TEST_F(CudaGraph, TheBatchShrinks) {
  LiveBatch batch(5, DType::kBF16, 2);
  Dice d(9);
  Captured captured(batch.made.problem, {});
  for (const int32_t alive : {5, 3, 1, 0, 4, 5}) {
    batch.draw(d);
    for (int32_t b = 0; b <= 5; ++b) batch.made.cu_q()[b] = std::min(b, alive);
    for (int64_t r = alive * 2; r < 10; ++r)
      elements<int32_t>(batch.made.problem.candidates.count)[r] = 1 << 30;
    const DeviceRan r = captured.replay(batch.made.problem);
    ASSERT_TRUE(r.status.ok()) << alive << " alive: " << r.status.message();
    EXPECT_EQ(r.damage, "");
    const int64_t heads = 8, dim = 64;
    EXPECT_TRUE(all_nan({r.out.begin() + alive * heads * dim, r.out.end()})) << "poison, untouched";
    EXPECT_TRUE(all_nan({r.lse.begin() + alive * heads, r.lse.end()}));
    EXPECT_EQ(r.stats.bundles, alive * 2);
    if (alive == 0) continue;
    const Wanted want = wanted(first_rows(batch.made.problem, alive));
    EXPECT_EQ(differs({r.out.begin(), r.out.begin() + alive * heads * dim}, want.answer.output.out,
                      want.tolerance.out),
              "");
    EXPECT_EQ(
        differs({r.lse.begin(), r.lse.begin() + alive * heads}, want.answer.output.lse, want.tolerance.lse),
        "");
  }
}

// What needs the host says so while its stream is being captured, and does not spoil the capture.
TEST_F(CudaGraph, HostStepsAreNotCapturable) {
  LiveBatch batch(3, DType::kBF16);
  Dice d(4);
  batch.draw(d);
  const std::unique_ptr<DeviceStep> step = planned(batch.made.problem);
  const DeviceProblem device(batch.made.problem);
  DeviceStream stream;
  DeviceOut out(batch.made.problem);
  DeviceCounters counters;
  Status polled, fetched, cleared;
  Graph graph(stream, [&] {
    cuda::StepStats stats;
    cleared = cuda::clear(step->plan, step->buffers(), stream);
    polled = cuda::poll(step->plan, step->buffers(), stream, &stats);
    fetched = cuda::fetch(step->plan, step->buffers(), stream).status();
    return cuda::step(step->plan, device.problem, out.view(), step->buffers(), stream, counters.get());
  });
  EXPECT_TRUE(cleared.ok()) << cleared.message();
  EXPECT_STREQ(code_name(polled.code()), "not_capturable");
  EXPECT_STREQ(code_name(fetched.code()), "not_capturable");
  ASSERT_TRUE(graph.status.ok()) << graph.status.message();
  graph.replay();
  const Wanted want = wanted(batch.made.problem);
  EXPECT_EQ(complaint(result_of(*step, device, out, counters, stream), want.answer, want.tolerance), "");
}

// One graph a tier. What fills a tier is right, one page more is capacity_exceeded and nothing is cut.
TEST_F(CudaGraph, Tiers) {
  TestProblem t({.kv_len = {520 * 16, 520 * 16},
                 .q_heads = 4,
                 .head_dim = 64,
                 .v_head_dim = 64,
                 .dtype = DType::kBF16,
                 .page_size = 16,
                 .q = q_noise(1),
                 .k = kv_noise(2),
                 .v = kv_noise(3)});
  t.problem.candidates.unit = 16;
  std::vector<int32_t> row(520);
  for (int32_t i = 0; i < 520; ++i) row[i] = i * 363 % 520;
  t.fixed({row, row}, {1, 1});
  int32_t* count = elements<int32_t>(t.problem.candidates.count);
  for (const int32_t tier : {128, 256, 512}) {
    count[0] = count[1] = 1;
    Captured captured(t.problem, {.block = 16, .row_entries = tier});
    ASSERT_TRUE(captured.graph.status.ok()) << captured.graph.status.message();
    for (const int32_t pages : {tier, tier + 1, tier - 1, 0, tier + 8, tier}) {
      SCOPED_TRACE(::testing::Message() << pages << " pages under tier " << tier);
      count[1] = pages;
      const DeviceRan r = captured.replay(t.problem);
      EXPECT_EQ(r.damage, "");
      if (pages > tier) {
        EXPECT_STREQ(code_name(r.status.code()), "capacity_exceeded");
        EXPECT_EQ(r.status.where().request, 1);
        EXPECT_TRUE(all_nan(r.out));
        continue;
      }
      const Wanted want = wanted(t.problem);
      EXPECT_EQ(complaint(r, want.answer, want.tolerance), "");
    }
  }
}

}  // namespace
}  // namespace tamis
