// The prefill kernel as a stage of a step: refusals, slots, counters, runs that follow one schedule, graphs
// whose batches change, streams side by side.
#include <gtest/gtest.h>

#include "cuda/graph.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

class CudaPrefillStep : public OnPrefillDevice {};

cuda::StepOptions split(int32_t splits) {
  cuda::StepOptions o{.block = 16};
  o.plan.splits = splits;
  return prefill(o);
}

// 40 and 20 queries in blocks of 16; lists, so that candidates and pages may offend.
TestProblem two_requests(double value = 0.5) {
  TestProblem t({.kv_len = {300, 130},
                 .q_len = {40, 20},
                 .q_heads = 4,
                 .kv_heads = 2,
                 .head_dim = 128,
                 .v_head_dim = 64,
                 .dtype = DType::kBF16,
                 .page_size = 16,
                 .q = q_noise(1),
                 .k = kv_noise(2),
                 .v = [value](int64_t b, int64_t at, int64_t h, int64_t d) {
                   return b == 0 && at == 200 && d == 9 ? value : noise(3, b, at, h, d);
                 }});
  t.problem.candidates.query_block = 16;
  t.problem.candidates.unit = 16;
  const std::vector<int32_t> many{0, 1, 2, 3, 5, 7, 9, 11, 12, 13, 14, 16, 17, 18}, few{0, 1, 2, 4, 5, 7, 8};
  t.csr({many, {12, 4, 18, 1}, many, few, {8, 0, 2}});
  return t;
}

TEST_F(CudaPrefillStep, RefusalsAreForgotten) {
  const TestProblem good = two_requests();
  const Wanted right = wanted(good.problem);
  TestProblem entry = two_requests(), page = two_requests(), unmapped = two_requests(),
              length = two_requests();
  elements<int32_t>(entry.problem.candidates.indices)[20] = 19;
  page.table(1, 4) = 1 << 20;
  unmapped.table(0, 12) = -1;
  length.kv_len()[1] = -1;
  for (const int32_t splits : {1, 3}) {
    const std::unique_ptr<DeviceStep> step = planned(good.problem, split(splits));
    DeviceProblem device(good.problem);
    const DeviceRan first = run_step(*step, device);
    ASSERT_EQ(complaint(first, right.answer, right.tolerance), "");
    for (const auto& [bad, code] : {std::pair{&entry, Code::kIndexOutOfRange},
                                    {&page, Code::kPageOutOfRange},
                                    {&unmapped, Code::kPageUnmapped},
                                    {&length, Code::kInvalidArgument}}) {
      device.rewrite(bad->problem, nullptr);
      const DeviceRan r = run_step(*step, device, DType::kBF16, Placement::kGaps, Before::kMinusZero);
      EXPECT_STREQ(code_name(r.status.code()), code_name(code)) << r.status.message();
      EXPECT_EQ(r.damage, "");
      EXPECT_TRUE(all_nan(r.out)) << code_name(code);
      EXPECT_TRUE(all_nan(r.lse));
      EXPECT_EQ(r.device.tokens_loaded + r.device.tiles + r.device.tasks, 0u);
      device.rewrite(good.problem, nullptr);
      EXPECT_EQ(unlike(run_step(*step, device), first), "") << "after " << code_name(code);
    }
  }
}

TEST_F(CudaPrefillStep, RowsOfReusedSlotsKeepTheirBytes) {
  for (const double value : {0.5, kNaN}) {  // kNaN: rows that are summed again have slots too
    const TestProblem t = two_requests(value);
    const DeviceProblem device(t.problem);
    for (const int32_t splits : {1, 3})
      for (const int stale : {0, 1})
        for (const DType dtype : {DType::kF32, DType::kBF16}) {
          const std::vector<int32_t> slot{2, 0};
          const std::vector<uint32_t> generation{7, 9};
          std::vector<uint32_t> live{9, 99, 7};
          live[slot[stale]] += 1;
          SlotView view{.slot = dense_view(slot.data(), DType::kI32, {2}),
                        .generation = dense_view(generation.data(), DType::kU32, {2}),
                        .live_generation = dense_view(live.data(), DType::kU32, {3})};
          const DeviceTensors on_device({&view.slot, &view.generation, &view.live_generation});
          const std::unique_ptr<DeviceStep> step = planned(t.problem, split(splits));
          DeviceOut out(t.problem, dtype, Placement::kDense, Before::kMinusZero);
          DeviceCounters counters;
          OutView to = out.view();
          to.slots = view;
          ASSERT_TRUE(
              cuda::step(step->plan, device.problem, to, step->buffers(), nullptr, counters.get()).ok());
          const DeviceRan r = result_of(*step, device, out, counters, nullptr);
          ASSERT_TRUE(r.status.ok()) << r.status.message();
          EXPECT_EQ(r.damage, "");
          EXPECT_EQ(r.device.stale_rows, stale == 0 ? 160u : 80u);
          EXPECT_EQ(r.device.rows_redone > 0, std::isnan(value));
          const DeviceRan free = run_step(*step, device, dtype);
          for (size_t i = 0; i < r.out.size(); ++i) {
            const bool kept = (i < 160 * 64) == (stale == 0);
            const double want = kept ? -0.0 : free.out[i];
            ASSERT_TRUE(std::memcmp(&r.out[i], &want, sizeof want) == 0 ||
                        (std::isnan(want) && std::isnan(r.out[i])))
                << i << " is " << r.out[i] << ", stale " << stale << ", splits " << splits;
          }
          for (size_t i = 0; i < r.lse.size(); ++i) {
            const bool kept = (i < 160) == (stale == 0);
            const double want = kept ? -0.0 : free.lse[i];
            ASSERT_EQ(std::memcmp(&r.lse[i], &want, sizeof want), 0) << i;
          }
        }
  }
}

