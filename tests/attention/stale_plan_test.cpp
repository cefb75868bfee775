// Plan, schedule, bundles and problem that do not belong together, and those that do although they differ
// (docs/faults.md, D1).
#include <gtest/gtest.h>

#include "attention/runs.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

// The bundle policy is named: `auto` looks at how lists overlap.
constexpr ForwardOptions kOptions{.normalize = {.block = 16},
                                  .bundle = {.policy = BundlePolicy::kRows},
                                  .plan = {.path = Path::kDirect, .splits = 2}};

Spec spec_of(int32_t kv_len = 128) {
  return {.kv_len = {kv_len, 40},
          .q_len = {2, 1},
          .q_heads = 4,
          .kv_heads = 2,
          .head_dim = 8,
          .v_head_dim = 8,
          .page_size = 16,
          .q = q_noise(1),
          .k = kv_noise(2),
          .v = kv_noise(3)};
}

const Rows kLists = {{3, 50, 100}, {4, 51, 101}, {0, 39}};

TestProblem problem_of(Spec s = spec_of(), const Rows& rows = kLists) {
  TestProblem t(std::move(s));
  t.csr(rows);
  return t;
}

// Bundles of one problem with the plan and schedule of another.
Ran mixed(const Problem& p, const Plan& plan, const Bundles& bundles, const Schedule& schedule) {
  Context context(1);
  const Result<Shape> shape = describe(p);
  Guarded out(DType::kF32, {shape->total_q, shape->q_heads, shape->v_head_dim});
  Guarded lse(DType::kF32, {shape->total_q, shape->q_heads});
  GuardedWorkspace workspace(1 << 16);
  Ran r;
  r.status = run(plan, p, bundles.view(), schedule, {out.view(), lse.view()}, workspace.span(), context);
  r.out = out.values();
  r.lse = lse.values();
  const bool quiet = out.untouched() && lse.untouched() && workspace.untouched();
  if (!r.status.ok() && !quiet) r.damage = "refused, but something was written";
  if (!(out.fences_stand() && lse.fences_stand() && workspace.fences_stand())) r.damage += "a fence fell";
  return r;
}

void expect_stale(const Ran& r, const std::string& words) {
  EXPECT_STREQ(code_name(r.status.code()), "stale_plan") << r.status.message();
  EXPECT_TRUE(says(r.status, words));
  EXPECT_EQ(r.damage, "");
}

Steps steps_of(const TestProblem& t, const ForwardOptions& o = kOptions) {
  Result<Steps> s = prepare(t.problem, o);
  EXPECT_TRUE(s.ok()) << s.status().message();
  return std::move(*s);
}

TEST(StalePlan, OfAnotherShape) {
  const TestProblem t = problem_of();
  const Steps own = steps_of(t);
  const auto other = [&](auto change, const Rows& rows = kLists) {
    Spec s = spec_of();
    change(s);
    const TestProblem o = problem_of(s, rows);
    // The other problem's own bundles and schedule do not save it, nor do those of the plan.
    const Steps steps = steps_of(o);
    expect_stale(mixed(o.problem, own.plan, steps.bundles, steps.schedule), "another shape");
    expect_stale(mixed(o.problem, own.plan, own.bundles, own.schedule), "another shape");
  };
  other([](Spec& s) { s.head_dim = 16; });
  other([](Spec& s) { s.v_head_dim = 4; });
  other([](Spec& s) { s.dtype = DType::kF16; });
  other([](Spec& s) { s.dtype = DType::kBF16; });
  other([](Spec& s) { s.q_heads = 8; });
  other([](Spec& s) { s.kv_heads = 4; });
  other([](Spec& s) { s.page_size = 32; });
  other([](Spec& s) { s.page_size = 0; });
  other([](Spec& s) { s.layout = Layout::kHND; });
  TestProblem heads(spec_of());
  heads.problem.candidates.index_heads = 2;
  heads.csr({{3}, {4}, {5}, {6}, {7}, {8}});
  const Steps steps = steps_of(heads);
  expect_stale(mixed(heads.problem, own.plan, steps.bundles, steps.schedule), "another shape");
}

