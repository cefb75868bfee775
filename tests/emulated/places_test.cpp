// CSR rows without a tier: each bundle has a place of its own in the index set, which follows from the
// offsets. Places must not meet and must lie inside, whatever the offsets say, and memory must grow with the
// entries and not with rows times entries.
#include <gtest/gtest.h>

#include <limits>

#include "cuda/draw.h"
#include "emulated/follow.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

// Long contexts and rows that are mostly short: memory for the longest would be far more than for all.
TestProblem draw_rows(Dice& d, bool small_units) {
  Spec s{.kv_len = {}, .q_len = {}, .head_dim = 8, .v_head_dim = 8, .dtype = DType::kBF16};
  for (int64_t b = d.from(1, 4); b > 0; --b) {
    s.kv_len.push_back(d.one_in(4) ? d.i32(0, 40) : d.i32(3000, 6000));
    s.q_len.push_back(d.i32(0, 40));
  }
  s.kv_heads = d.of<int64_t>({1, 2});
  s.q_heads = s.kv_heads * d.of<int64_t>({1, 2, 3});
  s.page_size = d.of<int64_t>({0, 16, 24, 64});
  TestProblem t(s);
  CandidateView c;
  c.unit = small_units ? d.of<int64_t>({1, 16}) : d.of<int64_t>({1, 3, 16, 48, 64, 128, 300});
  c.query_block = d.of<int64_t>({1, 1, 2, 16});
  c.index_heads = d.of<int64_t>({1, s.kv_heads, s.q_heads});
  c.invalid = OnInvalid::kDrop;
  t.problem.candidates = c;
  Rows rows;
  for (size_t b = 0; b < s.q_len.size(); ++b)
    for (int64_t r = (s.q_len[b] + c.query_block - 1) / c.query_block * c.index_heads; r > 0; --r) {
      const int32_t good = s.kv_len[b] == 0 ? 0 : static_cast<int32_t>((s.kv_len[b] - 1) / c.unit);
      rows.emplace_back(d.one_in(4) ? 0 : d.one_in(10) ? d.from(0, 120) : d.from(0, 9));
      for (int32_t& e : rows.back())
        e = d.one_in(12) ? d.of<int32_t>({-1, -2, INT32_MIN, good + 1, INT32_MAX}) : d.i32(0, good);
    }
  d.one_in(2) ? t.csr(rows) : t.csr64(rows);
  t.problem.mask = {.causal = d.one_in(2),
                    .window = d.one_in(2) ? d.of<int64_t>({1, 16, 17, d.from(1, 90)}) : 0,
                    .sink = d.one_in(3) ? d.from(1, 40) : 0};
  return t;
}

cuda::StepPlan plan_of(const Problem& p, const cuda::StepOptions& o = {}) {
  Result<cuda::StepPlan> plan = cuda::plan_step(p, o);
  if (!plan.ok()) throw std::runtime_error(plan.status().message());
  return std::move(*plan);
}

int64_t offset(const Problem& p, int64_t i) {
  const TensorView& t = p.candidates.indptr;
  return t.dtype == DType::kI64 ? static_cast<const int64_t*>(t.data)[i]
                                : static_cast<const int32_t*>(t.data)[i];
}

// Of a step with good offsets: bundles lie one behind the other, and nothing is written between them.
void expect_places(const Emulated& e, const Problem& p) {
  const cuda::StepPlaces& own = e.plan.places;
  const int64_t lists = e.plan.lists, all = e.plan.plan.capacities.entries;
  int64_t end = 0;
  for (int64_t b = 0; b < e.index.bundles; ++b) {
    if (e.index.count[b] < 0) continue;
    SCOPED_TRACE(::testing::Message() << "bundle " << b);
    const int64_t begin = e.index.bundle[b].begin,
                  room = (offset(p, (b + 1) * lists) - offset(p, b * lists)) * own.an_entry + own.extra;
    ASSERT_EQ(begin, end);
    ASSERT_LE(e.index.count[b], room);
    end = begin + room;
    ASSERT_LE(end, all);
  }
  const auto untouched = [](const auto* from, const auto* to) {
    return std::all_of(reinterpret_cast<const unsigned char*>(from),
                       reinterpret_cast<const unsigned char*>(to), [](auto x) { return x == 0xFF; });
  };
  EXPECT_TRUE(untouched(e.index.blocks + end, e.index.blocks + all));
  EXPECT_TRUE(untouched(e.index.places + end, e.index.places + all));
  EXPECT_TRUE(untouched(e.index.members + end * lists, e.index.members + all * lists));
}

