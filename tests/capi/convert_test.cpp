// Layouts of candidate rows through C against those of convert.h.
#include <gtest/gtest.h>
#include <tamis/tamis_c_convert.h>

#include <vector>

#include "capi/c_problem.h"
#include "tamis/convert.h"

namespace tamis::testing {
namespace {

std::vector<int32_t> ints(const tamis_tensor* t) {
  int64_t n = 1;
  for (int axis = 0; axis < t->rank; ++axis) n *= t->shape[axis];
  const auto* data = static_cast<const int32_t*>(t->data);
  return {data, data + n};
}

std::vector<int64_t> longs(const tamis_tensor* t) {
  const auto* data = static_cast<const int64_t*>(t->data);
  return {data, data + t->shape[0]};
}

// Rows and tiers, and a problem to fill them from.
struct CConvert : ::testing::Test {
  CConvert() : t(decode_problem()) {
    t.problem.candidates.unit = 2;
    t.problem.candidates.query_block = 3;
    t.problem.candidates.invalid = OnInvalid::kDrop;
    c = std::make_unique<CProblem>(t.problem);
    c->problem.candidates.invalid = TAMIS_INVALID_DROP;
    EXPECT_EQ(tamis_rows_create(&rows, nullptr), TAMIS_OK);
    EXPECT_EQ(tamis_tiers_create(&tiers, nullptr), TAMIS_OK);
  }
  ~CConvert() override {
    tamis_rows_destroy(rows);
    tamis_tiers_destroy(tiers);
  }
  const tamis_candidates* from() const { return &c->problem.candidates; }