TEST(StalePlan, ScheduleOfAnotherPlan) {
  const TestProblem t = problem_of();
  Spec wide = spec_of();
  wide.head_dim = 16;
  const TestProblem other = problem_of(wide);
  const Steps own = steps_of(t), foreign = steps_of(other);
  expect_stale(mixed(t.problem, own.plan, own.bundles, foreign.schedule), "another plan");
  expect_stale(mixed(t.problem, own.plan, own.bundles, Schedule{}), "another plan");
}

TEST(StalePlan, OtherBlocks) {
  const TestProblem t = problem_of();
  const Steps own = steps_of(t);
  ForwardOptions o = kOptions;
  o.normalize.block = 32;
  const Steps wide = steps_of(t, o);
  expect_stale(mixed(t.problem, own.plan, wide.bundles, own.schedule), "block");
  expect_stale(mixed(t.problem, wide.plan, own.bundles, wide.schedule), "block");
  EXPECT_EQ(schedule(own.plan, wide.bundles.view()).status().code(), Code::kStalePlan);
}

TEST(StalePlan, BundlesOfOtherLengths) {
  const TestProblem t = problem_of();
  const Steps own = steps_of(t);
  // One block more, one less, the same blocks in other rows.
  for (const Rows& rows :
       {Rows{{3, 50, 100, 120}, {4, 51, 101}, {0, 39}}, Rows{{3, 50}, {4, 51, 101}, {0, 39}},
        Rows{{3, 50}, {4, 51, 101, 120}, {0, 39}}, Rows{{}, {}, {}}}) {
    const TestProblem o = problem_of(spec_of(), rows);
    const Steps steps = steps_of(o);
    expect_stale(mixed(o.problem, own.plan, steps.bundles, own.schedule), "other bundles");
  }
  // Another bundling of the same rows.
  ForwardOptions joined = kOptions;
  joined.bundle = {.policy = BundlePolicy::kNeighbours, .neighbours = 2};
  const Steps steps = steps_of(t, joined);
  expect_stale(mixed(t.problem, own.plan, steps.bundles, own.schedule), "other bundles");
}

TEST(StalePlan, NotWhenOnlyWhatIsListedDiffers) {
  const TestProblem t = problem_of();
  const Steps own = steps_of(t);
  struct Way {
    const char* name;
    Spec spec;
    Rows rows;
  };
  Spec layer = spec_of(), longer = spec_of(192);
  layer.k = kv_noise(77);  // another layer: other pointers, other values
  layer.v = kv_noise(78);
  for (const Way& way :
       {Way{"other tokens", spec_of(), {{15, 16, 64}, {90, 1, 33, 34, 35}, {20, 5}}},
        Way{"another layer", layer, kLists}, Way{"a longer context", longer, kLists},
        Way{"shorter pages of another step", longer, {{0, 17, 180}, {1, 18, 191}, {16, 2}}}}) {
    const TestProblem o = problem_of(way.spec, way.rows);
    const Steps steps = steps_of(o);
    const Ran r = mixed(o.problem, own.plan, steps.bundles, own.schedule);
    const reference::Answer want = answer(o.problem);
    EXPECT_EQ(complaint(r, want, tolerance_of(o.problem, want)), "") << way.name;
  }
}

// A plan of the same shape that splits otherwise: its schedules carry all that is needed.
TEST(StalePlan, NotWhenTheSplitsDiffer) {
  const TestProblem t = problem_of();
  const Steps own = steps_of(t);
  ForwardOptions whole = kOptions;
  whole.plan.splits = 1;
  const Steps other = steps_of(t, whole);
  const reference::Answer want = answer(t.problem);
  const Tolerance tolerance = tolerance_of(t.problem, want);
  EXPECT_EQ(complaint(mixed(t.problem, own.plan, own.bundles, other.schedule), want, tolerance), "");
  EXPECT_EQ(complaint(mixed(t.problem, other.plan, own.bundles, own.schedule), want, tolerance), "");
}

