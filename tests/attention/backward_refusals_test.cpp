// What a backward refuses: by name, before anything is read or written.
#include <gtest/gtest.h>

#include "attention/backward_runs.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

Spec spec_of() {
  return {.kv_len = {70, 40},
          .q_len = {2, 3},
          .q_heads = 4,
          .kv_heads = 2,
          .head_dim = 8,
          .v_head_dim = 6,
          .page_size = 16,
          .q = q_noise(1),
          .k = kv_noise(2),
          .v = kv_noise(3)};
}

TestProblem problem_of(const Spec& s = spec_of()) {
  TestProblem t(s);
  t.csr({{3, 50, 61}, {4, 51}, {0, 37}, {1, 2}, {}}).d_out(q_noise(4));
  return t;
}

// A planned problem, its forward and its gradients.
struct Ready {
  explicit Ready(const Spec& s = spec_of()) : t(problem_of(s)), saved(t.problem, answer(t.problem).output) {
    Result<PlannedBackward> made = plan_gradients(t.problem);
    EXPECT_TRUE(made.ok()) << made.status().message();
    planned = std::move(*made);
  }

  Status run(const Problem& p, const SavedForward& forward, const GradientView& gradients,
             std::span<std::byte> workspace) {
    Context context(1);
    return run_backward(planned.plan, p, forward, gradients, workspace, context);
  }

  TestProblem t;
  Saved saved;
  PlannedBackward planned;
};

void expect(const Status& status, Code code, const std::string& words) {
  EXPECT_STREQ(code_name(status.code()), code_name(code)) << words << ": " << status.message();
  EXPECT_TRUE(says(status, words));
}

// The good call, with one thing changed; nothing may be written.
template <class F>
void refused(Code code, const std::string& words, const F& change) {
  Ready r;
  const GradientArrays arrays(r.t.problem, {});
  GuardedWorkspace workspace(r.planned.plan.workspace_bytes(arrays.view()));
  Problem p = r.t.problem;
  SavedForward forward = r.saved.view();
  GradientView gradients = arrays.view();
  change(p, forward, gradients);
  expect(r.run(p, forward, gradients, workspace.span()), code, words);
  EXPECT_TRUE(arrays.untouched() && workspace.untouched()) << words;
}

TEST(BackwardRefusals, TheGoodCallIsGood) {
  Ready r;
  Context context(1);
  EXPECT_EQ(Judge(r.t.problem).complaint(run_gradients(r.t.problem, r.planned.plan, r.saved.view(), context)),
            "");
}

TEST(BackwardRefusals, WhatTheForwardSaved) {
  const auto saved = [](const std::string& words, auto change) {
    refused(Code::kInvalidArgument, words, [&](Problem&, SavedForward& f, GradientView&) { change(f); });
  };
  saved("lse: tensor is missing", [](SavedForward& f) { f.lse = {}; });
  saved("lse: is not F32", [](SavedForward& f) { f.lse.dtype = DType::kF16; });
  saved("lse: is not F32", [](SavedForward& f) { f.lse.rank = 1; });
  saved("lse: is not F32", [](SavedForward& f) { f.lse.shape[0] -= 1; });
  saved("lse: is not F32", [](SavedForward& f) { f.lse.shape[1] += 1; });
  saved("lse: has elements but no memory", [](SavedForward& f) { f.lse.data = nullptr; });
  saved("out: dtype", [](SavedForward& f) { f.out.dtype = DType::kF64; });
  saved("out: shape", [](SavedForward& f) { f.out.rank = 2; });
  for (const int axis : {0, 1, 2}) saved("out: shape", [axis](SavedForward& f) { ++f.out.shape[axis]; });
  saved("out: has elements but no memory", [](SavedForward& f) { f.out.data = nullptr; });
}

