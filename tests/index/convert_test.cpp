// Conversions of raw rows: exact there and back, nothing cut, nothing that comes in believed.
#include "tamis/convert.h"

#include <gtest/gtest.h>

#include <limits>

#include "support/expect.h"

namespace tamis {
namespace {

using testing::says;
using Rows = std::vector<std::vector<int32_t>>;

CandidateRows csr_of(const Rows& rows) {
  CandidateRows out{.indptr = {0}, .indices = {}};
  for (const auto& row : rows) {
    out.indices.insert(out.indices.end(), row.begin(), row.end());
    out.indptr.push_back(std::ssize(out.indices));
  }
  return out;
}

// Rows of one, two, ... entries that tell where they are.
std::vector<int32_t> counted(int32_t row, int64_t length) {
  std::vector<int32_t> entries;
  for (int32_t i = 0; i < length; ++i) entries.push_back(1000 * row + i);
  return entries;
}

template <class T>
void expect_code(const Result<T>& result, Code code) {
  EXPECT_STREQ(code_name(result.status().code()), code_name(code)) << result.status().message();
}

template <class T>
Status refusal(const Result<T>& result, Code code) {
  expect_code(result, code);
  return result.status();
}

void expect_same(const Result<CandidateRows>& got, const CandidateRows& want) {
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(got->indptr, want.indptr);
  EXPECT_EQ(got->indices, want.indices);
}

// Unsorted, repeated, padded inside, out of range, empty.
const Rows kMixed{{5, 5, -1, 3}, {}, {-1}, {INT32_MAX, INT32_MIN, 0, -2, 7}, {9}};

TEST(Convert, FixedWidthHoldsTheRowAndThenPadding) {
  const CandidateRows csr = csr_of({{4, 4, -1}, {}, {7}});
  const auto fixed = to_fixed_width(csr.view({}));
  ASSERT_TRUE(fixed.ok());
  EXPECT_EQ(fixed->rows, 3);
  EXPECT_EQ(fixed->width, 3);
  EXPECT_EQ(fixed->indices, (std::vector<int32_t>{4, 4, -1, -1, -1, -1, 7, -1, -1}));
  EXPECT_EQ(fixed->count, (std::vector<int32_t>{3, 0, 1}));
  const auto wider = to_fixed_width(csr.view({}), 5);
  ASSERT_TRUE(wider.ok());
  EXPECT_EQ(wider->width, 5);
  expect_same(to_csr(wider->view({}), Padding::kKeep), csr);
}

TEST(Convert, RoundTripsKeepEveryBit) {
  const CandidateRows csr = csr_of(kMixed);
  const auto fixed = to_fixed_width(csr.view({}));
  ASSERT_TRUE(fixed.ok());
  expect_same(to_csr(fixed->view({}), Padding::kKeep), csr);
  const int64_t edges[] = {0, 1, 2, 5, 8};
  const auto tiers = to_tiers(csr.view({}), edges);
  ASSERT_TRUE(tiers.ok());
  ASSERT_EQ(tiers->tiers.size(), 5u);
  EXPECT_EQ(tiers->tiers[0].row_ids, (std::vector<int32_t>{1}));
  EXPECT_EQ(tiers->tiers[1].row_ids, (std::vector<int32_t>{2, 4}));
  EXPECT_TRUE(tiers->tiers[2].row_ids.empty());
  EXPECT_EQ(tiers->tiers[3].row_ids, (std::vector<int32_t>{0, 3}));
  EXPECT_EQ(tiers->tiers[3].block.indices,
            (std::vector<int32_t>{5, 5, -1, 3, -1, INT32_MAX, INT32_MIN, 0, -2, 7}));
  expect_same(to_csr(tiers->views(), Padding::kKeep), csr);
  expect_same(to_csr(to_tiers(fixed->view({}), edges)->views(), Padding::kKeep), csr);
}

TEST(Convert, DroppingPaddingKeepsTheCandidates) {
  const CandidateRows bare = csr_of({{5, 5, 3}, {}, {}, {INT32_MAX, INT32_MIN, 0, -2, 7}, {9}});
  const CandidateRows csr = csr_of(kMixed);
  expect_same(to_csr(csr.view({}), Padding::kDrop), bare);
  const auto fixed = to_fixed_width(csr.view({}));
  ASSERT_TRUE(fixed.ok());
  expect_same(to_csr(fixed->view({}), Padding::kDrop), bare);
  CandidateView uncounted = fixed->view({});
  uncounted.count = {};
  expect_same(to_csr(uncounted, Padding::kDrop), bare);
  const auto all = to_csr(uncounted, Padding::kKeep);
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->indptr, (std::vector<int64_t>{0, 5, 10, 15, 20, 25})) << "without counts a row is K entries";
}

TEST(Convert, PoliciesOfLikeStay) {
  const auto fixed = to_fixed_width(csr_of({{1}}).view({}));
  ASSERT_TRUE(fixed.ok());
  const CandidateView view =
      fixed->view({.form = CandidateForm::kCsr, .unit = 16, .query_block = 4, .invalid = OnInvalid::kDrop});
  EXPECT_EQ(view.form, CandidateForm::kFixedWidth);
  EXPECT_FALSE(view.indptr.present());
  EXPECT_EQ(view.unit, 16);
  EXPECT_EQ(view.query_block, 4);
  EXPECT_EQ(view.invalid, OnInvalid::kDrop);
}

TEST(Convert, StridedAnd32BitViews) {
  const std::vector<int32_t> spread{7, -9, 3, -9, 3, -9}, offsets{0, 1, 3};
  CandidateView c{.form = CandidateForm::kCsr};
  c.indptr = dense_view(offsets.data(), DType::kI32, {3});
  c.indices = dense_view(spread.data(), DType::kI32, {3});
  c.indices.stride[0] = 2;
  expect_same(to_csr(c, Padding::kKeep), csr_of({{7}, {3, 3}}));
  CandidateView f{.form = CandidateForm::kFixedWidth};
  f.indices = dense_view(spread.data(), DType::kI32, {3, 2});  // transposed: columns of 3 rows
  f.indices.shape = {2, 3};
  f.indices.stride = {1, 2};
  expect_same(to_csr(f, Padding::kKeep), csr_of({{7, 3, 3}, {-9, -9, -9}}));
  EXPECT_EQ(to_fixed_width(f)->indices, (std::vector<int32_t>{7, 3, 3, -9, -9, -9}));
}

// docs/semantics.md section 14.
TEST(Convert, WorkedTiers) {
  const int64_t two[] = {128, 256};
  EXPECT_EQ(*tier_of(two, 129), 1);
  EXPECT_EQ(*tier_of(two, 128), 0);
  EXPECT_EQ(*tier_of(two, 0), 0);
  const auto one = to_tiers(csr_of({counted(0, 129)}).view({}), two);
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(one->tiers[0].block.rows, 0);
  EXPECT_EQ(one->tiers[1].block.width, 256);
  EXPECT_EQ(std::count(one->tiers[1].block.indices.begin(), one->tiers[1].block.indices.end(), -1), 127);
  expect_same(to_csr(one->views(), Padding::kDrop), csr_of({counted(0, 129)}));

  const CandidateRows rows = csr_of({counted(0, 64), counted(1, 100), counted(2, 129)});
  const auto fixed = utilization(to_fixed_width(rows.view({}), 256)->view({}));
  ASSERT_TRUE(fixed.ok());
  EXPECT_EQ(fixed->used, 293);
  EXPECT_EQ(fixed->allocated, 768);
  EXPECT_NEAR(100 * fixed->share(), 38.15, 0.005);
  const int64_t three[] = {64, 128, 256};
  const auto tiers = to_tiers(rows.view({}), three);
  ASSERT_TRUE(tiers.ok());
  const auto used = utilization(tiers->views());
  ASSERT_TRUE(used.ok());
  EXPECT_EQ(used->total.used, 293);
  EXPECT_EQ(used->total.allocated, 448);
  EXPECT_NEAR(100 * used->total.share(), 65.40, 0.005);
  EXPECT_EQ(used->tiers[0].share(), 1);
  EXPECT_EQ(used->tiers[1].share(), 100. / 128);
  EXPECT_EQ(used->tiers[2].share(), 129. / 256);
}

TEST(Convert, UtilizationCountsWhatNamesACandidate) {
  const CandidateRows csr = csr_of(kMixed);
  const auto bare = utilization(csr.view({}));
  ASSERT_TRUE(bare.ok());
  EXPECT_EQ(bare->used, 9);
  EXPECT_EQ(bare->allocated, 11);
  const auto fixed = utilization(to_fixed_width(csr.view({}), 6)->view({}));
  ASSERT_TRUE(fixed.ok());
  EXPECT_EQ(fixed->used, 9);
  EXPECT_EQ(fixed->allocated, 30);
  EXPECT_EQ(utilization(csr_of({}).view({}))->share(), 0);
}

TEST(Convert, NothingIsCut) {
  const CandidateRows csr = csr_of({{1}, {2, 3, 4}});
  Status s = refusal(to_fixed_width(csr.view({}), 2), Code::kCapacityExceeded);
  EXPECT_EQ(s.where().row, 1);
  EXPECT_EQ(s.where().value, 3);
  EXPECT_EQ(s.where().limit, 3);
  const int64_t edges[] = {1, 2};
  s = refusal(to_tiers(csr.view({}), edges), Code::kCapacityExceeded);
  EXPECT_EQ(s.where().row, 1);
  EXPECT_TRUE(says(s, "the largest tier holds 2"));
  s = refusal(tier_of(edges, 3), Code::kCapacityExceeded);
  EXPECT_EQ(s.where().value, 3);
  expect_code(to_tiers(csr.view({}), {}), Code::kCapacityExceeded);
  EXPECT_TRUE(to_tiers(csr_of({}).view({}), {}).ok());
}

TEST(Convert, BadOffsetsAndCounts) {
  const std::vector<int32_t> entries{1, 2, 3};
  const auto csr = [&](const std::vector<int64_t>& offsets) {
    CandidateView c{.form = CandidateForm::kCsr};
    c.indptr = dense_view(offsets.data(), DType::kI64, {std::ssize(offsets)});
    c.indices = dense_view(entries.data(), DType::kI32, {3});
    return to_csr(c, Padding::kKeep);
  };
  for (const std::vector<int64_t>& offsets : std::vector<std::vector<int64_t>>{
           {0, 5, 3}, {0, 2}, {0, 4}, {1, 3}, {-1, 3}, {}, {0, int64_t{1} << 40, 3}, {0, -5, 3}})
    EXPECT_TRUE(says(refusal(csr(offsets), Code::kInvalidArgument), "cand_indptr"));

  for (const int32_t bad : {-1, 4, INT32_MIN, INT32_MAX}) {
    const std::vector<int32_t> counts{bad};
    CandidateView f{.form = CandidateForm::kFixedWidth};
    f.indices = dense_view(entries.data(), DType::kI32, {1, 3});
    f.count = dense_view(counts.data(), DType::kI32, {1});
    const Status s = refusal(to_csr(f, Padding::kKeep), Code::kInvalidArgument);
    EXPECT_TRUE(says(s, "cand_count"));
    EXPECT_EQ(s.where().value, bad);
    f.count = dense_view(counts.data(), DType::kI32, {0});
    EXPECT_TRUE(says(refusal(to_csr(f, Padding::kKeep), Code::kInvalidArgument), "cand_count"));
  }
}

TEST(Convert, BadViews) {
  expect_code(to_csr(CandidateView::all(), Padding::kKeep), Code::kInvalidArgument);
  expect_code(to_csr(CandidateView{}, Padding::kKeep), Code::kInvalidArgument);
  const CandidateRows good = csr_of({{1}});
  const auto broken = [&](auto change) {
    CandidateView c = good.view({});
    change(c);
    expect_code(to_csr(c, Padding::kKeep), Code::kInvalidArgument);
    expect_code(utilization(c), Code::kInvalidArgument);
  };
  broken([](CandidateView& c) { c.indptr = {}; });
  broken([](CandidateView& c) { c.indices = {}; });
  broken([](CandidateView& c) { c.indices.data = nullptr; });
  broken([](CandidateView& c) { c.indices.dtype = DType::kI64; });
  broken([](CandidateView& c) { c.indptr.dtype = DType::kF32; });
  broken([](CandidateView& c) { c.indptr.rank = 2; });
  broken([](CandidateView& c) { c.indices.shape[0] = -1; });
  broken([](CandidateView& c) { c.count = c.indices; });
}

TEST(Convert, BadEdgesAndWidths) {
  const CandidateRows csr = csr_of({{1}});
  for (const std::vector<int64_t>& edges :
       std::vector<std::vector<int64_t>>{{4, 4}, {8, 4}, {-1, 4}, {4, int64_t{1} << 31}}) {
    EXPECT_TRUE(says(refusal(to_tiers(csr.view({}), edges), Code::kInvalidArgument), "edges"));
    EXPECT_TRUE(says(refusal(tier_of(edges, 1), Code::kInvalidArgument), "edges"));
  }
  const int64_t four[] = {4};
  expect_code(tier_of(four, -1), Code::kInvalidArgument);
  expect_code(to_fixed_width(csr.view({}), -1), Code::kInvalidArgument);
  expect_code(to_fixed_width(csr.view({}), int64_t{1} << 31), Code::kInvalidArgument);
  const CandidateRows four_rows = csr_of({{1}, {}, {}, {}});
  expect_code(to_fixed_width(four_rows.view({}), std::numeric_limits<int32_t>::max()),
              Code::kCapacityExceeded);
}

// Row ids are a permutation over all tiers, or nothing is made of them.
TEST(Convert, BadRowIds) {
  const int64_t edges[] = {1, 2};
  const CandidateRows csr = csr_of({{1}, {2, 3}, {4}});
  for (const auto& [tier, at, id] : std::vector<std::array<int32_t, 3>>{
           {0, 0, 3}, {0, 0, -1}, {0, 0, INT32_MIN}, {0, 0, 1}, {0, 1, 0}, {1, 0, 2}, {1, 0, INT32_MAX}}) {
    auto tiers = to_tiers(csr.view({}), edges);
    ASSERT_TRUE(tiers.ok());
    tiers->tiers[tier].row_ids[at] = id;
    const Status s = refusal(to_csr(tiers->views(), Padding::kKeep), Code::kInvalidArgument);
    EXPECT_TRUE(says(s, "row_ids"));
    EXPECT_EQ(s.where().value, id);
    expect_code(utilization(tiers->views()), Code::kInvalidArgument);
  }
  auto tiers = to_tiers(csr.view({}), edges);
  ASSERT_TRUE(tiers.ok());
  tiers->tiers[0].row_ids.pop_back();
  EXPECT_TRUE(says(refusal(to_csr(tiers->views(), Padding::kKeep), Code::kInvalidArgument), "row_ids"));
  tiers->tiers[0].row_ids = {0, 2};
  tiers->tiers[1].block.count[0] = 3;
  EXPECT_TRUE(says(refusal(to_csr(tiers->views(), Padding::kKeep), Code::kInvalidArgument), "cand_count"));
  tiers->tiers[1].block.count[0] = 2;
  std::vector<TierView> turned = tiers->views();
  std::swap(turned[0], turned[1]);
  expect_same(to_csr(turned, Padding::kKeep), csr);
}

}  // namespace
}  // namespace tamis
