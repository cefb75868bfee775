// Workspace: a bound from capacities alone, kept by every step; budgets; the numbers of semantics.md
// section 14.
#include "plan/workspace.h"

#include <gtest/gtest.h>

#include <limits>

#include "plan/hand_bundles.h"
#include "support/expect.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of hand_bundles.h

Capacities draw_capacities() {
  return {.requests = pick(0, 50),
          .queries = pick(0, 5000),
          .rows = pick(0, 5000),
          .entries = pick(0, 100000),
          .row_entries = pick(0, 5000),
          .group_rows = pick(1, 2000)};
}

TEST(Workspace, BoundHoldsForRandomSteps) {
  EXPECT_TRUE(rc::check("bound", [] {
    const Step step = draw_step();
    const HandBundles bundles = step.bundles();
    const Problem problem = problem_of(step.grid);
    Capacities capacities = capacities_of(problem, bundles.view());
    if (pick(0, 1) == 1) capacities.group_rows = 0;
    if (pick(0, 1) == 1) capacities.entries += pick(0, 500);
    if (pick(0, 1) == 1) capacities.row_entries += pick(0, 500);
    const Plan plan = must_plan(problem, capacities, step.grid.block, step.options);
    RC_ASSERT(plan.workspace.typical <= plan.workspace.bound);
    RC_ASSERT(must_schedule(plan, bundles.view()).stats.workspace_bytes <= plan.workspace.bound);
  }));
}

// The plan of the largest step holds every step with the same shapes and shorter rows.
TEST(Workspace, BoundHoldsForShorterRows) {
  EXPECT_TRUE(rc::check("shorter rows", [] {
    const Step step = draw_step();
    const HandBundles longest = step.bundles();
    const Plan plan = plan_for(step.grid, longest, step.options);
    HandBundles shorter = longest;
    for (Bundle& b : shorter.bundle) b.count = pick(0, b.count);
    RC_ASSERT(must_schedule(plan, shorter.view()).stats.workspace_bytes <= plan.workspace.bound);
  }));
}

// Many rows around the length of a share, where one block more is one part more: with and without a share
// that fits them all.
TEST(Workspace, BoundHoldsForEvenParts) {
  EXPECT_TRUE(rc::check("even parts", [] {
    const int32_t length = pick(1, 100);
    std::vector<int32_t> counts;
    for (int n = pick(1, 400); n > 0; --n)
      counts.push_back(*rc::gen::element(0, 1, length, length + 1, 2 * length + 1));
    const Grid g = decode(counts.size());
    const HandBundles bundles(g, [&](int64_t b) { return counts[b]; });
    const Plan plan = plan_for(
        g, bundles,
        {.backend = Backend::kCuda, .path = Path::kDirect, .shares = pick(0, 300), .min_tiles = pick(1, 3)});
    const Schedule s = must_schedule(plan, bundles.view());
    RC_ASSERT(s.stats.workspace_bytes <= plan.workspace.bound);
    RC_ASSERT(s.stats.most_parts <= plan.max_parts);
    RC_ASSERT(s.stats.parts - s.stats.split_rows < plan.shares);
  }));
}

// ... and is no more than they can need: one row of all blocks, and half as many rows as there are shares,
// each of which is cut in two.
TEST(Workspace, BoundOfEvenPartsIsReached) {
  const auto bytes = [](const std::vector<int32_t>& counts) {
    const Grid g = decode(counts.size());
    const HandBundles bundles(g, [&](int64_t b) { return counts[b]; });
    const Plan plan =
        plan_for(g, bundles, {.backend = Backend::kCuda, .path = Path::kDirect, .shares = 8, .min_tiles = 1});
    return std::pair(must_schedule(plan, bundles.view()).stats.workspace_bytes, plan.workspace.bound);
  };
  for (const std::vector<int32_t>& counts : {std::vector<int32_t>{80}, std::vector<int32_t>(4, 20)}) {
    const auto [used, bound] = bytes(counts);
    EXPECT_EQ(used, partial_layout(8, 128).bytes);
    EXPECT_LE(bound, partial_layout(7 + static_cast<int64_t>(counts.size()), 128).bytes);
  }
  EXPECT_EQ(bytes({80}).second, partial_layout(8, 128).bytes);
}

TEST(Workspace, TypicalHoldsForRowsOfLikeLength) {
  EXPECT_TRUE(rc::check("like rows", [] {
    Step step = draw_step();
    step.grid.query_block = step.grid.neighbours = 1;
    step.blocks.resize(1);
    const HandBundles bundles = step.bundles();
    const Problem problem = problem_of(step.grid);
    Capacities capacities = capacities_of(problem, bundles.view());
    capacities.row_entries += pick(0, 5000);  // rows could be longer, but are not
    const Plan plan = must_plan(problem, capacities, step.grid.block, step.options);
    RC_ASSERT(must_schedule(plan, bundles.view()).stats.workspace_bytes <= plan.workspace.typical);
  }));
}