TEST(BackwardRefusals, GradientsOfTheOutput) {
  const auto problem = [](const std::string& words, auto change) {
    refused(Code::kInvalidArgument, words, [&](Problem& p, SavedForward&, GradientView&) { change(p); });
  };
  problem("d_out: tensor is missing", [](Problem& p) { p.gradients.d_out = {}; });
  problem("d_out: has elements but no memory", [](Problem& p) { p.gradients.d_out.data = nullptr; });
  problem("d_out", [](Problem& p) { p.gradients.d_out.dtype = DType::kF16; });
  problem("d_out", [](Problem& p) { ++p.gradients.d_out.shape[2]; });
  problem("d_lse", [](Problem& p) {
    p.gradients.d_lse = dense_view(nullptr, DType::kF32, {5, 4});  // a shape and nothing behind it
  });
  problem("d_lse", [](Problem& p) { p.gradients.d_lse = dense_view(nullptr, DType::kF32, {5, 3}); });
}

TEST(BackwardRefusals, EachGradient) {
  const std::pair<const char*, MutableTensorView GradientView::*> parts[] = {
      {"d_q", &GradientView::d_q}, {"d_k", &GradientView::d_k}, {"d_v", &GradientView::d_v}};
  for (const auto& [name, part] : parts) {
    const auto gradient = [name = name, part = part](const std::string& words, auto change) {
      refused(Code::kInvalidArgument, std::string(name) + ": " + words,
              [&](Problem&, SavedForward&, GradientView& g) { change(g.*part); });
    };
    gradient("tensor is missing", [](MutableTensorView& t) { t = {}; });
    gradient("has elements but no memory", [](MutableTensorView& t) { t.data = nullptr; });
    for (const DType dtype : {DType::kF64, DType::kI32, DType::kU8})
      gradient("dtype", [dtype](MutableTensorView& t) { t.dtype = dtype; });
    gradient("rank", [](MutableTensorView& t) { --t.rank; });
    gradient("rank 0", [](MutableTensorView& t) { t.rank = 0; });
    const int rank = part == &GradientView::d_q ? 3 : 4;
    for (int axis = 0; axis < rank; ++axis)
      gradient("extent", [axis](MutableTensorView& t) { --t.shape[axis]; });
  }
}

// Gradients of int4 are of the numbers, not of the bytes.
TEST(BackwardRefusals, GradientsOfTheSizeOfCodes) {
  TestProblem t = problem_of();
  t.quantize_k(Format::kInt4, ScaleKind::kHead);
  const Saved saved(t.problem, answer(t.problem).output);
  const Result<PlannedBackward> made = plan_gradients(t.problem);
  ASSERT_TRUE(made.ok());
  const GradientArrays arrays(t.problem, {});
  GradientView g = arrays.view();
  EXPECT_EQ(g.d_k.shape[3], 8);
  g.d_k.shape[3] = 4;
  GuardedWorkspace workspace(made->plan.workspace_bytes(arrays.view()));
  Context context(1);
  expect(run_backward(made->plan, t.problem, saved.view(), g, workspace.span(), context),
         Code::kInvalidArgument, "d_k: extent 4 of axis 3, expected 8");
  EXPECT_TRUE(arrays.untouched());
}

TEST(BackwardRefusals, AWorkspaceOneByteTooSmall) {
  for (const Store& store : {Store{}, Store{DType::kBF16, DType::kBF16, DType::kF16}}) {
    Ready r;
    const GradientArrays arrays(r.t.problem, store);
    const int64_t bytes = r.planned.plan.workspace_bytes(arrays.view());
    GuardedWorkspace workspace(bytes - 1);
    const Status status = r.run(r.t.problem, r.saved.view(), arrays.view(), workspace.span());
    expect(status, Code::kWorkspaceTooSmall, std::to_string(bytes) + " are needed");
    EXPECT_EQ(status.where().value, bytes - 1);
    EXPECT_EQ(status.where().limit, bytes);
    EXPECT_TRUE(arrays.untouched() && workspace.untouched());
    for (const int64_t shift : {4, 8, 60}) {  // anywhere, and full of what it likes
      GuardedWorkspace enough(bytes, 0x3F, shift);
      EXPECT_TRUE(r.run(r.t.problem, r.saved.view(), arrays.view(), enough.span()).ok());
      EXPECT_TRUE(enough.fences_stand());
    }
  }
}

