// Slots: rows of a request whose slot has been given away are not written.
#include <gtest/gtest.h>

#include "attention/stores.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

// Slots of the three requests of stored_problem(), the middle one without queries.
struct Slots {
  std::vector<int32_t> slot{2, 0, 5};
  std::vector<uint32_t> generation{7, 1, 0xFFFFFFFFu};
  std::vector<uint32_t> live{1, 99, 7, 99, 99, 0xFFFFFFFFu};
  SlotView view() const {
    return {.slot = dense_view(slot.data(), DType::kI32, {3}),
            .generation = dense_view(generation.data(), DType::kU32, {3}),
            .live_generation = dense_view(live.data(), DType::kU32, {6})};
  }
};

// Runs with and without slots; rows of `stale` queries keep their bytes, the others get theirs.
void expect_stale(const Slots& slots, const std::vector<int64_t>& stale, DType dtype, Placement how,
                  const ForwardOptions& options) {
  Context context(2);
  const TestProblem t = stored_problem();
  const bool codes = dtype == DType::kI8;
  const auto run_with = [&](const SlotView& view, Guarded* out, Guarded* lse, Guarded* scale) {
    OutView to{out->view(), lse->view()};
    if (codes) to.epilogue.out_scale = scale->view();
    to.slots = view;
    ForwardReport report;
    const Status s = forward(t.problem, options, to, context, &report);
    EXPECT_TRUE(s.ok()) << s.message();
    EXPECT_TRUE(out->fences_stand() && lse->fences_stand() && scale->fences_stand());
    return report.counters;
  };
  Guarded out(dtype, {kQueries, kQHeads, kDv}, how), lse(DType::kF32, {kQueries, kQHeads}, how),
      scale(DType::kF32, {kQueries, kQHeads}, how);
  Guarded all(dtype, {kQueries, kQHeads, kDv}, how), all_lse(DType::kF32, {kQueries, kQHeads}, how),
      all_scale(DType::kF32, {kQueries, kQHeads}, how);
  const RunCounters free = run_with({}, &all, &all_lse, &all_scale);
  const RunCounters counts = run_with(slots.view(), &out, &lse, &scale);
  EXPECT_EQ(free.stale_rows, 0);
  EXPECT_EQ(counts.stale_rows, static_cast<int64_t>(stale.size()) * kQHeads) << "(query, query head)";
  EXPECT_EQ(counts.empty_rows, free.empty_rows) << "a matter of sets, not of slots";
  const auto is_stale = [&](int64_t i) { return std::find(stale.begin(), stale.end(), i) != stale.end(); };
  const uint32_t untouched = dtype == DType::kF32 ? 0xFFFFFFFFu : dtype == DType::kBF16 ? 0xFFFFu : 0xFFu;
  for_each_value([&](int64_t i, int64_t h, int64_t d) {
    ASSERT_EQ(bits_at(out, i, h, d), is_stale(i) ? untouched : bits_at(all, i, h, d)) << i << ' ' << h;
  });
  const std::vector<double> row[] = {lse.values(), all_lse.values(), scale.values(), all_scale.values()};
  for (size_t r = 0; r < row[0].size(); ++r) {
    const bool kept = is_stale(static_cast<int64_t>(r) / kQHeads);
    const double want_lse = kept ? kNaN : row[1][r], want_scale = kept || !codes ? kNaN : row[3][r];
    EXPECT_TRUE(row[0][r] == want_lse || (std::isnan(row[0][r]) && std::isnan(want_lse)));
    EXPECT_TRUE(row[2][r] == want_scale || (std::isnan(row[2][r]) && std::isnan(want_scale)));
  }
}

void expect_stale(const Slots& slots, const std::vector<int64_t>& stale) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8})
    for (const Placement how : {Placement::kDense, Placement::kReversed})
      for (const ForwardOptions& o : {kWhole, kThree, ForwardOptions{}})
        expect_stale(slots, stale, dtype, how, o);
}

TEST(Slots, OwnersWrite) { expect_stale({}, {}); }

