// What run() may write and read: outputs in any strides and dtypes, a workspace of the exact size, K, V and q
// that end where memory ends.
#include <gtest/gtest.h>

#include "attention/runs.h"
#include "support/mapped.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

// Two requests, private lists, odd sizes; split in three.
TestProblem sample(DType dtype = DType::kF32, Placement placement = Placement::kDense,
                   int64_t head_dim = 24) {
  TestProblem t({.kv_len = {150, 40},
                 .q_len = {3, 2},
                 .q_heads = 4,
                 .kv_heads = 2,
                 .head_dim = head_dim,
                 .v_head_dim = 19,
                 .dtype = dtype,
                 .page_size = 16,
                 .placement = placement,
                 .q = q_noise(1),
                 .k = kv_noise(2),
                 .v = kv_noise(3)});
  t.problem.candidates.index_heads = 4;
  Rows rows(20);
  for (int32_t r = 0; r < 20; ++r)
    for (int32_t token = r % 4; token < (r < 12 ? 140 : 36); token += 1 + r % 3) rows[r].push_back(token);
  t.csr(rows);
  return t;
}

constexpr ForwardOptions kSplit{.plan = {.path = Path::kDirect, .splits = 3}};

TEST(Outputs, AnyStridesAndDTypes) {
  Context context(1);
  const TestProblem t = sample();
  const reference::Answer want = answer(t.problem);
  const Tolerance tolerance = tolerance_of(t.problem, want);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16})
    for (const Placement how :
         {Placement::kDense, Placement::kGaps, Placement::kSpread, Placement::kReversed})
      for (const ForwardOptions& o : {kSplit, ForwardOptions{}})
        EXPECT_EQ(complaint(run_all(t.problem, o, context, dtype, how), want, tolerance, dtype), "")
            << dtype_name(dtype) << " placement " << static_cast<int>(how);
}

// f16 and bf16 results are the f32 result, rounded once.
TEST(Outputs, AreRoundedOnce) {
  Context context(1);
  const TestProblem t = sample();
  const Ran wide = run_all(t.problem, kSplit, context);
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const Ran narrow = run_all(t.problem, kSplit, context, dtype);
    ASSERT_EQ(narrow.out.size(), wide.out.size());
    for (size_t i = 0; i < wide.out.size(); ++i) {
      const double rounded =
          dtype == DType::kF16 ? f16_to_float(to_f16(wide.out[i])) : bf16_to_float(to_bf16(wide.out[i]));
      ASSERT_EQ(narrow.out[i], rounded) << i;
    }
    EXPECT_TRUE(same_bits(narrow.lse, wide.lse));
  }
}

TEST(Outputs, LseMayBeAbsent) {
  Context context(1);
  const TestProblem t = sample();
  const Ran both = run_all(t.problem, kSplit, context);
  Guarded out(DType::kF32, {5, 4, 19});
  ASSERT_TRUE(forward(t.problem, kSplit, {out.view(), {}}, context).ok());
  EXPECT_TRUE(same_bits(out.values(), both.out));
  EXPECT_TRUE(out.fences_stand());
}

TEST(Outputs, WrongOnesAreRefused) {
  Context context(1);
  const TestProblem t = sample();
  Guarded out(DType::kF32, {5, 4, 19}), lse(DType::kF32, {5, 4});
  Guarded narrow(DType::kF32, {5, 4, 18}), few(DType::kF32, {4, 4, 19}), flat(DType::kF32, {20, 19});
  Guarded heads(DType::kF32, {5, 3, 19}), ints(DType::kI32, {5, 4, 19}), doubles(DType::kF64, {5, 4, 19});
  Guarded half_lse(DType::kF16, {5, 4}), long_lse(DType::kF32, {6, 4}), flat_lse(DType::kF32, {20});
  const auto refuses = [&](const OutView& view, const char* name) {
    const Status s = forward(t.problem, kSplit, view, context);
    EXPECT_EQ(s.code(), Code::kInvalidArgument);
    EXPECT_EQ(s.message().rfind(name, 0), 0u) << s.message();
  };
  refuses({}, "out");
  for (const Guarded* wrong : {&narrow, &few, &flat, &heads, &ints, &doubles})
    refuses({wrong->view(), lse.view()}, "out");
  for (const Guarded* wrong : {&half_lse, &long_lse, &flat_lse}) refuses({out.view(), wrong->view()}, "lse");
  for (const Guarded* x :
       {&out, &lse, &narrow, &few, &flat, &heads, &ints, &doubles, &half_lse, &long_lse, &flat_lse})
    EXPECT_TRUE(x->untouched());
}

TEST(Workspace, OneByteLessIsRefusedAndNothingIsWritten) {
  Context context(1);
  const TestProblem t = sample();
  const Result<Steps> steps = prepare(t.problem, kSplit);
  ASSERT_TRUE(steps.ok());
  const int64_t needed = partial_bytes(steps->plan, steps->schedule);
  ASSERT_GT(needed, 0);
  EXPECT_LE(needed, steps->plan.workspace.bound);
  EXPECT_EQ(needed, steps->schedule.stats.workspace_bytes);
  Guarded out(DType::kF32, {5, 4, 19}), lse(DType::kF32, {5, 4});
  for (const int64_t less : {needed, int64_t{1}}) {
    GuardedWorkspace small(needed - less);
    const Status s = run(steps->plan, t.problem, steps->bundles.view(), steps->schedule,
                         {out.view(), lse.view()}, small.span(), context);
    EXPECT_EQ(s.code(), Code::kWorkspaceTooSmall);
    EXPECT_EQ(s.where().value, needed - less);
    EXPECT_EQ(s.where().limit, needed);
    EXPECT_TRUE(says(s, std::to_string(needed)));
    EXPECT_TRUE(small.untouched() && out.untouched() && lse.untouched());
  }
}

