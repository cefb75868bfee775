// The reference, merging and the accounting through C; case_test.cpp has the case files.
#include <gtest/gtest.h>

#include <cmath>

#include "capi/c_problem.h"
#include "support/expect.h"
#include "tamis/explain.h"
#include "tamis/merge.h"

namespace tamis::testing {
namespace {

TEST(CReference, IsTheJudge) {
  TestProblem t = decode_problem();
  const CProblem c(t.problem);
  const reference::Answer expected = answer(t.problem);
  std::vector<double> out(expected.output.out.size(), kNaN), lse(expected.output.lse.size(), kNaN);
  const int64_t out_count = static_cast<int64_t>(out.size()), lse_count = static_cast<int64_t>(lse.size());
  Error error;
  ASSERT_EQ(tamis_reference_forward(&c.problem, out.data(), out_count, lse.data(), lse_count, error),
            TAMIS_OK);
  EXPECT_TRUE(same_bits(out, expected.output.out));
  EXPECT_TRUE(same_bits(lse, expected.output.lse));
  EXPECT_EQ(tamis_reference_forward(&c.problem, nullptr, 0, nullptr, 0, error), TAMIS_OK);

  std::vector<double> untouched(out.size(), kNaN);
  EXPECT_EQ(tamis_reference_forward(&c.problem, untouched.data(), out_count - 1, nullptr, 0, error),
            TAMIS_INVALID_ARGUMENT);
  EXPECT_EQ(error.c.value, out_count - 1);
  EXPECT_EQ(error.c.limit, out_count + 1);
  EXPECT_EQ(tamis_reference_forward(&c.problem, nullptr, 0, untouched.data(), lse_count + 1, error),
            TAMIS_INVALID_ARGUMENT);
  t.table(0, 0) = -1;
  EXPECT_EQ(tamis_reference_forward(&c.problem, untouched.data(), out_count, nullptr, 0, error),
            TAMIS_PAGE_UNMAPPED);
  EXPECT_TRUE(std::isnan(untouched[0]));
}

TEST(CMerge, StatesAndGates) {
  const std::vector<float> a{1, 2, 3, 4}, b{5, 6, 7, 8}, la{0, 1}, lb{2, -INFINITY};
  const float* outs[] = {a.data(), b.data()};
  const float* lses[] = {la.data(), lb.data()};
  std::vector<float> out(4), lse(2), expected(4), expected_lse(2);
  Error error;
  ASSERT_EQ(tamis_merge_states(2, outs, lses, 2, 2, out.data(), lse.data(), error), TAMIS_OK);
  ASSERT_TRUE(merge_states(outs, lses, 2, 2, expected.data(), expected_lse.data()).ok());
  EXPECT_EQ(out, expected);
  EXPECT_EQ(lse, expected_lse);
  ASSERT_EQ(tamis_gated_sum(2, outs, lses, 1, 2, out.data(), error), TAMIS_OK);
  EXPECT_EQ(out[0], 10.f);  // gates 0 and 2

  EXPECT_EQ(tamis_merge_states(0, nullptr, nullptr, 2, 2, out.data(), lse.data(), error), TAMIS_OK);
  EXPECT_EQ(lse[0], -INFINITY);
  EXPECT_EQ(tamis_merge_states(-1, outs, lses, 2, 2, out.data(), lse.data(), error), TAMIS_INVALID_ARGUMENT);
  EXPECT_EQ(tamis_merge_states(2, nullptr, lses, 2, 2, out.data(), lse.data(), error),
            TAMIS_INVALID_ARGUMENT);
  EXPECT_EQ(tamis_merge_states(2, outs, nullptr, 2, 2, out.data(), lse.data(), error),
            TAMIS_INVALID_ARGUMENT);
  EXPECT_EQ(tamis_merge_states(2, outs, lses, 2, 2, nullptr, lse.data(), error), TAMIS_INVALID_ARGUMENT);
  EXPECT_EQ(tamis_merge_states(2, outs, lses, 2, 2, out.data(), nullptr, error), TAMIS_INVALID_ARGUMENT);
  EXPECT_EQ(tamis_merge_states(2, outs, lses, -2, 2, out.data(), lse.data(), error), TAMIS_INVALID_ARGUMENT);
  EXPECT_EQ(tamis_gated_sum(2, outs, nullptr, 2, 2, out.data(), error), TAMIS_INVALID_ARGUMENT);
  EXPECT_TRUE(says(error, "gates"));
  EXPECT_EQ(tamis_gated_sum(-1, outs, lses, 2, 2, out.data(), error), TAMIS_INVALID_ARGUMENT);
  outs[1] = nullptr;
  EXPECT_EQ(tamis_gated_sum(2, outs, lses, 2, 2, out.data(), error), TAMIS_INVALID_ARGUMENT);
}

TEST(CExplain, EveryNumber) {
  TestProblem t = decode_problem();
  const CProblem c(t.problem);
  tamis_explain_options o;
  tamis_explain_options_init(&o);
  o.tile = 32;
  o.splits = 3;
  o.bandwidth = 1e9;
  auto a = sized<tamis_accounting>();
  Error error;
  ASSERT_EQ(tamis_explain(&c.problem, &o, &a, error), TAMIS_OK) << error.text;
  const Accounting e = *explain(t.problem, {.tile = 32, .splits = 3, .bandwidth = 1e9});
  const std::pair<int64_t, int64_t> integers[] = {{a.rows, e.tiles.rows},
                                                  {a.kv_heads, e.tiles.kv_heads},
                                                  {a.selected_tokens, e.tiles.selected_tokens},
                                                  {a.touched_pages, e.tiles.touched_pages},
                                                  {a.tiles_aligned, e.tiles.aligned},
                                                  {a.tiles_packed, e.tiles.packed},
                                                  {a.bytes_logical, e.bytes.logical},
                                                  {a.bytes_pages, e.bytes.pages},
                                                  {a.bytes_aligned, e.bytes.aligned},
                                                  {a.bytes_dense, e.bytes.dense},
                                                  {a.index_bytes, e.bytes.index},
                                                  {a.index_bytes_normalized, e.bytes.index_normalized},
                                                  {a.scale_bytes, e.bytes.scales},
                                                  {a.transaction_bytes, e.bytes.transactions},
                                                  {a.flops_logical, e.flops_logical},
                                                  {a.flops_aligned, e.flops_aligned},
                                                  {a.workspace_splits, e.workspace.splits},
                                                  {a.workspace_partial_o, e.workspace.partial_o},
                                                  {a.workspace_partial_ml, e.workspace.partial_ml},
                                                  {a.workspace_total, e.workspace.total}};
  int at = 0;
  for (const auto& [found, expected] : integers) EXPECT_EQ(found, expected) << at++;
  EXPECT_EQ(a.tile_efficiency_aligned, e.tiles.efficiency_aligned);
  EXPECT_EQ(a.tile_efficiency_packed, e.tiles.efficiency_packed);
  EXPECT_EQ(a.block_utilization, e.tiles.block_utilization);
  EXPECT_EQ(a.compression_logical, e.bytes.compression_logical);
  EXPECT_EQ(a.compression_aligned, e.bytes.compression_aligned);
  EXPECT_EQ(a.transaction_efficiency, e.bytes.transaction_efficiency);
  EXPECT_EQ(a.floor_us, e.floor_us);
  EXPECT_GT(a.floor_us, 0);
  o.tile = 0;
  EXPECT_EQ(tamis_explain(&c.problem, &o, &a, error), TAMIS_INVALID_ARGUMENT);
  EXPECT_EQ(tamis_explain(&c.problem, nullptr, &a, error), TAMIS_OK);
  EXPECT_EQ(a.floor_us, 0);
}

// Without case files the same calls say so.
TEST(CCase, NoFileNoProblem) {
  Error error;
  tamis_case* file = reinterpret_cast<tamis_case*>(&error);
  tamis_problem problem;
  tamis_problem_init(&problem);
  const int32_t none = tamis_read_case(TAMIS_SOURCE_DIR "/tests/cases/no_such_case", &file, error);
  EXPECT_TRUE(none == TAMIS_IO_ERROR || none == TAMIS_UNSUPPORTED) << error.text;
  EXPECT_EQ(file, nullptr);
  const int32_t refusal = none == TAMIS_UNSUPPORTED ? TAMIS_UNSUPPORTED : TAMIS_INVALID_ARGUMENT;
  EXPECT_EQ(tamis_read_case(nullptr, &file, error), refusal);
  EXPECT_EQ(tamis_read_case("x", nullptr, error), refusal);
  EXPECT_EQ(tamis_case_problem(nullptr, &problem, error), refusal);
}

}  // namespace
}  // namespace tamis::testing
