// The stages through handles: the same content as in C++, and what becomes of a handle when a call fails.
#include <gtest/gtest.h>

#include <cstring>

#include "capi/c_problem.h"
#include "tamis/attention.h"

namespace tamis::testing {
namespace {

template <class A, class B>
void expect_bytes(const A* a, const B* b, int64_t count) {
  ASSERT_EQ(sizeof(A), sizeof(B));
  EXPECT_EQ(std::memcmp(a, b, sizeof(A) * static_cast<size_t>(count)), 0);
}

// The stages in C++.
struct Stages {
  explicit Stages(const Problem& p)
      : index(std::move(*normalize(p))),
        bundles(std::move(*bundle(p, index))),
        plan(*make_plan(p, capacities_of(p, bundles.view()), index.view().block)),
        made(*schedule(plan, bundles.view())) {}
  IndexSet index;
  Bundles bundles;
  Plan plan;
  Schedule made;
};

TEST(CStages, IndexIsTheOneOfNormalize) {
  TestProblem t = decode_problem();
  const CProblem c(t.problem);
  Handles h;
  Error error;
  tamis_normalize_options options;
  tamis_normalize_options_init(&options);
  options.block = 64;  // four pages: more spans than blocks
  ASSERT_EQ(tamis_normalize(&c.problem, &options, h.index, error), TAMIS_OK) << error.text;
  const IndexSet set = std::move(*normalize(t.problem, {.block = 64}));
  const IndexView v = set.view();
  auto a = sized<tamis_index_arrays>();
  ASSERT_EQ(tamis_index_view(h.index, &a, error), TAMIS_OK);
  ASSERT_EQ(a.rows, v.rows);
  ASSERT_EQ(a.entries, v.entries);
  EXPECT_EQ(a.block, v.block);
  EXPECT_EQ(a.words, v.words);
  expect_bytes(a.row, v.row, v.rows);
  expect_bytes(a.begin, v.begin, v.rows);
  expect_bytes(a.count, v.count, v.rows);
  expect_bytes(a.blocks, v.blocks, v.entries);
  expect_bytes(a.members, v.members, v.entries * v.words);
  expect_bytes(a.full, v.full, v.entries);
  expect_bytes(a.span_begin, v.span_begin, v.entries + 1);
  expect_bytes(a.spans, v.spans, v.span_begin[v.entries]);
  EXPECT_EQ(a.row[1].index_head, 1);
  EXPECT_EQ(a.row[2].request, 1);

  const IndexStats& stats = set.stats();
  auto i = sized<tamis_index_summary>();
  ASSERT_EQ(tamis_index_stats(h.index, &i, error), TAMIS_OK);
  EXPECT_EQ(i.raw, stats.counts.raw);
  EXPECT_EQ(i.padding, 1);
  EXPECT_EQ(i.duplicates, 1);
  EXPECT_EQ(i.invalid, 0);
  EXPECT_EQ(i.unique, stats.counts.unique);
  EXPECT_EQ(i.future, stats.future);
  EXPECT_EQ(i.empty_rows, 1);
  EXPECT_EQ(i.blocks, stats.blocks);
  EXPECT_EQ(i.spans, stats.spans);
  EXPECT_GT(i.spans, i.blocks);
  EXPECT_EQ(i.touched_pages, stats.touched_pages);
  EXPECT_EQ(i.gaps, stats.gaps);
  EXPECT_EQ(i.rows_bitmap, stats.rows_bitmap);
  EXPECT_EQ(i.rows_sort, stats.rows_sort);
  EXPECT_EQ(i.rows_hash, stats.rows_hash);
  EXPECT_EQ(i.row_blocks.p50, stats.row_blocks.p50);
  EXPECT_EQ(i.row_blocks.max, stats.row_blocks.max);
  tamis_percentiles reuse{};
  ASSERT_EQ(tamis_index_reuse(h.index, &reuse, error), TAMIS_OK);
  const Percentiles expected = reuse_statistics(v);
  EXPECT_EQ(reuse.p50, expected.p50);
  EXPECT_EQ(reuse.p95, expected.p95);
  EXPECT_EQ(reuse.max, expected.max);
}

TEST(CStages, BundlesPlanAndSchedule) {
  TestProblem t = decode_problem();
  const CProblem c(t.problem);
  Handles h;
  Error error;
  ASSERT_EQ(h.prepare(c.problem, nullptr, error), TAMIS_OK) << error.text;
  const Stages s(t.problem);

  auto b = sized<tamis_bundle_summary>();
  ASSERT_EQ(tamis_bundle_stats(h.bundles, &b, error), TAMIS_OK);
  EXPECT_EQ(b.bundles, s.bundles.view().bundles);
  EXPECT_EQ(b.policy, static_cast<int>(s.bundles.stats().policy));
  EXPECT_EQ(b.neighbours, s.bundles.stats().neighbours);
  EXPECT_EQ(b.listed_blocks, s.bundles.stats().listed_blocks);
  EXPECT_EQ(b.union_blocks, s.bundles.stats().union_blocks);

  const Capacities& capacities = s.plan.capacities;
  EXPECT_EQ(h.capacities.requests, capacities.requests);
  EXPECT_EQ(h.capacities.queries, capacities.queries);
  EXPECT_EQ(h.capacities.rows, capacities.rows);
  EXPECT_EQ(h.capacities.entries, capacities.entries);
  EXPECT_EQ(h.capacities.row_entries, capacities.row_entries);
  EXPECT_EQ(h.capacities.group_rows, capacities.group_rows);

  auto p = sized<tamis_plan_summary>();
  ASSERT_EQ(tamis_plan_info(h.plan, &p, error), TAMIS_OK);
  EXPECT_EQ(p.reason, s.plan.reason);
  EXPECT_EQ(p.backend, TAMIS_CPU);
  EXPECT_EQ(p.path, static_cast<int>(s.plan.path));
  EXPECT_EQ(p.block, s.plan.block);
  EXPECT_EQ(p.tile, s.plan.tile);
  EXPECT_EQ(p.splits, s.plan.splits);
  EXPECT_EQ(p.shares, s.plan.shares);
  EXPECT_EQ(p.min_part, s.plan.min_part);
  EXPECT_EQ(p.max_parts, s.plan.max_parts);
  EXPECT_EQ(p.workspace_bound, s.plan.workspace.bound);
  EXPECT_EQ(p.workspace_typical, s.plan.workspace.typical);
  EXPECT_EQ(p.fingerprint, s.plan.fingerprint);

  auto d = sized<tamis_schedule_summary>();
  ASSERT_EQ(tamis_schedule_info(h.schedule, &d, error), TAMIS_OK);
  EXPECT_EQ(d.tasks, s.made.stats.tasks);
  EXPECT_EQ(d.parts, s.made.stats.parts);
  EXPECT_EQ(d.empty_tasks, s.made.stats.empty_tasks);
  EXPECT_EQ(d.task_blocks.max, s.made.stats.task_blocks.max);
  EXPECT_EQ(d.fingerprint, s.made.fingerprint);
  EXPECT_EQ(d.stamp, s.made.stamp);
  int64_t bytes = -1;
  ASSERT_EQ(tamis_workspace_bytes(h.plan, h.schedule, &bytes, error), TAMIS_OK);
  EXPECT_EQ(bytes, partial_bytes(s.plan, s.made));
}

TEST(CStages, OptionsArrive) {
  TestProblem t = decode_problem();
  const CProblem c(t.problem);
  Handles h;
  Error error;
  tamis_normalize_options n;
  tamis_normalize_options_init(&n);
  n.block = 32;
  n.all_blocks = 1;
  ASSERT_EQ(tamis_normalize(&c.problem, &n, h.index, error), TAMIS_OK) << error.text;
  auto a = sized<tamis_index_arrays>();
  ASSERT_EQ(tamis_index_view(h.index, &a, error), TAMIS_OK);
  EXPECT_EQ(a.block, 32);
  EXPECT_EQ(a.count[0], 3);  // 70 tokens, all of them
  n.block = 24;
  EXPECT_EQ(tamis_normalize(&c.problem, &n, h.index, error), TAMIS_UNSUPPORTED);
  n.block = 0;
  n.ordering = 4;
  EXPECT_EQ(tamis_normalize(&c.problem, &n, h.index, error), TAMIS_INVALID_ARGUMENT);
  n.ordering = TAMIS_ORDERING_HASH;
  n.all_blocks = 2;
  EXPECT_EQ(tamis_normalize(&c.problem, &n, h.index, error), TAMIS_INVALID_ARGUMENT);
  n.all_blocks = 0;
  ASSERT_EQ(tamis_normalize(&c.problem, &n, h.index, error), TAMIS_OK);
  auto i = sized<tamis_index_summary>();
  ASSERT_EQ(tamis_index_stats(h.index, &i, error), TAMIS_OK);
  EXPECT_GT(i.rows_hash, 0);
  EXPECT_EQ(i.rows_bitmap, 0);

  tamis_bundle_options b;
  tamis_bundle_options_init(&b);
  b.policy = TAMIS_BUNDLE_HEADS;
  ASSERT_EQ(tamis_bundle(&c.problem, h.index, &b, h.bundles, error), TAMIS_OK);
  b.policy = 4;
  EXPECT_EQ(tamis_bundle(&c.problem, h.index, &b, h.bundles, error), TAMIS_INVALID_ARGUMENT);
  b.policy = TAMIS_BUNDLE_NEIGHBOURS;
  b.neighbours = 0;
  EXPECT_EQ(tamis_bundle(&c.problem, h.index, &b, h.bundles, error), TAMIS_INVALID_ARGUMENT);
  EXPECT_TRUE(says(error, "neighbours"));

  tamis_plan_options o;
  tamis_plan_options_init(&o);
  o.splits = 3;
  ASSERT_EQ(h.prepare(c.problem, &o, error), TAMIS_OK) << error.text;
  auto p = sized<tamis_plan_summary>();
  ASSERT_EQ(tamis_plan_info(h.plan, &p, error), TAMIS_OK);
  EXPECT_EQ(p.splits, 3);
  EXPECT_EQ(p.max_parts, 3);
  for (int32_t tamis_plan_options::*member :
       {&tamis_plan_options::backend, &tamis_plan_options::path, &tamis_plan_options::fallback,
        &tamis_plan_options::batch_invariant, &tamis_plan_options::reserved}) {
    tamis_plan_options bad = o;
    bad.*member = 9;
    EXPECT_EQ(h.prepare(c.problem, &bad, error), TAMIS_INVALID_ARGUMENT);
    EXPECT_TRUE(says(error, "9"));
  }
  o.backend = TAMIS_REFERENCE;
  EXPECT_EQ(h.prepare(c.problem, &o, error), TAMIS_UNSUPPORTED);
}

TEST(CStages, PlanOptionsArrive) {
  TestProblem t({.kv_len = {5000, 300}, .q_heads = 2, .page_size = 16});
  t.all();
  const CProblem c(t.problem);
  const IndexSet index = std::move(*normalize(t.problem));
  const Bundles bundles = std::move(*bundle(t.problem, index));
  const Capacities capacities = capacities_of(t.problem, bundles.view());
  const PlanOptions cases[] = {{},
                               {.path = Path::kDirect},
                               {.path = Path::kDense},
                               {.splits = 5},
                               {.batch_invariant = true},
                               {.shares = 3},
                               {.min_tiles = 1},
                               {.workspace_budget = 2000},
                               {.fallback = Fallback::kRefuse, .splits = 50, .workspace_budget = 100}};
  for (const PlanOptions& o : cases) {
    const Result<Plan> expected = make_plan(t.problem, capacities, index.view().block, o);
    tamis_plan_options options;
    tamis_plan_options_init(&options);
    options.path = static_cast<int32_t>(o.path);
    options.fallback = static_cast<int32_t>(o.fallback);
    options.splits = o.splits;
    options.batch_invariant = o.batch_invariant;
    options.shares = o.shares;
    options.min_tiles = o.min_tiles;
    options.workspace_budget = o.workspace_budget;
    Handles h;
    Error error;
    ASSERT_EQ(h.prepare(c.problem, &options, error), static_cast<int32_t>(expected.status().code()));
    EXPECT_EQ(error.text, expected.status().message());
    if (!expected.ok()) continue;
    auto p = sized<tamis_plan_summary>();
    ASSERT_EQ(tamis_plan_info(h.plan, &p, error), TAMIS_OK);
    EXPECT_EQ(p.reason, expected->reason);
    EXPECT_EQ(p.path, static_cast<int32_t>(expected->path));
    EXPECT_EQ(p.splits, expected->splits);
    EXPECT_EQ(p.batch_invariant, expected->batch_invariant);
    EXPECT_EQ(p.shares, expected->shares);
    EXPECT_EQ(p.min_part, expected->min_part);
    EXPECT_EQ(p.max_parts, expected->max_parts);
    EXPECT_EQ(p.workspace_bound, expected->workspace.bound);
    EXPECT_EQ(p.workspace_typical, expected->workspace.typical);
    const Schedule made = *schedule(*expected, bundles.view());
    auto d = sized<tamis_schedule_summary>();
    ASSERT_EQ(tamis_schedule_info(h.schedule, &d, error), TAMIS_OK);
    EXPECT_EQ(d.tasks, made.stats.tasks);
    EXPECT_EQ(d.split_rows, made.stats.split_rows);
    EXPECT_EQ(d.parts, made.stats.parts);
    EXPECT_EQ(d.empty_tasks, made.stats.empty_tasks);
    EXPECT_EQ(d.task_blocks.p50, made.stats.task_blocks.p50);
    EXPECT_EQ(d.task_blocks.p95, made.stats.task_blocks.p95);
    EXPECT_EQ(d.workspace_bytes, made.stats.workspace_bytes);
  }
}

TEST(CHandles, EmptyUntilFilledAndAfterAFailure) {
  TestProblem good = decode_problem(), bad = decode_problem();
  bad.table(0, 0) = -1;
  const CProblem c(good.problem), d(bad.problem);
  Handles h;
  Error error;
  auto a = sized<tamis_index_arrays>();
  EXPECT_EQ(tamis_index_view(h.index, &a, error), TAMIS_INVALID_ARGUMENT);
  EXPECT_TRUE(says(error, "index: is empty"));
  EXPECT_EQ(a.row, nullptr);
  EXPECT_EQ(tamis_bundle(&c.problem, h.index, nullptr, h.bundles, error), TAMIS_INVALID_ARGUMENT);
  EXPECT_TRUE(says(error, "index: is empty"));
  auto b = sized<tamis_bundle_summary>();
  EXPECT_EQ(tamis_bundle_stats(h.bundles, &b, error), TAMIS_INVALID_ARGUMENT);
  EXPECT_TRUE(says(error, "bundles: is empty"));
  EXPECT_EQ(tamis_schedule_make(h.plan, h.bundles, h.schedule, error), TAMIS_INVALID_ARGUMENT);
  EXPECT_TRUE(says(error, "plan: is empty"));
  int64_t bytes;
  EXPECT_EQ(tamis_workspace_bytes(h.plan, h.schedule, &bytes, error), TAMIS_INVALID_ARGUMENT);

  ASSERT_EQ(h.prepare(c.problem, nullptr, error), TAMIS_OK) << error.text;
  EXPECT_EQ(tamis_normalize(&d.problem, nullptr, h.index, error), TAMIS_PAGE_UNMAPPED);
  EXPECT_EQ(tamis_index_view(h.index, &a, error), TAMIS_INVALID_ARGUMENT);
  EXPECT_EQ(tamis_plan_make(&c.problem, &h.capacities, 17, nullptr, h.plan, error), TAMIS_INVALID_ARGUMENT);
  auto p = sized<tamis_plan_summary>();
  EXPECT_EQ(tamis_plan_info(h.plan, &p, error), TAMIS_INVALID_ARGUMENT);
  // And they recover.
  EXPECT_EQ(h.prepare(c.problem, nullptr, error), TAMIS_OK) << error.text;
  EXPECT_EQ(tamis_plan_info(h.plan, &p, error), TAMIS_OK);
}

// Bundles point into their index set; whatever becomes of it, they must not point at something else.
TEST(CHandles, BundlesOutliveTheirIndexSetButNotItsContent) {
  TestProblem t = decode_problem();
  const CProblem c(t.problem);
  Handles h;
  Error error;
  ASSERT_EQ(h.prepare(c.problem, nullptr, error), TAMIS_OK);
  ASSERT_EQ(tamis_normalize(&c.problem, nullptr, h.index, error), TAMIS_OK);
  EXPECT_EQ(tamis_schedule_make(h.plan, h.bundles, h.schedule, error), TAMIS_STALE_PLAN);
  EXPECT_TRUE(says(error, "bundles"));
  EXPECT_EQ(tamis_capacities_of(&c.problem, h.bundles, &h.capacities, error), TAMIS_STALE_PLAN);

  ASSERT_EQ(tamis_bundle(&c.problem, h.index, nullptr, h.bundles, error), TAMIS_OK);
  tamis_index_set_destroy(h.index);
  h.index = nullptr;
  EXPECT_EQ(tamis_schedule_make(h.plan, h.bundles, h.schedule, error), TAMIS_OK) << error.text;
}

TEST(CHandles, PartsOfOtherProblems) {
  TestProblem t = decode_problem(), u({.kv_len = {70, 33}, .page_size = 16});
  u.csr({{1}, {2}});
  const CProblem c(t.problem), d(u.problem);
  Handles h, other;
  Error error;
  ASSERT_EQ(h.prepare(c.problem), TAMIS_OK);
  ASSERT_EQ(other.prepare(d.problem), TAMIS_OK);
  EXPECT_EQ(tamis_bundle(&d.problem, h.index, nullptr, other.bundles, error), TAMIS_INVALID_ARGUMENT);
  EXPECT_TRUE(says(error, "index"));
  EXPECT_EQ(tamis_capacities_of(&d.problem, h.bundles, &h.capacities, error), TAMIS_INVALID_ARGUMENT);
  int64_t bytes;
  EXPECT_EQ(tamis_workspace_bytes(h.plan, other.schedule, &bytes, error), TAMIS_STALE_PLAN);
}

}  // namespace
}  // namespace tamis::testing