TEST(Places, FollowFromTheOffsets) {
  int64_t own = 0, lists = 0, extra = 0, plain = 0;
  for (int64_t number = first_problem(); number < first_problem() + problems(); ++number) {
    Dice d(number);
    const TestProblem t = draw_rows(d, false);
    cuda::StepOptions o;
    o.block = d.of({0, 16, 32, 64});
    SCOPED_TRACE(::testing::Message() << "TAMIS_CUDA_FIRST=" << number);
    const cuda::StepPlan plan = plan_of(t.problem, o);
    for (const bool in_memory : {false, true}) {
      const Emulated e(t.problem, plan, in_memory);
      expect_like_host(e, t.problem);
      if (HasFailure()) return;
      if (plan.places.an_entry > 0) expect_places(e, t.problem);
      if (HasFailure()) return;
      plain += e.plain;
    }
    if (plan.places.an_entry == 0) continue;
    ++own;
    lists += plan.lists > 1;
    extra += plan.places.extra > 0;
  }
  if (problems() < 100) return;
  EXPECT_GT(own, problems() / 2);
  EXPECT_GT(lists, 0);
  EXPECT_GT(extra, 0);
  EXPECT_GT(plain, 0);
}

// A tier keeps places of one size, and so do rows for which these take no more.
TEST(Places, OfOneSize) {
  TestProblem t({.kv_len = {6000, 6000},
                 .q_len = {9, 9},
                 .head_dim = 8,
                 .v_head_dim = 8,
                 .dtype = DType::kBF16,
                 .page_size = 16});
  Rows rows(18, {5, 900, 4000});
  t.csr(rows);
  EXPECT_EQ(plan_of(t.problem).places.an_entry, 1);
  EXPECT_EQ(plan_of(t.problem).plan.capacities.entries, 54);
  const cuda::StepPlan tier = plan_of(t.problem, {.row_entries = 3});
  EXPECT_EQ(tier.places.an_entry, 0);
  EXPECT_EQ(plan_of(t.problem, {.row_entries = 40}).places.an_entry, 0)
      << "though places of their own take less";
  expect_like_host(Emulated(t.problem, tier), t.problem);
  const cuda::StepPlan less = plan_of(t.problem, {.row_entries = 2});
  EXPECT_EQ(Emulated(t.problem, less).verdict().code(), Code::kCapacityExceeded);
  cuda::StepOptions dense;
  dense.plan.path = Path::kDense;
  EXPECT_EQ(plan_of(t.problem, dense).places.an_entry, 0);
  for (auto& row : rows) row.resize(400, 7);
  t.csr(rows);
  EXPECT_EQ(plan_of(t.problem).places.an_entry, 0) << "more entries than blocks";
}

