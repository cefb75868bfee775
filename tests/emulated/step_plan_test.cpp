// plan_step(): what can be said of a device step without a device.
#include <gtest/gtest.h>

#include "attention/step_support.h"
#include "cuda/steps.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

TestProblem decode(int64_t requests, int64_t query_block = 1) {
  TestProblem t(
      {.kv_len = std::vector<int32_t>(static_cast<size_t>(requests), 4096),
       .q_len = std::vector<int32_t>(static_cast<size_t>(requests), static_cast<int32_t>(query_block)),
       .q_heads = 8,
       .kv_heads = 2,
       .head_dim = 64,
       .v_head_dim = 64,
       .dtype = DType::kBF16,
       .page_size = 16,
       .k = [](auto...) { return 0.0; },
       .v = [](auto...) { return 0.0; }});
  t.problem.candidates.unit = 16;
  t.problem.candidates.index_heads = 2;
  t.problem.candidates.query_block = query_block;
  Rows rows(static_cast<size_t>(requests * 2));
  for (auto& row : rows)
    for (int32_t e = 0; e < 256; ++e) row.push_back(e);
  t.fixed(rows);
  return t;
}

TEST(StepPlan, TheBudgetIsOfScratch) {
  const TestProblem t = decode(4, 16);
  cuda::StepOptions free;
  free.plan.splits = 8;
  const Result<cuda::StepPlan> all = cuda::plan_step(t.problem, free);
  ASSERT_TRUE(all.ok()) << all.status().message();
  for (const int64_t share : {2, 3, 5, 100}) {
    cuda::StepOptions o = free;
    o.plan.workspace_budget = all->bytes.scratch / share;
    const Result<cuda::StepPlan> less = cuda::plan_step(t.problem, o);
    ASSERT_TRUE(less.ok()) << less.status().message();
    EXPECT_TRUE(less->bytes.scratch <= o.plan.workspace_budget || less->parts == 0) << "share " << share;
    EXPECT_LT(less->plan.splits, 8);
    EXPECT_NE(less->plan.reason.find("budget"), std::string::npos);
    o.plan.fallback = Fallback::kRefuse;
    EXPECT_EQ(cuda::plan_step(t.problem, o).status().code(), Code::kWorkspaceTooSmall);
  }
  free.plan.workspace_budget = all->bytes.scratch;
  EXPECT_EQ(cuda::plan_step(t.problem, free)->plan.splits, 8) << "just enough";
}

TEST(StepPlan, TheBudgetOfBalancedAndInvariantPlans) {
  const TestProblem t = decode(4, 16);
  for (const bool invariant : {false, true}) {
    cuda::StepOptions o;
    o.plan.batch_invariant = invariant;
    const Result<cuda::StepPlan> all = cuda::plan_step(t.problem, o);
    ASSERT_TRUE(all.ok());
    ASSERT_GT(all->parts, 0);
    o.plan.workspace_budget = all->bytes.scratch / 4;
    const Result<cuda::StepPlan> less = cuda::plan_step(t.problem, o);
    ASSERT_TRUE(less.ok());
    EXPECT_TRUE(less->bytes.scratch <= o.plan.workspace_budget || less->parts == 0);
    EXPECT_LT(less->parts, all->parts);
  }
}

// A problem of CSR rows in extents alone: nothing of it is allocated, since plan_step reads no array.
struct Extents {
  int64_t rows, entries, index_heads, query_block;
};
TestProblem csr(const Extents& e) {
  TestProblem t = decode(1);
  const int64_t blocks = e.rows / e.index_heads;
  Problem& p = t.problem;
  p.query.q.shape[0] = blocks * e.query_block;
  p.cache.page_table.shape[1] = 131072 / 16;
  p.candidates = {.form = CandidateForm::kCsr, .unit = 16, .query_block = e.query_block};
  p.candidates.index_heads = e.index_heads;
  static const int32_t nothing = 0;
  p.candidates.indptr = dense_view(&nothing, DType::kI32, {e.rows + 1});
  p.candidates.indices = dense_view(&nothing, DType::kI32, {e.entries});
  return t;
}

cuda::StepPlan plan_of(const TestProblem& t, const cuda::StepOptions& o = {}) {
  Result<cuda::StepPlan> plan = cuda::plan_step(t.problem, o);
  if (!plan.ok()) throw std::runtime_error(plan.status().message());
  return std::move(*plan);
}