// Of 300 tokens that all see: 19 blocks of 16, three tiles of 128; 40 queries of two heads in blocks of 16
// are three row tiles, for each of two KV heads.
TEST_F(CudaPrefillStep, CountersCount) {
  for (const int64_t dim : {64, 128, 256}) {
    TestProblem t({.kv_len = {300, 0},
                   .q_len = {40, 2},
                   .q_heads = 4,
                   .kv_heads = 2,
                   .head_dim = dim,
                   .v_head_dim = 64,
                   .dtype = DType::kBF16,
                   .page_size = 16});
    t.problem.candidates.query_block = 16;
    t.problem.mask.causal = false;
    t.all();
    const DeviceRan r = run_on_device(t.problem, split(1));
    ASSERT_TRUE(r.status.ok()) << r.status.message();
    EXPECT_EQ(r.device.tokens_loaded, 6u * 19 * 16);
    EXPECT_GE(r.device.tasks, 6u) << "and the request without tokens";
    EXPECT_LE(r.device.tasks, 8u);
    EXPECT_GE(r.device.tiles, dim == 256 ? 6u * 5 : 6u * 6);  // of 64 columns
    EXPECT_EQ(r.device.empty_rows, 8u);
    EXPECT_EQ(r.device.stale_rows + r.device.rows_redone, 0u);
    const DeviceRan parts = run_on_device(t.problem, split(3));
    EXPECT_EQ(parts.device.tokens_loaded, 6u * 19 * 16);
    EXPECT_GE(parts.device.tasks, 18u);
    EXPECT_EQ(parts.device.empty_rows, 8u);
  }
}

// Layers that share lists: what CTAs hand each other comes back to 0 by itself, rows to sum again too.
TEST_F(CudaPrefillStep, OneScheduleServesManyRuns) {
  for (const double value : {0.5, kNaN})
    for (const int32_t splits : {1, 3}) {
      const TestProblem t = two_requests(value);
      const Wanted want = wanted(t.problem);
      const std::unique_ptr<DeviceStep> step = planned(t.problem, split(splits));
      const DeviceProblem device(t.problem);
      DeviceStream stream;
      ASSERT_TRUE(cuda::normalize(step->plan, device.problem, step->buffers(), stream).ok());
      ASSERT_TRUE(cuda::schedule(step->plan, step->buffers(), stream).ok());
      std::vector<std::unique_ptr<DeviceOut>> outs;
      constexpr unsigned long long kRuns = 12;
      for (unsigned long long layer = 0; layer < kRuns; ++layer)
        outs.push_back(std::make_unique<DeviceOut>(t.problem));
      DeviceCounters counters;
      for (const auto& out : outs)  // one behind the other, without a wait
        ASSERT_TRUE(
            cuda::run(step->plan, device.problem, out->view(), step->buffers(), stream, counters.get()).ok());
      DeviceRan first;
      for (const auto& out : outs) {
        const DeviceRan r = result_of(*step, device, *out, counters, stream);
        ASSERT_EQ(complaint(r, want.answer, want.tolerance), "") << value << ", splits " << splits;
        if (first.out.empty()) first = r;
        ASSERT_EQ(unlike(r, first), "");
      }
      EXPECT_EQ(first.device.rows_redone > 0, std::isnan(value));
      // Each run does what the first one did, and no row more.
      DeviceCounters of_one;
      ASSERT_TRUE(
          cuda::run(step->plan, device.problem, outs[0]->view(), step->buffers(), stream, of_one.get()).ok());
      const cuda::StepCounters one = of_one.values(), all = first.device;
      EXPECT_EQ(all.tasks, kRuns * one.tasks) << value << ", splits " << splits;
      EXPECT_EQ(all.tiles, kRuns * one.tiles);
      EXPECT_EQ(all.tokens_loaded, kRuns * one.tokens_loaded);
      EXPECT_EQ(all.rows_redone, kRuns * one.rows_redone);
    }
}