// Offsets that fall, are negative or lead far away, anywhere: refused, and no bundle leaves the index set.
TEST(Places, OfMalformedOffsets) {
  int64_t met = 0;
  for (int64_t number = first_problem(); number < first_problem() + problems(); ++number) {
    Dice d(number);
    TestProblem t = draw_rows(d, true);
    const cuda::StepPlan plan = plan_of(t.problem);
    const bool wide = t.problem.candidates.indptr.dtype == DType::kI64;
    const int64_t rows = t.problem.candidates.indptr.shape[0] - 1,
                  nnz = t.problem.candidates.indices.shape[0];
    if (plan.places.an_entry == 0 || rows == 0) continue;
    SCOPED_TRACE(::testing::Message() << "TAMIS_CUDA_FIRST=" << number);
    for (int64_t n = d.from(1, 3); n > 0; --n) {
      const int64_t i = d.from(0, rows);
      const int64_t to = wide && d.one_in(2)
                             ? d.of({INT64_MIN, INT64_MAX, INT64_MAX / 3, -(int64_t{1} << 33)})
                             : d.of<int64_t>({-1, INT32_MIN, INT32_MAX, nnz + 1, nnz, 0, i});
      wide ? void(t.indptr64()[i] = to) : void(t.indptr32()[i] = static_cast<int32_t>(to));
    }
    bool bad = offset(t.problem, 0) != 0 || offset(t.problem, rows) > nnz;  // the host wants all of nnz, too
    for (int64_t r = 0; r < rows; ++r) bad |= offset(t.problem, r + 1) < offset(t.problem, r);
    met += bad;
    for (const bool in_memory : {false, true}) {
      const Emulated e(t.problem, plan, in_memory);
      EXPECT_TRUE(e.fence_stands());
      EXPECT_EQ(e.verdict().code(), bad ? Code::kInvalidArgument : Code::kOk);
      for (int64_t b = 0; b < e.index.bundles; ++b) {
        const int64_t begin = e.index.bundle[b].begin;
        ASSERT_GE(begin, 0);
        ASSERT_LE(begin + std::max(e.index.count[b], 0), plan.plan.capacities.entries);
      }
    }
    if (HasFailure()) return;
  }
  if (problems() < 100) return;
  EXPECT_GT(met, problems() / 2);
}

// Rows behind the last query, in a step whose cu_q ends early and in one whose tensors are smaller than the
// plan's: whatever their offsets say, they are none.
TEST(Places, OfFewerRowsThanThePlan) {
  const auto problem = [](const Rows& rows, std::vector<int32_t> q_len) {
    TestProblem t({.kv_len = {6000, 6000, 6000},
                   .q_len = std::move(q_len),
                   .q_heads = 2,
                   .kv_heads = 2,
                   .head_dim = 8,
                   .v_head_dim = 8,
                   .dtype = DType::kBF16,
                   .page_size = 16});
    t.problem.candidates.index_heads = 2;
    t.problem.mask = {.window = 20};
    t.csr(rows);
    return t;
  };
  const Rows few = {{1, 2000}, {7}, {}, {8, 9, 4000}};
  Rows many = few;
  for (int i = 0; i < 6; ++i) many.push_back({5, 600, 70});
  TestProblem larger = problem(many, {1, 1, 3});
  const TestProblem smaller = problem(few, {1, 1, 0});
  const cuda::StepPlan plan = plan_of(larger.problem);
  ASSERT_EQ(plan.places.an_entry, 1);
  for (const bool in_memory : {false, true}) {
    const Emulated e(smaller.problem, plan, in_memory);
    expect_like_host(e, smaller.problem);
    expect_places(e, smaller.problem);
  }
  larger.cu_q()[3] = 2;
  for (const int32_t junk : {INT32_MIN, -1, 3, INT32_MAX}) {
    std::fill(larger.indptr32().begin() + 5, larger.indptr32().end(), junk);
    for (const bool in_memory : {false, true}) {
      const Emulated e(larger.problem, plan, in_memory);
      EXPECT_TRUE(e.verdict().ok());
      for (int32_t b = 0; b < e.index.bundles; ++b) {
        EXPECT_EQ(e.index.count[b] < 0, b >= 4);
        EXPECT_EQ(e.index.bundle[b].begin >= 0 &&
                      e.index.bundle[b].begin + std::max(e.index.count[b], 0) <= plan.plan.capacities.entries,
                  true);
      }
    }
  }
  // More queries than there are rows for: offsets past the tensor are not read.
  const TestProblem lacking = problem(few, {1, 1, 3});
  EXPECT_EQ(Emulated(lacking.problem, plan).verdict().code(), Code::kInvalidArgument);
}