  TestProblem t;
  std::unique_ptr<CProblem> c;
  tamis_rows* rows = nullptr;
  tamis_tiers* tiers = nullptr;
  tamis_candidates view{};
  Error error;
};

TEST_F(CConvert, ThereAndBack) {
  ASSERT_EQ(tamis_rows_to_fixed_width(from(), -1, rows, error), TAMIS_OK) << error.text;
  ASSERT_EQ(tamis_rows_view(rows, &view, error), TAMIS_OK);
  const FixedRows fixed = std::move(*to_fixed_width(t.problem.candidates));
  EXPECT_EQ(view.form, TAMIS_FORM_FIXED_WIDTH);
  EXPECT_EQ(view.indptr, nullptr);
  EXPECT_EQ(ints(view.indices), fixed.indices);
  EXPECT_EQ(ints(view.count), fixed.count);
  EXPECT_EQ(view.indices->shape[1], 5);
  EXPECT_EQ(view.unit, 2);
  EXPECT_EQ(view.query_block, 3);
  EXPECT_EQ(view.index_heads, 2);
  EXPECT_EQ(view.invalid, TAMIS_INVALID_DROP);

  // From a view of itself.
  ASSERT_EQ(tamis_rows_to_csr(&view, TAMIS_PADDING_KEEP, rows, error), TAMIS_OK) << error.text;
  ASSERT_EQ(tamis_rows_view(rows, &view, error), TAMIS_OK);
  const CandidateRows kept = std::move(*to_csr(t.problem.candidates, Padding::kKeep));
  EXPECT_EQ(view.form, TAMIS_FORM_CSR);
  EXPECT_EQ(view.count, nullptr);
  EXPECT_EQ(longs(view.indptr), kept.indptr);
  EXPECT_EQ(ints(view.indices), kept.indices);
  ASSERT_EQ(tamis_rows_to_csr(&view, TAMIS_PADDING_DROP, rows, error), TAMIS_OK) << error.text;
  ASSERT_EQ(tamis_rows_view(rows, &view, error), TAMIS_OK);
  EXPECT_EQ(ints(view.indices), to_csr(t.problem.candidates, Padding::kDrop)->indices);
  EXPECT_EQ(view.indices->shape[0], 16);
}

TEST_F(CConvert, Tiers) {
  const std::vector<int64_t> edges{0, 2, 3, 8};
  ASSERT_EQ(tamis_tiers_make(from(), edges.data(), 4, tiers, error), TAMIS_OK) << error.text;
  const TieredRows expected = std::move(*to_tiers(t.problem.candidates, edges));
  int64_t count = 0;
  tamis_tier out[5] = {};
  ASSERT_EQ(tamis_tiers_view(tiers, nullptr, 0, &count, error), TAMIS_OK);
  ASSERT_EQ(count, 4);
  ASSERT_EQ(tamis_tiers_view(tiers, out, 3, &count, error), TAMIS_OK);
  EXPECT_EQ(out[3].row_ids, nullptr);
  ASSERT_EQ(tamis_tiers_view(tiers, out, 5, &count, error), TAMIS_OK);
  EXPECT_EQ(out[4].row_ids, nullptr);
  for (size_t n = 0; n < 4; ++n) {
    EXPECT_EQ(ints(out[n].row_ids), expected.tiers[n].row_ids);
    EXPECT_EQ(ints(out[n].indices), expected.tiers[n].block.indices);
    EXPECT_EQ(ints(out[n].count), expected.tiers[n].block.count);
    EXPECT_EQ(out[n].indices->shape[1], edges[n]);
  }
  ASSERT_EQ(tamis_rows_from_tiers(out, 4, TAMIS_PADDING_KEEP, from(), rows, error), TAMIS_OK) << error.text;
  ASSERT_EQ(tamis_rows_view(rows, &view, error), TAMIS_OK);
  EXPECT_EQ(ints(view.indices), to_csr(t.problem.candidates, Padding::kKeep)->indices);
  EXPECT_EQ(view.unit, 2);

  int64_t used[4], allocated[4];
  ASSERT_EQ(tamis_tiers_utilization(out, 4, used, allocated, error), TAMIS_OK);
  const TierUtilization share = *utilization(expected.views());
  for (size_t n = 0; n < 4; ++n) {
    EXPECT_EQ(used[n], share.tiers[n].used);
    EXPECT_EQ(allocated[n], share.tiers[n].allocated);
  }
  ASSERT_EQ(tamis_rows_utilization(from(), used, allocated, error), TAMIS_OK);
  EXPECT_EQ(used[0], 16);
  EXPECT_EQ(allocated[0], 17);
  int64_t tier = -1;
  ASSERT_EQ(tamis_tier_of(edges.data(), 4, 4, &tier, error), TAMIS_OK);
  EXPECT_EQ(tier, 3);
}

TEST_F(CConvert, WhatDoesNotFit) {
  const int64_t enough = 5;
  ASSERT_EQ(tamis_rows_to_fixed_width(from(), enough, rows, error), TAMIS_OK);
  ASSERT_EQ(tamis_tiers_make(from(), &enough, 1, tiers, error), TAMIS_OK);
  EXPECT_EQ(tamis_rows_to_fixed_width(from(), 4, rows, error), TAMIS_CAPACITY_EXCEEDED);
  EXPECT_EQ(error.c.row, 1);
  EXPECT_EQ(error.c.value, 5);
  EXPECT_EQ(tamis_rows_view(rows, &view, error), TAMIS_INVALID_ARGUMENT);  // left empty
  EXPECT_TRUE(says(error, "rows: is empty"));
  const int64_t edges[] = {4, 4};
  EXPECT_EQ(tamis_tiers_make(from(), edges, 1, tiers, error), TAMIS_CAPACITY_EXCEEDED);
  int64_t number = 0;
  EXPECT_EQ(tamis_tiers_view(tiers, nullptr, 0, &number, error), TAMIS_INVALID_ARGUMENT);
  EXPECT_EQ(tamis_tiers_make(from(), edges, 2, tiers, error), TAMIS_INVALID_ARGUMENT);
  EXPECT_TRUE(says(error, "edges"));
  EXPECT_EQ(tamis_tier_of(edges, 1, 5, &number, error), TAMIS_CAPACITY_EXCEEDED);
  EXPECT_EQ(tamis_rows_to_fixed_width(from(), -2, rows, error), TAMIS_INVALID_ARGUMENT);
}

TEST_F(CConvert, Refusals) {
  EXPECT_EQ(tamis_rows_to_csr(from(), 2, rows, error), TAMIS_INVALID_ARGUMENT);
  EXPECT_TRUE(says(error, "padding: 2"));
  EXPECT_EQ(tamis_rows_to_csr(nullptr, 0, rows, error), TAMIS_INVALID_ARGUMENT);
  EXPECT_TRUE(says(error, "from: is NULL"));
  EXPECT_EQ(tamis_rows_to_csr(from(), 0, nullptr, error), TAMIS_INVALID_ARGUMENT);
  EXPECT_EQ(tamis_rows_create(nullptr, error), TAMIS_INVALID_ARGUMENT);
  tamis_candidates bad = *from();
  tamis_tensor null = *bad.indices;
  null.data = nullptr;
  bad.indices = &null;
  EXPECT_EQ(tamis_rows_to_csr(&bad, 0, rows, error), TAMIS_INVALID_ARGUMENT);
  EXPECT_TRUE(says(error, "cand_indices: data is NULL"));
  EXPECT_EQ(tamis_rows_utilization(&bad, nullptr, nullptr, error), TAMIS_INVALID_ARGUMENT);
  bad = *from();
  bad.form = TAMIS_FORM_NONE;
  EXPECT_EQ(tamis_rows_to_csr(&bad, 0, rows, error), TAMIS_INVALID_ARGUMENT);
  bad.form = 9;
  EXPECT_EQ(tamis_rows_to_fixed_width(&bad, -1, rows, error), TAMIS_INVALID_ARGUMENT);

  const int64_t shape[] = {1, 2};
  const int32_t zeros[2] = {0, 0};
  int64_t number = 0;
  const tamis_tensor ids = tamis_dense(zeros, TAMIS_I32, 1, shape);
  const tamis_tensor indices = tamis_dense(zeros, TAMIS_I32, 2, shape);
  const tamis_tier same[] = {{&ids, &indices, nullptr}, {&ids, &indices, nullptr}};
  EXPECT_EQ(tamis_rows_from_tiers(same, 1, 0, from(), rows, error), TAMIS_OK) << error.text;
  EXPECT_EQ(tamis_rows_from_tiers(same, 2, 0, from(), rows, error), TAMIS_INVALID_ARGUMENT);
  EXPECT_TRUE(says(error, "row_ids: 0 in tier 1 is held by tier 0"));
  EXPECT_EQ(tamis_rows_from_tiers(same, 1, 0, nullptr, rows, error), TAMIS_INVALID_ARGUMENT);
  EXPECT_EQ(tamis_rows_from_tiers(nullptr, 1, 0, from(), rows, error), TAMIS_INVALID_ARGUMENT);
  EXPECT_EQ(tamis_rows_from_tiers(same, -1, 0, from(), rows, error), TAMIS_INVALID_ARGUMENT);
  const tamis_tier without = {nullptr, &indices, nullptr};
  EXPECT_EQ(tamis_rows_from_tiers(&without, 1, 0, from(), rows, error), TAMIS_INVALID_ARGUMENT);
  EXPECT_TRUE(says(error, "row_ids"));
  EXPECT_EQ(tamis_tiers_utilization(same, 1, nullptr, &number, error), TAMIS_INVALID_ARGUMENT);
  EXPECT_EQ(tamis_tier_of(nullptr, 1, 0, &number, error), TAMIS_INVALID_ARGUMENT);
  EXPECT_EQ(tamis_tier_of(nullptr, 0, 0, nullptr, error), TAMIS_INVALID_ARGUMENT);
  EXPECT_EQ(tamis_tiers_view(tiers, nullptr, 0, &number, error), TAMIS_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace tamis::testing