// What was scheduled for the one engine does not run on the other's plan.
TEST_F(CudaPrefillStep, AnotherEnginesScheduleIsStale) {
  const TestProblem t = two_requests();
  const DeviceProblem device(t.problem);
  const std::unique_ptr<DeviceStep> step = planned(t.problem, split(1));
  cuda::StepOptions o = split(1);
  o.engine = cuda::Engine::kDecode;
  const Result<cuda::StepPlan> decode = cuda::plan_step(t.problem, o);
  ASSERT_TRUE(decode.ok()) << decode.status().message();
  cuda::StepBuffers buffers = step->buffers();
  DeviceBuffer scratch(std::max(step->plan.bytes.scratch, decode->bytes.scratch)),
      index(std::max(step->plan.bytes.index, decode->bytes.index));
  buffers.scratch = scratch.data();
  buffers.index = index.data();
  buffers.bytes = {step->plan.bytes.control, index.bytes(), scratch.bytes()};
  DeviceOut out(t.problem, DType::kF32, Placement::kDense, Before::kMinusZero);
  ASSERT_TRUE(cuda::normalize(*decode, device.problem, buffers, nullptr).ok());
  ASSERT_TRUE(cuda::schedule(*decode, buffers, nullptr).ok());
  ASSERT_TRUE(cuda::run(step->plan, device.problem, out.view(), buffers, nullptr).ok());
  EXPECT_STREQ(code_name(cuda::poll(step->plan, buffers, nullptr).code()), "stale_plan");
  out.get();
  EXPECT_TRUE(all_nan(out.out()));
}

// A batch of fixed extents: 96 queries in blocks of 16, four requests, two lists each. What changes between
// replays: lengths, queries of each request, lists, pages.
class LivePrefill {
 public:
  static constexpr int64_t kRequests = 4, kQueries = 96, kQueryBlock = 16, kPage = 16, kPages = 40,
                           kWidth = 20;
  static constexpr int64_t kRows = (kQueries / kQueryBlock + kRequests) * 2;

  LivePrefill()
      : made({.kv_len = std::vector<int32_t>(kRequests, kPage * kPages),
              .q_len = std::vector<int32_t>(kRequests, kQueries / kRequests),
              .q_heads = 6,
              .kv_heads = 2,
              .head_dim = 64,
              .v_head_dim = 64,
              .dtype = DType::kBF16,
              .page_size = kPage,
              .q = q_noise(1),
              .k = kv_noise(2),
              .v = kv_noise(3)}) {
    made.problem.candidates.index_heads = 2;
    made.problem.candidates.unit = 16;
    made.problem.candidates.query_block = kQueryBlock;
    made.fixed(Rows(kRows, std::vector<int32_t>(kWidth, 0)), std::vector<int32_t>(kRows, 0));
    for (int64_t b = 0; b < kRequests; ++b)
      for (int64_t page = 0; page < kPages; ++page) owned_.push_back(made.table(b, page));
  }

  TestProblem made;

  void draw(Dice& d, bool nothing) {
    for (size_t i = owned_.size(); i > 1; --i)
      std::swap(owned_[i - 1], owned_[d.from(0, static_cast<int64_t>(i) - 1)]);
    int32_t* entry = elements<int32_t>(made.problem.candidates.indices);
    int32_t* count = elements<int32_t>(made.problem.candidates.count);
    size_t page = 0;
    int64_t left = d.one_in(3) ? kQueries : d.from(0, kQueries), row = 0;
    for (int64_t b = 0; b < kRequests; ++b) {
      const int64_t queries = nothing ? 0 : d.one_in(4) ? 0 : d.one_in(4) ? left : d.from(0, left);
      left -= queries;
      made.cu_q()[b + 1] = made.cu_q()[b] + static_cast<int32_t>(queries);
      const int32_t length = d.one_in(5) ? 0 : d.one_in(4) ? kPage * kPages : d.i32(1, kPage * kPages);
      made.kv_len()[b] = length;
      for (int64_t i = 0; i < kPages; ++i) made.table(b, i) = i * kPage < length ? owned_[page++] : -1;
      for (const int64_t end = row + (queries + kQueryBlock - 1) / kQueryBlock * 2; row < end; ++row) {
        count[row] = length == 0 || d.one_in(6) ? 0 : d.one_in(3) ? kWidth : d.i32(0, kWidth);
        for (int64_t j = 0; j < kWidth; ++j)
          entry[row * kWidth + j] = j >= count[row] ? d.of({-77, INT32_MAX})
                                    : d.one_in(9)   ? -1
                                                    : d.i32(0, (length - 1) / 16);
      }
    }
    rows_ = row;
    for (; row < kRows; ++row) count[row] = 1 << 30;  // beyond cu_q: not read
  }