TEST(Workspace, RisesWithEveryCapacity) {
  EXPECT_TRUE(rc::check("monotone", [] {
    const Step step = draw_step();
    const Problem problem = problem_of(step.grid);
    const Capacities less = draw_capacities();
    Capacities more = less;
    for (int64_t* c :
         {&more.requests, &more.queries, &more.rows, &more.entries, &more.row_entries, &more.group_rows})
      *c += pick(0, 1) * pick(0, 1000);
    RC_ASSERT(must_plan(problem, less, step.grid.block, step.options).workspace.bound <=
              must_plan(problem, more, step.grid.block, step.options).workspace.bound);
    more.group_rows = 0;  // unstated: the most
    RC_ASSERT(must_plan(problem, less, step.grid.block, step.options).workspace.bound <=
              must_plan(problem, more, step.grid.block, step.options).workspace.bound);
  }));
}

TEST(Workspace, BudgetIsKept) {
  EXPECT_TRUE(rc::check("budget", [] {
    Step step = draw_step();
    const HandBundles bundles = step.bundles();
    const Plan free = plan_for(step.grid, bundles, step.options);
    step.options.workspace_budget = *rc::gen::inRange<int64_t>(0, free.workspace.bound + 1000);
    const Plan plan = plan_for(step.grid, bundles, step.options);
    const int64_t budget = step.options.workspace_budget;
    RC_ASSERT(plan.workspace.bound <= budget);
    RC_ASSERT(must_schedule(plan, bundles.view()).stats.workspace_bytes <= budget);
    RC_ASSERT((plan.workspace.bound == free.workspace.bound) == plan.reason.empty());
    RC_ASSERT((free.workspace.bound <= budget) == plan.reason.empty());
    if (plan.reason.empty()) return;
    // One step back would have been too much.
    PlanOptions back = step.options;
    back.workspace_budget = -1;
    if (plan.splits > 0) {
      back.splits = plan.splits + 1;
    } else if (!plan.batch_invariant) {
      back.shares = plan.shares + 1;
    } else {
      return;
    }
    RC_ASSERT(plan_for(step.grid, bundles, back).workspace.bound > budget);
  }));
}

TEST(Workspace, InvariantPiecesGrowNoMoreThanTheBudgetAsks) {
  const Capacities c{
      .requests = 64, .queries = 64, .rows = 512, .entries = 60000, .row_entries = 1024, .group_rows = 4};
  const Shape shape = *describe(
      problem_of({.q_len = std::vector<int32_t>(64, 1), .q_heads = 32, .kv_heads = 8, .index_heads = 8}));
  const SplitRule rule{.split = Split::kInvariant, .shares = 64, .min_part = 8, .splits = 0};
  const int64_t all = workspace_size(rule, c, shape).bound;
  for (const int64_t budget : {all, all - 1, all / 2, all / 50, int64_t{0}}) {
    SplitRule fit = fit_budget(rule, c, shape, budget);
    EXPECT_LE(workspace_size(fit, c, shape).bound, budget);
    if (fit.min_part == rule.min_part) continue;
    --fit.min_part;
    EXPECT_GT(workspace_size(fit, c, shape).bound, budget);
  }
}

TEST(Workspace, ForcedSplitsBeyondTheBudget) {
  const Grid g = decode(4);
  const HandBundles bundles(g, [](int64_t) { return 100; });
  const int64_t four = 4 * 4 * (128 + 2) * 4;  // splits, rows, Dv + 2, bytes
  PlanOptions options{.path = Path::kDirect, .splits = 4, .workspace_budget = four};
  EXPECT_EQ(plan_for(g, bundles, options).workspace.bound, four);
  options.workspace_budget = four - 1;
  const Plan less = plan_for(g, bundles, options);
  EXPECT_EQ(less.splits, 3);
  EXPECT_NE(less.reason.find("3 splits instead of 4"), std::string::npos) << less.reason;
  options.fallback = Fallback::kRefuse;
  const Problem problem = problem_of(g);
  const Status status = make_plan(problem, capacities_of(problem, bundles.view()), g.block, options).status();
  EXPECT_EQ(status.code(), Code::kWorkspaceTooSmall);
  EXPECT_TRUE(says(status, std::to_string(four) + " bytes"));
  // No budget is too small for whole rows.
  options.splits = 0;
  options.workspace_budget = 0;
  const Plan whole = plan_for(g, bundles, options);
  EXPECT_EQ(whole.workspace.bound, 0);
  EXPECT_EQ(must_schedule(whole, bundles.view()).stats.parts, 0);
}