// Memory of a step of prefill: of the index set 16 bytes an entry and some 100 a bundle, of scratch a task a
// group, and partial states as for the few rows that a step of decode has.
TEST(StepPlan, PrefillTakesMemoryForItsEntries) {
  const int64_t entries = 10'000'000;
  for (const int64_t heads : {1, 2}) {
    TestProblem t = csr({100'000, entries, heads, 1});
    const cuda::StepPlan plan = plan_of(t);
    EXPECT_EQ(plan.bundles, 100'000);
    EXPECT_EQ(plan.lists, 1);
    EXPECT_EQ(plan.plan.capacities.entries, entries);
    EXPECT_EQ(plan.plan.capacities.row_entries, 131072 / plan.plan.block) << "of one row, as long as any";
    EXPECT_LE(plan.bytes.index, 16 * entries + 100'000 * 112 + 9 * 256);
    EXPECT_EQ(plan.groups, heads == 1 ? 200'000 : 100'000);
    EXPECT_LE(plan.tasks, plan.groups + plan.plan.shares);
    EXPECT_LE(plan.bytes.scratch,
              plan.tasks * 32 + plan.parts * plan.plan.capacities.group_rows * (64 * 4 + 12) + 5 * 256);
    t.problem.mask = {.window = 256, .sink = 4};
    const int64_t extra = (256 + 1) / plan.plan.block + 2 + 1;
    EXPECT_EQ(plan_of(t).plan.capacities.entries, entries + 100'000 * extra);
  }
}

TEST(StepPlan, PrefillOfSeveralListsAndQueries) {
  const TestProblem t = csr({100'000, 10'000'000, 8, 64});
  const cuda::StepPlan plan = plan_of(t, {.block = 16});
  EXPECT_EQ(plan.bundles, 25'000);
  EXPECT_EQ(plan.lists, 4);
  EXPECT_EQ(plan.column_tiles, 16);
  EXPECT_LE(plan.bytes.index, 40 * int64_t{10'000'000} + 25'000 * 112 + 9 * 256);
  // Counters of arrivals too are as many as rows can be split, not as there are rows.
  EXPECT_LE(plan.bytes.scratch, plan.tasks * 32 + plan.parts * (256 * (64 * 4 + 8) + 16 * 4) + 5 * 256);
}

// Any row may be the one that is long, but not all of them.
TEST(StepPlan, PrefillWithInvariantSplits) {
  cuda::StepOptions o;
  o.plan.batch_invariant = true;
  const cuda::StepPlan plan = plan_of(csr({100'000, 10'000'000, 1, 1}), o);
  EXPECT_GT(plan.plan.max_parts, 8);
  EXPECT_EQ(plan.parts, 2 * 10'000'000 / plan.plan.min_part) << "two KV heads; no part is shorter";
  EXPECT_EQ(plan.tasks, plan.groups + plan.parts);
}

// Numbers above 2^31 and 2^32.
TEST(StepPlan, EntriesBeyondThirtyTwoBits) {
  for (const int64_t entries : {int64_t{1} << 31, (int64_t{1} << 32) + 1, int64_t{10'000'000'000}}) {
    const cuda::StepPlan plan = plan_of(csr({10'000'000, entries, 1, 1}));
    EXPECT_EQ(plan.plan.capacities.entries, entries);
    EXPECT_EQ(plan.places.listed, entries);
    EXPECT_GT(plan.bytes.index, 16 * entries + 10'000'000 * 80);
  }
}

TEST(StepPlan, OptionsThatAreNone) {
  const TestProblem t = decode(2);
  const auto refused = [&t](const char* name, const cuda::StepOptions& o) {
    const Status s = cuda::plan_step(t.problem, o).status();
    EXPECT_STREQ(code_name(s.code()), "invalid_argument") << name;
    EXPECT_EQ(s.message().rfind(std::string(name) + ": ", 0), 0u) << s.message();
  };
  refused("ring", {.ring = static_cast<cuda::Ring>(9)});
  refused("load", {.load = static_cast<cuda::Load>(9)});
  refused("engine", {.engine = static_cast<cuda::Engine>(9)});
  refused("path", {.plan = {.path = static_cast<Path>(9)}});
  refused("fallback", {.plan = {.fallback = static_cast<Fallback>(9)}});
  for (const double density : {kNaN, kInf, 1.5}) refused("density", {.density = density});
  for (const double density : {-kInf, -1.0, 0.0, 1.0})
    EXPECT_TRUE(cuda::plan_step(t.problem, {.density = density}).ok()) << density;
}

// In float32 the scale is multiplied by log2(e).
TEST(StepPlan, ScalesThatFloatsHold) {
  TestProblem t = decode(2);
  for (const cuda::Engine engine : {cuda::Engine::kDecode, cuda::Engine::kPrefill})
    for (const double sign : {1, -1}) {
      for (const double scale : {2.37e38, 3.4e38, 3.5e38, 1e300, 1e-39}) {
        t.problem.score.scale = sign * scale;
        const Status s = cuda::plan_step(t.problem, {.engine = engine}).status();
        EXPECT_STREQ(code_name(s.code()), "unsupported") << sign * scale;
        EXPECT_EQ(s.message().rfind("scale: ", 0), 0u) << s.message();
      }
      for (const double scale : {2.35e38, 1e-37, 0.0}) {
        t.problem.score.scale = sign * scale;
        EXPECT_TRUE(cuda::plan_step(t.problem, {.engine = engine}).ok()) << sign * scale;
      }
    }
}

// Strides whose products would not fit 64 bits.
TEST(StepPlan, StridesBeyondAnyMemory) {
  const auto refused = [](const char* name, TestProblem&& t, auto tensor, int axis) {
    for (const int64_t stride : {INT64_MAX - 7, INT64_MIN, int64_t{1} << 60, -(int64_t{1} << 60)}) {
      tensor(t.problem).stride[axis] = stride;
      const Status s = cuda::plan_step(t.problem).status();
      EXPECT_STREQ(code_name(s.code()), "invalid_argument") << name << ", " << stride;
      EXPECT_EQ(s.message().rfind(std::string(name) + ": ", 0), 0u) << s.message();
    }
  };
  for (const int axis : {0, 1}) {
    refused(
        "q", decode(2), [](Problem& p) -> TensorView& { return p.query.q; }, axis);
    refused(
        "k", decode(2), [](Problem& p) -> TensorView& { return p.cache.k; }, axis);
    refused(
        "v", decode(2), [](Problem& p) -> TensorView& { return p.cache.v; }, axis);
  }
  refused(
      "page_table", decode(2), [](Problem& p) -> TensorView& { return p.cache.page_table; }, 0);
  refused(
      "cand_indices", decode(2), [](Problem& p) -> TensorView& { return p.candidates.indices; }, 0);

  std::vector<float> out(2 * 8 * 64);
  OutView view;
  view.out = mutable_view(out.data(), DType::kF32, {2, 8, 64});
  view.lse = mutable_view(out.data(), DType::kF32, {2, 8});
  EXPECT_TRUE(cuda::supports(view).ok());
  for (MutableTensorView* t : {&view.out, &view.lse}) {
    const int64_t stride = std::exchange(t->stride[0], INT64_MAX - 7);
    EXPECT_STREQ(code_name(cuda::supports(view).code()), "invalid_argument");
    t->stride[0] = stride;
  }
}

TEST(StepPlan, BuffersThatOverlap) {
  const cuda::StepPlan plan = plan_of(decode(2));
  const auto at = [](int64_t address) { return reinterpret_cast<void*>(address); };
  const auto judged = [&](int64_t control, int64_t index, int64_t scratch) {
    cuda::StepSizes bytes = plan.bytes;
    bytes.control += 1 << 20;  // there is more than a step uses
    return cuda::check_buffers(plan, {at(control), at(index), at(scratch), bytes});
  };
  const int64_t base = 1 << 24, index = plan.bytes.index, scratch = plan.bytes.scratch;
  EXPECT_TRUE(judged(base, base + plan.bytes.control, base + plan.bytes.control + index).ok());
  EXPECT_TRUE(judged(base + index + scratch, base + scratch, base).ok());
  const struct {
    const char* words;
    Status status;
  } overlaps[] = {
      {"index: overlaps control", judged(base, base, base + (1 << 28))},
      {"scratch: overlaps control", judged(base, base + (1 << 28), base)},
      {"scratch: overlaps index", judged(base - (1 << 22), base, base)},
      {"scratch: overlaps index", judged(base - (1 << 22), base, base + (index - 1) / 256 * 256)},
      {"scratch: overlaps index", judged(base - (1 << 22), base + (scratch - 1) / 256 * 256, base)},
      {"scratch: overlaps control", judged(base + (scratch - 1) / 256 * 256, base + (1 << 28), base)}};
  for (const auto& o : overlaps) {
    EXPECT_STREQ(code_name(o.status.code()), "invalid_argument") << o.words;
    EXPECT_TRUE(says(o.status, o.words)) << o.status.message();
  }
}

TEST(StepPlan, RowsMustFitTheIndexHeads) {
  TestProblem t = decode(2);
  t.problem.candidates.indices.shape[0] = 3;
  EXPECT_EQ(cuda::plan_step(t.problem).status().code(), Code::kInvalidArgument);
  t.problem.candidates.indices.shape[0] = 0;
  EXPECT_EQ(cuda::plan_step(t.problem).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace tamis