TEST(Slots, ARequestWhoseSlotWasReusedDoesNotWrite) {
  Slots first;
  first.live[2] = 8;
  expect_stale(first, {0, 1, 2});
  Slots last;
  last.live[5] = 0;  // the count went round
  expect_stale(last, {3, 4});
  Slots both;
  both.live[2] = 6;  // older than admitted: just as foreign
  both.live[5] = 12;
  expect_stale(both, {0, 1, 2, 3, 4});
  Slots nobody;
  nobody.live[0] = 2;  // the request without queries
  expect_stale(nobody, {});
}

TEST(Slots, ARequestWithoutASlotAlwaysWrites) {
  Slots s;
  s.slot[0] = -1;
  s.generation[0] = 12345;
  s.live[5] = 1;
  expect_stale(s, {3, 4});
}

TEST(Slots, RequestsMayShareASlot) {
  Slots s;
  s.slot[2] = 2;
  s.generation[2] = 8;
  expect_stale(s, {3, 4});
  s.live[2] = 8;
  expect_stale(s, {0, 1, 2});
}

TEST(Slots, AnyStrides) {
  Slots s;
  s.live[5] = 3;
  SlotView view = s.view();
  std::vector<uint32_t> spread(18, 42);
  for (int64_t i = 0; i < 6; ++i) spread[3 * i] = s.live[i];
  view.live_generation.data = spread.data();
  view.live_generation.stride[0] = 3;
  const std::vector<int32_t> backwards{5, 0, 2};
  view.slot.data = backwards.data() + 2;
  view.slot.stride[0] = -1;
  Context context(1);
  const TestProblem t = stored_problem();
  Guarded out(DType::kF32, {kQueries, kQHeads, kDv});
  ForwardReport report;
  ASSERT_TRUE(forward(t.problem, kThree, {out.view(), {}, {}, view}, context, &report).ok());
  EXPECT_EQ(report.counters.stale_rows, 2 * kQHeads);
}

TEST(Slots, WrongOnesAreRefusedBeforeAnythingIsRead) {
  const Slots good;
  struct Wrong {
    const char* words;
    std::function<void(Slots&, SlotView&)> spoil;
  };
  const Wrong wrongs[] = {
      {"slot: 6 of request 2 is outside [0, 6)", [](Slots& s, SlotView&) { s.slot[2] = 6; }},
      {"slot: -2 of request 1 is outside [0, 6)", [](Slots& s, SlotView&) { s.slot[1] = -2; }},
      {"slot: 2147483647 of request 0", [](Slots& s, SlotView&) { s.slot[0] = 2147483647; }},
      {"slot: tensor is missing", [](Slots&, SlotView& v) { v.slot = {}; }},
      {"generation: tensor is missing", [](Slots&, SlotView& v) { v.generation = {}; }},
      {"live_generation: tensor is missing", [](Slots&, SlotView& v) { v.live_generation = {}; }},
      {"slot: dtype U32 is not I32", [](Slots&, SlotView& v) { v.slot.dtype = DType::kU32; }},
      {"generation: dtype I32 is not U32", [](Slots&, SlotView& v) { v.generation.dtype = DType::kI32; }},
      {"live_generation: dtype U64", [](Slots&, SlotView& v) { v.live_generation.dtype = DType::kU64; }},
      {"slot: shape is not [3]", [](Slots&, SlotView& v) { v.slot.shape[0] = 2; }},
      {"generation: shape is not [3]", [](Slots&, SlotView& v) { v.generation.rank = 0; }},
      {"live_generation: rank 2", [](Slots&, SlotView& v) { v.live_generation.rank = 2; }},
      {"live_generation: has elements but no memory",
       [](Slots&, SlotView& v) { v.live_generation.data = nullptr; }},
      {"live_generation: does not start on a multiple of 4",
       [](Slots& s, SlotView& v) { v.live_generation.data = reinterpret_cast<char*>(s.live.data()) + 2; }},
      {"slot: 2 of request 0 is outside [0, 0)",
       [](Slots&, SlotView& v) { v.live_generation = dense_view(nullptr, DType::kU32, {0}); }},
  };
  Context context(1);
  TestProblem t = stored_problem();
  for (const bool bad_lists : {false, true}) {
    if (bad_lists) t.problem.candidates.unit = 1000;  // every entry out of range: judged later
    for (const Wrong& w : wrongs) {
      Slots s = good;
      SlotView view = s.view();
      w.spoil(s, view);
      Guarded out(DType::kF32, {kQueries, kQHeads, kDv}), lse(DType::kF32, {kQueries, kQHeads});
      const Status status = forward(t.problem, kThree, {out.view(), lse.view(), {}, view}, context);
      EXPECT_EQ(status.code(), Code::kInvalidArgument) << w.words;
      EXPECT_EQ(status.message().rfind(w.words, 0), 0u) << status.message();
      EXPECT_TRUE(out.untouched() && lse.untouched());
    }
  }
}