TEST(StalePlan, AfterAReplanThatFailed) {
  TestProblem t = problem_of();
  Steps own = steps_of(t);
  TestProblem bad = problem_of(spec_of(), {{3, 50, 128}, {4}, {0}});
  ASSERT_EQ(normalize_into(bad.problem, kOptions.normalize, &own.index).code(), Code::kIndexOutOfRange);
  // The set is empty now, and nothing can be made of it that the old schedule would run.
  EXPECT_EQ(own.index.view().rows, 0);
  EXPECT_EQ(bundle(bad.problem, own.index).status().code(), Code::kInvalidArgument);
  expect_stale(mixed(bad.problem, own.plan, Bundles(), own.schedule), "bundles");
}

// Bundles of three queries for a problem of two: rows that are not there must be neither read nor written.
TEST(StalePlan, BundlesOfMoreRequestsThanTheProblemHas) {
  TestProblem t = problem_of();
  const Steps own = steps_of(t);
  Problem first = t.problem;  // request 0 alone; the memory behind the views is still there
  first.query.q.shape[0] = 2;
  first.query.cu_q.shape[0] = 2;
  first.cache.kv_len.shape[0] = 1;
  first.cache.page_table.shape[0] = 1;
  first.candidates.indptr.shape[0] = 3;
  first.candidates.indices.shape[0] = 6;
  ASSERT_TRUE(normalize(first).ok());
  const Ran r = mixed(first, own.plan, own.bundles, own.schedule);
  EXPECT_STREQ(code_name(r.status.code()), "stale_plan");
  EXPECT_EQ(r.damage, "");
}

// Sets follow from lengths, positions and masks: bundles made for other ones miss blocks that the problem
// needs.
TEST(StalePlan, BundlesOfAnotherStep) {
  const auto changed = [](int64_t page_size, const auto& change) {
    Spec s = spec_of();
    s.page_size = page_size;
    TestProblem t = problem_of(s);
    t.q_pos({126, 127, 39});
    t.problem.mask.window = 8;
    const Steps own = steps_of(t);
    const Ran before = mixed(t.problem, own.plan, own.bundles, own.schedule);
    EXPECT_TRUE(before.status.ok()) << before.status.message();
    change(t);
    return mixed(t.problem, own.plan, own.bundles, own.schedule);
  };
  const auto stale = [&](int64_t page_size, const auto& change, const char* what) {
    SCOPED_TRACE(what);
    expect_stale(changed(page_size, change), "bundles");
  };
  for (const int64_t page_size : {16, 0}) {
    stale(
        page_size, [](TestProblem& t) { t.kv_len()[0] = 127; }, "a shorter context");
    stale(
        page_size, [](TestProblem& t) { t.kv_len()[1] = 0; }, "an empty context");
    stale(
        page_size, [](TestProblem& t) { t.cu_q()[1] = 1; }, "queries of another request");
    stale(
        page_size,
        [](TestProblem& t) {
          t.q_pos({126, 127, 38});
        },
        "another position");
    stale(
        page_size, [](TestProblem& t) { t.problem.query.q_pos = {}; }, "no positions");
    stale(
        page_size, [](TestProblem& t) { t.problem.mask.causal = false; }, "not causal");
    stale(
        page_size, [](TestProblem& t) { t.problem.mask.window = 9; }, "a wider window");
    stale(
        page_size, [](TestProblem& t) { t.problem.mask.sink = 1; }, "a sink");
  }
  stale(
      0, [](TestProblem& t) { --t.cu_kv()[0]; }, "rows of a contiguous cache elsewhere");
  stale(
      16, [](TestProblem& t) { --t.problem.cache.k.shape[0], --t.problem.cache.v.shape[0]; },
      "a smaller pool");
  EXPECT_TRUE(changed(16, [](TestProblem& t) { t.problem.score.softcap = 3; }).status.ok())
      << "scores are not sets";
}

TEST(StalePlan, PlansOfOtherBackendsAreNotRun) {
  const TestProblem t = problem_of();
  const Steps own = steps_of(t);
  Plan plan = own.plan;
  plan.backend = Backend::kCuda;
  EXPECT_EQ(mixed(t.problem, plan, own.bundles, own.schedule).status.code(), Code::kUnsupported);
}

}  // namespace
}  // namespace tamis
