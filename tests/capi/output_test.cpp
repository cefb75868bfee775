// Epilogues and slots through C: bit for bit what C++ stores.
#include <gtest/gtest.h>

#include <cmath>

#include "capi/c_problem.h"
#include "tamis/attention.h"

namespace tamis::testing {
namespace {

// decode_problem() has 3 requests of one query, 4 query heads, Dv 8.
constexpr int64_t kRows = 3 * 4, kValues = kRows * 8;

struct Stored {
  std::vector<uint8_t> out = std::vector<uint8_t>(kValues, 0xEE);
  std::vector<float> lse = std::vector<float>(kRows, -7), scale = std::vector<float>(kRows, -7);
  bool operator==(const Stored& b) const { return out == b.out && lse == b.lse && scale == b.scale; }
};

TEST(COutput, EpilogueAndSlots) {
  const TestProblem t = decode_problem();
  const std::vector<float> gate{1, 2, 0, -1, 0.5f, 3, 1, 1, 1, 0.25f, 1, 7};
  const std::vector<float> fixed{0.01f, 0.02f, 0.04f, 1};
  const std::vector<int32_t> slot{1, -1, 0};
  const std::vector<uint32_t> generation{5, 5, 5}, live{5, 6};  // request 0 is stale
  for (const DType dtype : {DType::kI8, DType::kF8E4M3})
    for (const bool dynamic : {false, true}) {
      Stored want, got;
      OutView to{mutable_view(want.out.data(), dtype, {3, 4, 8}),
                 mutable_view(want.lse.data(), DType::kF32, {3, 4})};
      to.epilogue.scale = 1.75f;
      to.epilogue.gate = dense_view(gate.data(), DType::kF32, {3, 4});
      if (dynamic)
        to.epilogue.out_scale = mutable_view(want.scale.data(), DType::kF32, {3, 4});
      else
        to.epilogue.static_scale = dense_view(fixed.data(), DType::kF32, {4});
      to.slots = {.slot = dense_view(slot.data(), DType::kI32, {3}),
                  .generation = dense_view(generation.data(), DType::kU32, {3}),
                  .live_generation = dense_view(live.data(), DType::kU32, {2})};
      Context context(1);
      ForwardReport report;
      const Status s = forward(t.problem, {}, to, context, &report);
      ASSERT_TRUE(s.ok()) << s.message();

      CProblem c(t.problem);
      Handles h;
      Error error;
      tamis_epilogue epilogue;
      tamis_epilogue_init(&epilogue);
      epilogue.scale = 1.75f;
      epilogue.gate = c.add(to.epilogue.gate);
      tamis_tensor* out_scale = c.add(dense_view(got.scale.data(), DType::kF32, {3, 4}));
      if (dynamic)
        epilogue.out_scale = out_scale;
      else
        epilogue.static_scale = c.add(to.epilogue.static_scale);
      const tamis_slots slots{sizeof slots, c.add(to.slots.slot), c.add(to.slots.generation),
                              c.add(to.slots.live_generation)};
      const tamis_output output{sizeof output, c.add(dense_view(got.out.data(), dtype, {3, 4, 8})),
                                c.add(dense_view(got.lse.data(), DType::kF32, {3, 4})), &epilogue, &slots};
      auto counters = sized<tamis_run_counters>();
      ASSERT_EQ(h.prepare(c.problem, nullptr, error), TAMIS_OK) << error.text;
      std::vector<float> workspace;
      const tamis_step step = h.step(c.problem, output, &workspace);
      for (int64_t times = 1; times <= 2; ++times) {
        ASSERT_EQ(tamis_run(&step, h.context, &counters, error), TAMIS_OK) << error.text;
        EXPECT_TRUE(got == want);
        EXPECT_EQ(counters.stale_rows, times * 4);
        EXPECT_EQ(counters.stale_rows, times * report.counters.stale_rows);
        EXPECT_EQ(counters.saturated, times * report.counters.saturated);
      }
      auto forwarded = sized<tamis_run_counters>();
      auto reported = sized<tamis_forward_report>();
      reported.counters = &forwarded;
      ASSERT_EQ(tamis_forward(&c.problem, nullptr, &output, h.context, &reported, error), TAMIS_OK);
      EXPECT_TRUE(got == want);
      EXPECT_EQ(forwarded.stale_rows, report.counters.stale_rows);
      EXPECT_EQ(forwarded.saturated, report.counters.saturated);
      EXPECT_EQ(got.out[0], 0xEE) << "request 0 keeps its bytes";
      EXPECT_NE(got.out[4 * 8], 0xEE);
      if (!dynamic && dtype == DType::kI8) {
        EXPECT_GT(counters.saturated, 0);
      }
    }
}

TEST(COutput, WhatIsWrongIsNamed) {
  const TestProblem t = decode_problem();
  CProblem c(t.problem);
  Handles h;
  Results results(3, 4, 8);
  Error error;
  tamis_epilogue epilogue;
  tamis_epilogue_init(&epilogue);
  results.output.epilogue = &epilogue;
  const auto refused = [&](const char* words) {
    EXPECT_EQ(tamis_forward(&c.problem, nullptr, &results.output, h.context, nullptr, error),
              TAMIS_INVALID_ARGUMENT);
    EXPECT_TRUE(says(error, words));
    EXPECT_TRUE(std::isnan(results.out[0]));
  };
  epilogue.reserved = 1;
  refused("epilogue: reserved is 1, not 0");
  tamis_epilogue_init(&epilogue);
  epilogue.scale = INFINITY;
  refused("epilogue.scale: inf is not finite");
  tamis_epilogue_init(&epilogue);
  tamis_tensor* gate = c.add(dense_view(nullptr, DType::kF32, {3, 4}));
  epilogue.gate = gate;
  refused("gate: data is NULL");
  gate->dtype = 99;
  refused("gate: dtype 99");
}

}  // namespace
}  // namespace tamis::testing