TEST(BackwardRefusals, APlanOfAnotherStep) {
  const auto stale = [](const char* what, int64_t page_size, auto change) {
    SCOPED_TRACE(what);
    Spec s = spec_of();
    s.page_size = page_size;
    Ready r(s);
    r.t.q_pos({68, 69, 37, 38, 39});
    r.planned = std::move(*plan_gradients(r.t.problem));
    const GradientArrays arrays(r.t.problem, {});
    GuardedWorkspace workspace(r.planned.plan.workspace_bytes(arrays.view()));
    EXPECT_TRUE(r.run(r.t.problem, r.saved.view(), arrays.view(), workspace.span()).ok());
    change(r.t);
    const GradientArrays again(r.t.problem, {});
    GuardedWorkspace more(1 << 20);
    expect(r.run(r.t.problem, r.saved.view(), again.view(), more.span()), Code::kStalePlan, "plan");
    EXPECT_TRUE(again.untouched() && more.untouched());
    expect(plan_backward(r.t.problem, r.planned.index).status(), Code::kStalePlan, "index");
  };
  for (const int64_t page : {16, 0}) {
    stale("a shorter context", page, [](TestProblem& t) { t.kv_len()[0] = 69; });
    stale("an empty context", page, [](TestProblem& t) { t.kv_len()[1] = 0; });
    stale("queries of another request", page, [](TestProblem& t) { t.cu_q()[1] = 1; });
    stale("another position", page, [](TestProblem& t) { t.q_pos({68, 69, 37, 38, 5}); });
    stale("no positions", page, [](TestProblem& t) { t.problem.query.q_pos = {}; });
    stale("not causal", page, [](TestProblem& t) { t.problem.mask.causal = false; });
    stale("a window", page, [](TestProblem& t) { t.problem.mask.window = 9; });
    stale("a sink", page, [](TestProblem& t) { t.problem.mask.sink = 1; });
  }
  stale("rows of a contiguous cache elsewhere", 0, [](TestProblem& t) { --t.cu_kv()[0]; });
  stale("a smaller pool", 16,
        [](TestProblem& t) { --t.problem.cache.k.shape[0], --t.problem.cache.v.shape[0]; });
}

// Sums of a plan are laid out for a cache of one size.
TEST(BackwardRefusals, APlanOfAnotherCache) {
  Ready r;
  Spec larger = spec_of();
  larger.pages = 30;
  TestProblem t = problem_of(larger);
  const Saved saved(t.problem, answer(t.problem).output);
  const GradientArrays arrays(t.problem, {});
  GuardedWorkspace workspace(1 << 20);
  expect(r.run(t.problem, saved.view(), arrays.view(), workspace.span()), Code::kStalePlan, "plan");
  EXPECT_TRUE(arrays.untouched());
  const auto other = [&](const char* what, auto change) {
    SCOPED_TRACE(what);
    Spec s = spec_of();
    change(s);
    TestProblem o = problem_of(s);
    const Saved of_other(o.problem, answer(o.problem).output);
    const GradientArrays of_its_own(o.problem, {});
    expect(r.run(o.problem, of_other.view(), of_its_own.view(), workspace.span()), Code::kStalePlan, "plan");
    EXPECT_TRUE(of_its_own.untouched());
  };
  other("D", [](Spec& s) { s.head_dim = 16; });
  other("Dv", [](Spec& s) { s.v_head_dim = 8; });
  other("heads", [](Spec& s) { s.q_heads = 8; });
  other("KV heads", [](Spec& s) { s.kv_heads = 4; });
  other("dtype", [](Spec& s) { s.dtype = DType::kBF16; });
  other("pages", [](Spec& s) { s.page_size = 8; });
  other("contiguous", [](Spec& s) { s.page_size = 0; });
  other("layout", [](Spec& s) { s.layout = Layout::kHND; });
}

