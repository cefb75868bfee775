// Slots that are given away while runs are going on, with real threads: exactly what docs/epilogues.md
// promises.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "attention/runs.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

constexpr int64_t kQueries = 48, kHeads = 4, kDim = 8;  // of each of two requests

TestProblem two_requests() {
  TestProblem t({.kv_len = {200, 200},
                 .q_len = {kQueries, kQueries},
                 .q_heads = kHeads,
                 .kv_heads = 2,
                 .head_dim = 16,
                 .v_head_dim = kDim,
                 .page_size = 16,
                 .q = q_noise(1),
                 .k = kv_noise(2),
                 .v = kv_noise(3)});
  t.all();
  return t;
}

// A planned step, its outputs and its slots: request 0 in slot 0, request 1 in slot 1.
struct Job {
  explicit Job(int32_t splits) : t(two_requests()) {
    Result<Steps> made = prepare(t.problem, {.plan = {.path = Path::kDirect, .splits = splits}});
    EXPECT_TRUE(made.ok()) << made.status().message();
    steps = std::move(*made);
    workspace.resize(partial_bytes(steps.plan, steps.schedule) + 64);
  }

  RunCounters run_once(Context& context) {
    const SlotView slots{.slot = dense_view(slot, DType::kI32, {2}),
                         .generation = dense_view(generation, DType::kU32, {2}),
                         .live_generation = dense_view(live, DType::kU32, {2})};
    const OutView to{mutable_view(out.data(), DType::kF32, {2 * kQueries, kHeads, kDim}),
                     mutable_view(lse.data(), DType::kF32, {2 * kQueries, kHeads}),
                     {},
                     slots};
    RunCounters counters;
    const Status s =
        run(steps.plan, t.problem, steps.bundles.view(), steps.schedule, to, workspace, context, &counters);
    EXPECT_TRUE(s.ok()) << s.message();
    return counters;
  }

  // How a slot changes hands.
  void bump(uint32_t to) { std::atomic_ref<uint32_t>(live[0]).store(to, std::memory_order_release); }

  // Request 0's rows.
  void fill(float x) {
    std::fill_n(out.begin(), kQueries * kHeads * kDim, x);
    std::fill_n(lse.begin(), kQueries * kHeads, x);
  }
  bool row_is(int64_t row, float x) const {
    return lse[row] == x &&
           std::all_of(&out[row * kDim], &out[row * kDim] + kDim, [x](float y) { return y == x; });
  }
  bool row_equals(int64_t row, const Job& other) const {
    return lse[row] == other.lse[row] &&
           std::equal(&out[row * kDim], &out[row * kDim] + kDim, &other.out[row * kDim]);
  }

  TestProblem t;
  Steps steps;
  std::vector<std::byte> workspace;
  std::vector<float> out = std::vector<float>(2 * kQueries * kHeads * kDim);
  std::vector<float> lse = std::vector<float>(2 * kQueries * kHeads);
  int32_t slot[2] = {0, 1};
  uint32_t generation[2] = {0, 0};
  uint32_t live[2] = {0, 0};
};

void wait_until(const std::function<bool()>& done) {
  while (!done()) std::this_thread::yield();
}

// A serving loop runs old steps; the owner bumps, waits for the run that was going on, and uses the rows.
// From then on nothing that the old steps do reaches them, however many there are.
void reuse_behind_running_steps(int32_t splits) {
  Job job(splits);
  Context context(2);
  std::atomic<int64_t> started{0}, finished{0};
  std::atomic<uint32_t> admitted{0};
  std::atomic<bool> stop{false};
  std::atomic<int64_t> last_stale{-1};
  std::thread serving([&] {
    while (!stop) {
      ++started;
      job.generation[0] = admitted;
      last_stale = job.run_once(context).stale_rows;
      ++finished;
    }
  });
  for (uint32_t round = 0; round < 40; ++round) {
    // The old owner, of generation `round`, is being served.
    const int64_t served = started;
    wait_until([&] { return finished > served + 1; });
    EXPECT_EQ(last_stale, 0);
    for (uint32_t i = 0; i < round * 50; ++i) std::this_thread::yield();  // another moment each time
    job.bump(round + 1);
    // Runs that started before the bump may still be storing a row that they had checked.
    const int64_t running = started;
    wait_until([&] { return finished >= running; });
    const float mine = static_cast<float>(round) + 1000;
    job.fill(mine);
    const int64_t seen = finished;
    wait_until([&] { return finished >= seen + 3; });
    int64_t overwritten = 0;
    for (int64_t row = 0; row < kQueries * kHeads; ++row) overwritten += !job.row_is(row, mine);
    EXPECT_EQ(overwritten, 0) << "round " << round;
    if (overwritten != 0) break;  // to the end, where the thread is joined
    EXPECT_EQ(last_stale, kQueries * kHeads);
    admitted = round + 1;  // the new owner is served from now on
  }
  stop = true;
  serving.join();
  // The neighbour in slot 1 was served all along.
  Job undisturbed(splits);
  (void)undisturbed.run_once(context);
  for (int64_t row = kQueries * kHeads; row < 2 * kQueries * kHeads; ++row)
    EXPECT_TRUE(job.row_equals(row, undisturbed)) << row;
}

TEST(SlotsInFlight, ReusedRowsAreSafeOnceTheRunThatWasGoingOnHasReturned) { reuse_behind_running_steps(1); }
TEST(SlotsInFlight, SoAreThoseOfSplitRows) { reuse_behind_running_steps(3); }

// A bump in the middle of a run: each row is either written whole, LSE and all, or not at all, and the rows
// that were not are counted.
TEST(SlotsInFlight, RowsAreWrittenWholeOrNotAtAll) {
  Context context(2);
  for (const int32_t splits : {1, 3}) {
    Job want(splits);
    ASSERT_EQ(want.run_once(context).stale_rows, 0);
    Job job(splits);
    for (int moment = 0; moment < 60; ++moment) {
      job.fill(-77);
      job.bump(0);
      std::atomic<bool> go{false};
      std::thread bumping([&] {
        wait_until([&] { return go.load(); });
        for (int i = 0; i < moment * 20; ++i) std::this_thread::yield();
        job.bump(1);
      });
      go = true;
      const int64_t stale = job.run_once(context).stale_rows;
      bumping.join();
      int64_t kept = 0, written = 0;
      for (int64_t row = 0; row < kQueries * kHeads; ++row) {
        kept += job.row_is(row, -77);
        written += job.row_equals(row, want);
      }
      EXPECT_EQ(kept, stale);
      EXPECT_EQ(kept + written, kQueries * kHeads) << "a torn row";
    }
  }
}

}  // namespace
}  // namespace tamis