  // What is left of the batch.
  Problem alive() const {
    Problem p = made.problem;
    p.query.q.shape[0] = queries();
    p.candidates.indices.shape[0] = p.candidates.count.shape[0] = rows_;
    return p;
  }
  int64_t queries() const { return made.problem.query.cu_q.at<int32_t>({kRequests}); }

 private:
  std::vector<int32_t> owned_;
  int64_t rows_ = 0;
};

TEST_F(CudaPrefillStep, ReplaysOverOtherBatches) {
  const int64_t replays = std::min<int64_t>(60, number_from("TAMIS_GRAPH_REPLAYS", 60));
  for (const int32_t splits : {0, 1, 3}) {
    LivePrefill batch;
    Dice d(splits + 40);
    cuda::StepOptions o = split(splits);
    o.plan.min_tiles = 1;
    Captured captured(batch.made.problem, o);
    ASSERT_TRUE(captured.graph.status.ok()) << captured.graph.status.message();
    ASSERT_EQ(captured.step->plan.columns, 128);
    for (int64_t i = 0; i < replays; ++i) {
      SCOPED_TRACE(::testing::Message() << "replay " << i << ", splits " << splits);
      batch.draw(d, i % 10 == 9);
      const DeviceRan r = captured.replay(batch.made.problem);
      ASSERT_TRUE(r.status.ok()) << r.status.message();
      ASSERT_EQ(r.damage, "");
      const int64_t out = batch.queries() * 6 * 64, lse = batch.queries() * 6;
      ASSERT_TRUE(all_nan({r.out.begin() + out, r.out.end()})) << "poison, untouched";
      ASSERT_TRUE(all_nan({r.lse.begin() + lse, r.lse.end()}));
      if (batch.queries() == 0) continue;
      const Wanted want = wanted(batch.alive());
      ASSERT_EQ(differs({r.out.begin(), r.out.begin() + out}, want.answer.output.out, want.tolerance.out),
                "");
      ASSERT_EQ(differs({r.lse.begin(), r.lse.begin() + lse}, want.answer.output.lse, want.tolerance.lse),
                "");
    }
  }
}

// Two sets of buffers on two streams, steps behind each other on each without a wait.
TEST_F(CudaPrefillStep, TwoStreamsSideBySide) {
  const TestProblem a = two_requests(), b = two_requests(kNaN);
  const Wanted want_a = wanted(a.problem), want_b = wanted(b.problem);
  for (const int32_t splits : {1, 3}) {
    const std::unique_ptr<DeviceStep> step_a = planned(a.problem, split(splits)),
                                      step_b = planned(b.problem, split(splits));
    const DeviceProblem on_a(a.problem), on_b(b.problem);
    DeviceOut out_a(a.problem), out_b(b.problem);
    DeviceCounters counters_a, counters_b;
    DeviceStream stream_a, stream_b;
    for (int round = 0; round < 10; ++round) {
      out_a.reset();
      out_b.reset();
      for (int i = 0; i < 20; ++i) {
        ASSERT_TRUE(cuda::step(step_a->plan, on_a.problem, out_a.view(), step_a->buffers(), stream_a,
                               counters_a.get())
                        .ok());
        ASSERT_TRUE(cuda::step(step_b->plan, on_b.problem, out_b.view(), step_b->buffers(), stream_b,
                               counters_b.get())
                        .ok());
      }
      ASSERT_EQ(
          complaint(result_of(*step_a, on_a, out_a, counters_a, stream_a), want_a.answer, want_a.tolerance),
          "")
          << "round " << round;
      ASSERT_EQ(
          complaint(result_of(*step_b, on_b, out_b, counters_b, stream_b), want_b.answer, want_b.tolerance),
          "")
          << "round " << round;
    }
    EXPECT_EQ(counters_a.values().rows_redone, 0u);
    EXPECT_GT(counters_b.values().rows_redone, 0u);
  }
}

}  // namespace
}  // namespace tamis