TEST(Workspace, WhatWasInItIsOfNoInterest) {
  Context context(2);
  const TestProblem t = sample();
  const Result<Steps> steps = prepare(t.problem, kSplit);
  ASSERT_TRUE(steps.ok());
  const Ran exact = run_step(t.problem, *steps, steps->schedule, context);
  ASSERT_EQ(exact.damage, "");
  const int64_t needed = partial_bytes(steps->plan, steps->schedule);
  struct Way {
    unsigned char fill;
    int64_t extra, shift;
  };
  // Zeros; a large finite number; more room than needed; starts off the 64-byte line.
  for (const Way& way : {Way{0, 0, 0}, {0x7F, 0, 0}, {0xFF, 1000, 0}, {0xFF, 0, 4}, {0xFF, 0, 60}}) {
    GuardedWorkspace workspace(needed + way.extra, way.fill, way.shift);
    Guarded out(DType::kF32, {5, 4, 19}), lse(DType::kF32, {5, 4});
    const Status s = run(steps->plan, t.problem, steps->bundles.view(), steps->schedule,
                         {out.view(), lse.view()}, workspace.span(), context);
    ASSERT_TRUE(s.ok()) << s.message();
    EXPECT_TRUE(same_bits(out.values(), exact.out));
    EXPECT_TRUE(same_bits(lse.values(), exact.lse));
    EXPECT_TRUE(workspace.fences_stand());
  }
  GuardedWorkspace odd(needed, 0xFF, 2);
  Guarded out(DType::kF32, {5, 4, 19}), lse(DType::kF32, {5, 4});
  EXPECT_EQ(run(steps->plan, t.problem, steps->bundles.view(), steps->schedule, {out.view(), lse.view()},
                odd.span(), context)
                .code(),
            Code::kInvalidArgument)
      << "floats cannot start there";
  EXPECT_TRUE(odd.untouched() && out.untouched() && lse.untouched());
}

TEST(Workspace, WholeRowsNeedNone) {
  Context context(1);
  const TestProblem t = sample();
  const Result<Steps> steps = prepare(t.problem, {.plan = {.path = Path::kDirect, .splits = 1}});
  ASSERT_TRUE(steps.ok());
  EXPECT_EQ(partial_bytes(steps->plan, steps->schedule), 0);
  Guarded out(DType::kF32, {5, 4, 19}), lse(DType::kF32, {5, 4});
  EXPECT_TRUE(run(steps->plan, t.problem, steps->bundles.view(), steps->schedule, {out.view(), lse.view()},
                  {}, context)
                  .ok());
}

// q in one buffer with other things: rows of [q | k | v] of one token, as a fused projection leaves them.
TEST(Inputs, InterleavedQueries) {
  Context context(1);
  TestProblem t = sample();
  const Ran want = run_all(t.problem, kSplit, context);
  const TensorView q = t.problem.query.q;
  std::vector<float> fused(5 * (4 + 2 + 2) * 24, NAN);
  for (int64_t i = 0; i < 5; ++i)
    for (int64_t h = 0; h < 4; ++h)
      for (int64_t d = 0; d < 24; ++d) fused[(i * 8 + h) * 24 + d] = q.at<float>({i, h, d});
  t.problem.query.q.data = fused.data();
  t.problem.query.q.stride = {8 * 24, 24, 1};
  EXPECT_EQ(unlike(run_all(t.problem, kSplit, context), want), "");
}

TEST(Inputs, PlacementChangesNoBit) {
  Context context(1);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const Ran want = run_all(sample(dtype).problem, kSplit, context);
    ASSERT_EQ(want.damage, "");
    for (const Placement how :
         {Placement::kGaps, Placement::kSpread, Placement::kReversed, Placement::kInterleaved})
      EXPECT_EQ(unlike(run_all(sample(dtype, how).problem, kSplit, context), want), "")
          << static_cast<int>(how);
  }
}

// Each of q, K and V ends at a page that must not be read: a vector load that reaches past the last row ends
// the test.
TEST(Inputs, NothingIsReadBehindTheLastElement) {
  for (const std::string& isa : tested_isas()) {
    Context context(1);
    ASSERT_TRUE(context.use_isa(isa).ok());
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16})
      for (const int64_t dim : {1, 2, 3, 7, 8, 15, 17, 24, 33, 64, 72}) {
        for (const int32_t queries : {1, 40}) {  // few rows read K and V in place, many widen them first
          TestProblem t({.kv_len = {67},
                         .q_len = {queries},
                         .head_dim = dim,
                         .v_head_dim = dim,
                         .dtype = dtype,
                         .page_size = 0,
                         .slack = 0,
                         .q = q_noise(1),
                         .k = kv_noise(2),
                         .v = kv_noise(3)});
          t.all();
          t.problem.candidates.query_block = 64;
          const reference::Answer want = answer(t.problem);
          const Tolerance tolerance = tolerance_of(t.problem, want);
          const auto wall = [&](TensorView* view) {
            auto copy = std::make_unique<WalledCopy>(view->data, view->elements() * dtype_bytes(dtype));
            view->data = copy->data();
            return copy;
          };
          const auto q = wall(&t.problem.query.q), k = wall(&t.problem.cache.k), v = wall(&t.problem.cache.v);
          ASSERT_TRUE(q->data() && k->data() && v->data());
          EXPECT_EQ(complaint(run_all(t.problem, {}, context), want, tolerance), "")
              << isa << ' ' << dtype_name(dtype) << " D " << dim << ", " << queries << " queries";
        }
      }
  }
}

}  // namespace
}  // namespace tamis