// K2: the bound of a prefill is of the order of what its split rows need, not of queries squared.
TEST(Workspace, PrefillStaysSmall) {
  const Grid g{.q_len = {4096}, .query_block = 64, .q_heads = 32, .kv_heads = 8, .index_heads = 8};
  const HandBundles bundles(g, [](int64_t) { return 256; });
  const Plan plan = plan_for(g, bundles, {.path = Path::kDirect});
  EXPECT_LE(plan.workspace.bound,
            2 * 63 * 256 * (128 + 2) * 4 + 192);  // borders, parts each, rows of a group
  EXPECT_LE(must_schedule(plan, bundles.view()).stats.workspace_bytes, plan.workspace.bound);
}

TEST(Workspace, HugeCapacitiesDoNotWrap) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  Grid g;
  g.q_heads = 64;
  const Plan plan = must_plan(problem_of(g),
                              {.requests = kMost,
                               .queries = kMost,
                               .rows = kMost,
                               .entries = std::numeric_limits<int64_t>::max(),
                               .row_entries = kMost},
                              64, {.path = Path::kDirect, .splits = 1 << 20});
  EXPECT_EQ(plan.workspace.bound, std::numeric_limits<int64_t>::max());
  // Blocks of four KV heads together pass 64 bits: as good as merely many.
  g.kv_heads = 4;
  Capacities c{.requests = 9, .queries = 9, .rows = 9, .entries = int64_t{1} << 40, .row_entries = 1 << 20};
  const int64_t many = must_plan(problem_of(g), c, 64, {.path = Path::kDirect}).workspace.bound;
  c.entries = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(must_plan(problem_of(g), c, 64, {.path = Path::kDirect}).workspace.bound, many);
}

// The 64K case of section 14: 32 query and 8 KV heads, one list a KV head, 264 pages of 16 or 116 tiles
// of 64.
Grid case_64k(int32_t block, size_t batch) {
  Grid g = decode(batch, block);
  g.q_heads = 32;
  g.kv_heads = g.index_heads = 8;
  return g;
}

TEST(Workspace, WorkedExampleFourSplits) {
  const Grid g = case_64k(64, 1);
  const HandBundles bundles(g, [](int64_t) { return 116; });
  for (const PlanOptions& options :
       {PlanOptions{.path = Path::kDirect, .splits = 4}, PlanOptions{.path = Path::kDirect, .shares = 32}}) {
    const Plan plan = plan_for(g, bundles, options);
    const Schedule s = must_schedule(plan, bundles.view());
    EXPECT_EQ(s.tasks.size(), 32u);
    for (const Task& t : s.tasks) EXPECT_EQ(t.end - t.begin, 29);
    EXPECT_EQ(partial_bytes(plan, s), 65536 + 1024);
    EXPECT_EQ(s.part_rows.back(), 4 * 32);
  }
  const Grid many = case_64k(64, 64);
  const HandBundles batch(many, [](int64_t) { return 116; });
  const Plan plan = plan_for(many, batch, {.path = Path::kDirect, .splits = 4});
  EXPECT_EQ(partial_bytes(plan, must_schedule(plan, batch.view())), 64 * (65536 + 1024));  // 4.0625 MiB
  EXPECT_EQ(plan.workspace.bound, 64 * (65536 + 1024));
}

TEST(Workspace, WorkedExampleBlocksOf16) {
  const Grid g = case_64k(16, 1);
  const HandBundles bundles(g, [](int64_t) { return 264; });
  const Schedule s =
      must_schedule(plan_for(g, bundles, {.path = Path::kDirect, .splits = 264}), bundles.view());
  int64_t tasks = 0, tokens = 0;
  for (const Task& t : s.tasks) {
    if (t.kv_head != 3) continue;
    ++tasks;
    tokens += int64_t{16} * (t.end - t.begin);
  }
  EXPECT_EQ(tasks, 264);
  EXPECT_EQ(tokens, 4224);
}

// 8 splits x 32 heads x 128 x f32 over 1024 rows: 128 MiB; m and l: 2 MiB.
TEST(Workspace, WorkedExampleEightSplits) {
  Grid g = decode(1024);
  g.q_heads = 32;
  const HandBundles bundles(g, [](int64_t) { return 128; });
  const Plan plan = plan_for(g, bundles, {.path = Path::kDirect, .splits = 8});
  EXPECT_EQ(plan.workspace.bound, (int64_t{128} << 20) + (int64_t{2} << 20));
}

TEST(Workspace, PartialLayoutPutsEachArrayOnALine) {
  for (const int64_t rows : {0, 1, 15, 16, 17, 1000})
    for (const int64_t dim : {1, 3, 64, 128}) {
      const PartialLayout at = partial_layout(rows, dim);
      EXPECT_EQ(at.o, 0);
      for (const int64_t offset : {at.m, at.l, at.bytes}) EXPECT_EQ(offset % 64, 0);
      EXPECT_GE(at.m, rows * dim * 4);
      EXPECT_GE(at.l, at.m + rows * 4);
      EXPECT_GE(at.bytes, at.l + rows * 4);
      EXPECT_LT(at.bytes, rows * (dim + 2) * 4 + 3 * 64);
    }
}

}  // namespace
}  // namespace tamis