TEST(BackwardRefusals, NoPlanAtAll) {
  Ready r;
  const GradientArrays arrays(r.t.problem, {});
  GuardedWorkspace workspace(1 << 20);
  Context context(1);
  expect(run_backward(BackwardPlan(), r.t.problem, r.saved.view(), arrays.view(), workspace.span(), context),
         Code::kStalePlan, "plan");
  expect(plan_backward(r.t.problem, IndexSet()).status(), Code::kStalePlan, "index");
  EXPECT_GE(BackwardPlan().workspace_bytes(arrays.view()), 0);
  EXPECT_GE(r.planned.plan.workspace_bytes({}), 0);
}

TEST(BackwardRefusals, WhatPlanningRefuses) {
  TestProblem t = problem_of();
  for (const int64_t slab : {int64_t{0}, int64_t{-1}, INT64_MIN})
    expect(plan_gradients(t.problem, {.slab_bytes = slab}).status(), Code::kInvalidArgument, "slab_bytes");
  EXPECT_TRUE(plan_gradients(t.problem, {.slab_bytes = INT64_MAX}).ok());
  expect(
      plan_gradients(t.problem, {.bundle = {.policy = BundlePolicy::kNeighbours, .neighbours = 0}}).status(),
      Code::kInvalidArgument, "neighbours");
  for (int64_t Spec::*dim : {&Spec::head_dim, &Spec::v_head_dim}) {
    Spec wide = spec_of();
    wide.*dim = 513;
    expect(plan_gradients(problem_of(wide).problem).status(), Code::kUnsupported, "head_dim");
  }
  t.problem.score.scale = 1e39;
  expect(plan_gradients(t.problem).status(), Code::kUnsupported, "scale");

  TestProblem lists = problem_of();
  Problem p = lists.problem;
  p.query.q = p.cache.k = p.cache.v = p.gradients.d_out = {};
  p.index_only = IndexOnly{.q_heads = 4, .kv_heads = 2, .head_dim = 8, .v_head_dim = 6, .page_size = 16};
  IndexSet index;
  const Status made = normalize_into(p, {}, &index);
  ASSERT_TRUE(made.ok()) << made.message();
  expect(plan_backward(p, index).status(), Code::kInvalidArgument, "index-only");
}

// backward() is both; it refuses what either does.
TEST(BackwardRefusals, OfBothAtOnce) {
  Ready r;
  Context context(2);
  const GradientArrays arrays(r.t.problem, {});
  BackwardReport report;
  expect(backward(r.t.problem, r.planned.index, r.saved.view(), {.slab_bytes = 0}, arrays.view(), context),
         Code::kInvalidArgument, "slab_bytes");
  expect(backward(r.t.problem, r.planned.index, r.saved.view(), {}, {}, context), Code::kInvalidArgument,
         "d_q");
  expect(backward(r.t.problem, r.planned.index, {}, {}, arrays.view(), context), Code::kInvalidArgument,
         "lse");
  EXPECT_TRUE(arrays.untouched());
  const Status status =
      backward(r.t.problem, r.planned.index, r.saved.view(), {}, arrays.view(), context, &report);
  ASSERT_TRUE(status.ok()) << status.message();
  const RanBackward want = run_gradients(r.t.problem, r.planned.plan, r.saved.view(), context);
  EXPECT_TRUE(same_bits(arrays.d_k.values(), want.got.d_k));
  EXPECT_EQ(report.counters.tasks, want.counters.tasks);
  EXPECT_EQ(report.workspace_bytes, r.planned.plan.workspace_bytes(arrays.view()));
}

}  // namespace
}  // namespace tamis