// What the plan was not told of: another unit or mask may bring more blocks than a place has room for.
TEST(Places, OfAnotherMaskOrUnit) {
  TestProblem t({.kv_len = {6000},
                 .q_len = {9},
                 .head_dim = 8,
                 .v_head_dim = 8,
                 .dtype = DType::kBF16,
                 .page_size = 16});
  t.csr(Rows(9, {5, 90}));
  const cuda::StepPlan plan = plan_of(t.problem, {.block = 16});
  ASSERT_EQ(plan.places.an_entry, 1);
  for (const bool in_memory : {false, true}) {
    Problem p = t.problem;
    p.mask.window = 500;
    const Emulated window(p, plan, in_memory);
    EXPECT_EQ(window.verdict().code(), Code::kCapacityExceeded);
    EXPECT_TRUE(window.fence_stands());
    p = t.problem;
    p.candidates.unit = 64;
    const Emulated unit(p, plan, in_memory);
    EXPECT_EQ(unit.verdict().code(), Code::kCapacityExceeded);
    EXPECT_TRUE(unit.fence_stands());
  }
}

TEST(Places, HoldAsManyEntriesAsThePlan) {
  TestProblem t({.kv_len = {6000}, .q_len = {3}, .head_dim = 8, .v_head_dim = 8, .dtype = DType::kBF16});
  t.csr(Rows(3, {5, 90}));
  const cuda::StepPlan plan = plan_of(t.problem);
  ASSERT_EQ(plan.places.listed, 6);
  t.csr({{5, 90}, {5, 90}, {5, 90, 91}});
  const auto at = [](int64_t address) { return reinterpret_cast<void*>(address); };  // nobody looks there
  const int64_t index = 512 + plan.bytes.control, scratch = index + plan.bytes.index;
  const Status s = cuda::normalize(plan, t.problem, {at(512), at(index), at(scratch), plan.bytes}, nullptr);
  EXPECT_EQ(s.code(), Code::kCapacityExceeded);
  EXPECT_TRUE(says(s, "cand_indices: 7 entries, the plan holds 6"));
}

// Prefill: 20000 rows, a million entries.
TEST(Places, OfManyRows) {
  constexpr int32_t kRows = 20000, kLength = 65536;
  TestProblem t({.kv_len = {kLength},
                 .q_len = {kRows},
                 .head_dim = 8,
                 .v_head_dim = 8,
                 .dtype = DType::kBF16,
                 .page_size = 64,
                 .q = [](auto...) { return 0.0; },
                 .k = [](auto...) { return 0.0; },
                 .v = [](auto...) { return 0.0; }});
  Dice d(5);
  Rows rows(kRows);
  int64_t entries = 0;
  for (auto& row : rows) {
    row.resize(d.one_in(100) ? d.from(500, 1500) : d.from(0, 80));
    for (int32_t& e : row) e = d.one_in(20) ? -1 : d.i32(0, kLength - 1);
    entries += static_cast<int64_t>(row.size());
  }
  ASSERT_GT(entries, 950000);
  t.csr(rows);
  t.problem.mask = {.causal = true, .window = 128, .sink = 4};
  const cuda::StepPlan plan = plan_of(t.problem);
  const int64_t room = entries + kRows * (4 + 1);  // of the window at most 4 blocks, of the sink one
  EXPECT_EQ(plan.plan.capacities.entries, room);
  EXPECT_LE(plan.bytes.index, room * 16 + kRows * 112 + 9 * 256)
      << "memory for the entries, and for the rows";
  const Emulated e(t.problem, plan);
  expect_like_host(e, t.problem);
  expect_places(e, t.problem);
}

}  // namespace
}  // namespace tamis