// The generation is read at the store of each row, not once a run. Request 0's codes are stored where request
// 1's live generation lies: whoever comes after them finds another generation there.
TEST(Slots, TheGenerationIsReadRightBeforeEachStore) {
  TestProblem t({.kv_len = {5, 5}, .v_head_dim = 4, .page_size = 4, .v = [](auto...) { return 1.0; }});
  t.csr({{0, 3}, {1, 2}});
  const uint8_t one = float_to_e4m3(1);
  for (const int32_t splits : {1, 2})
    for (const bool first_first : {true, false}) {
      const Result<Steps> steps = prepare(t.problem, {.plan = {.path = Path::kDirect, .splits = splits}});
      ASSERT_TRUE(steps.ok());
      Schedule schedule = steps->schedule;
      const auto request = [&](int32_t b) { return steps->bundles.view().bundle[b].request; };
      const auto earlier = [&](const auto& a, const auto& b) {
        return first_first ? request(a.bundle) < request(b.bundle) : request(a.bundle) > request(b.bundle);
      };
      std::stable_sort(schedule.tasks.begin(), schedule.tasks.end(), earlier);
      std::stable_sort(schedule.merges.begin(), schedule.merges.end(), earlier);
      ASSERT_EQ(schedule.merges.size(), splits == 1 ? 0u : 2u);
      alignas(4) uint8_t memory[8 + 4] = {};  // live generations 0 and 0, then room for request 1's row
      const std::vector<int32_t> slot{0, 1};
      const std::vector<uint32_t> generation{0, 0};
      MutableTensorView out = mutable_view(memory + 4, DType::kF8E4M3, {2, 1, 4});  // row 0 is live[1]
      const SlotView slots{.slot = dense_view(slot.data(), DType::kI32, {2}),
                           .generation = dense_view(generation.data(), DType::kU32, {2}),
                           .live_generation = dense_view(memory, DType::kU32, {2})};
      Context context(1);
      RunCounters counters;
      GuardedWorkspace workspace(partial_bytes(steps->plan, schedule));
      const Status s = run(steps->plan, t.problem, steps->bundles.view(), schedule, {out, {}, {}, slots},
                           workspace.span(), context, &counters);
      ASSERT_TRUE(s.ok()) << s.message();
      EXPECT_EQ(memory[4], one) << "request 0 has written";
      EXPECT_EQ(memory[8], first_first ? 0 : one);
      EXPECT_EQ(counters.stale_rows, first_first ? 1 : 0);
    }
}

// And read once: a row whose own LSE lands on its generation is still written whole.
TEST(Slots, TheGenerationIsReadOnceARow) {
  TestProblem t({.kv_len = {5}, .v_head_dim = 4, .page_size = 4, .v = [](auto...) { return 1.0; }});
  t.csr({{0, 3}});
  for (const int32_t splits : {1, 2}) {
    uint32_t live = 0;
    const int32_t slot = 0;
    const uint32_t generation = 0;
    std::vector<float> out(4, 0.f);
    OutView to{mutable_view(out.data(), DType::kF32, {1, 1, 4}), mutable_view(&live, DType::kF32, {1, 1})};
    to.slots = {.slot = dense_view(&slot, DType::kI32, {1}),
                .generation = dense_view(&generation, DType::kU32, {1}),
                .live_generation = dense_view(&live, DType::kU32, {1})};
    Context context(1);
    ForwardReport report;
    const ForwardOptions o{.plan = {.path = Path::kDirect, .splits = splits}};
    const Status s = forward(t.problem, o, to, context, &report);
    ASSERT_TRUE(s.ok()) << s.message();
    EXPECT_EQ(report.counters.stale_rows, 0);
    EXPECT_EQ(out, std::vector<float>(4, 1.f));
    EXPECT_NE(live, 0u) << "the LSE, ln 2";
  }
}

}  // namespace
}  // namespace tamis
