// make_plan: paths and reasons, refusals, and what a schedule refuses to hold (faults.md D1, D3, I2).
#include <gtest/gtest.h>

#include "plan/hand_bundles.h"
#include "plan/policy.h"
#include "support/expect.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of hand_bundles.h

Status refused(const Grid& g, const Capacities& c, const PlanOptions& options, int32_t block = 64) {
  return make_plan(problem_of(g), c, block, options).status();
}

Capacities some() { return {.requests = 1, .queries = 1, .rows = 1, .entries = 40, .row_entries = 40}; }

TEST(Plan, HoldsWhatWasAsked) {
  const Grid g = decode(1);
  const Plan plan = must_plan(problem_of(g), some(), 64, {.path = Path::kDirect});
  EXPECT_EQ(plan.path, Path::kDirect);
  EXPECT_EQ(plan.reason, "");
  EXPECT_EQ(plan.tile, 64);
  EXPECT_EQ(plan.shares, policy_of(Backend::kCpu).shares);
  EXPECT_EQ(plan.min_part, 8);
  EXPECT_EQ(plan.max_parts, 5);
  EXPECT_EQ(plan.splits, 0);
  EXPECT_EQ(plan.shape.head_dim, 128);
  EXPECT_EQ(plan.shape.total_q, 0);
  EXPECT_EQ(must_plan(problem_of(g), some(), 16, {}).min_part, 32);
  EXPECT_EQ(must_plan(problem_of(g), some(), 128, {}).tile, 128);
  EXPECT_EQ(must_plan(problem_of(g), some(), 128, {.min_tiles = 3}).min_part, 3);
}

TEST(Plan, AutoIsDenseForAll) {
  Problem p = problem_of(decode(1));
  p.candidates.form = CandidateForm::kAll;
  const Plan plan = must_plan(p, some(), 64, {});
  EXPECT_EQ(plan.path, Path::kDense);
  EXPECT_NE(plan.reason, "");
  EXPECT_EQ(must_plan(p, some(), 64, {.path = Path::kDirect}).path, Path::kDirect);
}

TEST(Plan, AutoIsDenseAboveAShareOfAllBlocks) {
  const double share = policy_of(Backend::kCpu).dense_share;
  for (const int64_t page_size : {int64_t{16}, int64_t{0}}) {
    Grid g = decode(2);
    g.page_size = page_size;
    g.max_pages = page_size == 0 ? 6400 : 400;  // 100 blocks of 64 a request
    const int64_t edge = static_cast<int64_t>(share * 200);
    Capacities c{.requests = 2, .queries = 2, .rows = 2, .entries = edge, .row_entries = 100};
    EXPECT_EQ(must_plan(problem_of(g), c, 64, {}).path, Path::kDirect);
    EXPECT_NE(must_plan(problem_of(g), c, 64, {}).reason, "");
    c.entries = edge + 1;
    EXPECT_EQ(must_plan(problem_of(g), c, 64, {}).path, Path::kDense);
    EXPECT_EQ(must_plan(problem_of(g), c, 64, {.path = Path::kDirect}).path, Path::kDirect);
  }
}

// A share just above the edge is not rounded down to it.
TEST(Plan, TheReasonForDenseDoesNotContradictItself) {
  Grid g = decode(2);
  g.page_size = 16;
  g.max_pages = 40'000;  // 10 000 blocks of 64 a request
  const double share = policy_of(Backend::kCpu).dense_share;
  const auto edge = static_cast<int64_t>(share * 20'000);
  const Capacities c{.requests = 2, .queries = 2, .rows = 2, .entries = edge + 1, .row_entries = 10'000};
  const Plan plan = must_plan(problem_of(g), c, 64, {});
  EXPECT_EQ(plan.path, Path::kDense);
  const std::string words = "bundles hold at least ";
  const size_t at = plan.reason.find(words);
  ASSERT_NE(at, std::string::npos) << plan.reason;
  EXPECT_GT(std::stod(plan.reason.substr(at + words.size())), share * 100) << plan.reason;
}

TEST(Plan, AutoIsDirectWhereNothingIsKnown) {
  EXPECT_EQ(must_plan(problem_of(decode(0)), {}, 64, {}).path, Path::kDirect);
  Problem p;
  p.index_only = IndexOnly{.q_heads = 4, .kv_heads = 4, .head_dim = 8, .v_head_dim = 8};
  p.query.cu_q = dense_view(nullptr, DType::kI32, {2});
  p.cache.kv_len = dense_view(nullptr, DType::kI32, {1});
  EXPECT_EQ(must_plan(p, some(), 64, {}).path, Path::kDirect);
}

TEST(Plan, GatherIsNotBuilt) {
  const Plan plan = must_plan(problem_of(decode(1)), some(), 64, {.path = Path::kGather});
  EXPECT_EQ(plan.path, Path::kDirect);
  EXPECT_NE(plan.reason.find("gather"), std::string::npos);
  const Status status = refused(decode(1), some(), {.path = Path::kGather, .fallback = Fallback::kRefuse});
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_TRUE(says(status, "path: 'gather'"));
}

TEST(Plan, RefusesWrongOptionsByName) {
  const auto code = [](const PlanOptions& o, const char* name) {
    const Status status = refused(decode(1), some(), o);
    EXPECT_TRUE(says(status, name));
    return status.code();
  };
  EXPECT_EQ(code({.backend = Backend::kReference}, "backend"), Code::kUnsupported);
  EXPECT_EQ(code({.splits = -1}, "splits"), Code::kInvalidArgument);
  EXPECT_EQ(code({.splits = (1 << 20) + 1}, "splits"), Code::kInvalidArgument);
  EXPECT_EQ(code({.shares = -1}, "shares"), Code::kInvalidArgument);
  EXPECT_EQ(code({.min_tiles = -1}, "min_tiles"), Code::kInvalidArgument);
  EXPECT_EQ(code({.workspace_budget = -2}, "workspace_budget"), Code::kInvalidArgument);
  EXPECT_EQ(code({.path = static_cast<Path>(9)}, "path"), Code::kInvalidArgument);
  EXPECT_TRUE(says(refused(decode(1), some(), {}, 48), "block: 48"));
  EXPECT_TRUE(says(refused(decode(1), {.rows = -1}, {}), "rows -1"));
  EXPECT_TRUE(says(refused(decode(1), {.row_entries = int64_t{1} << 31}, {}), "row_entries"));
  Grid wrong = decode(1);
  wrong.q_heads = 3, wrong.kv_heads = 2;
  EXPECT_EQ(refused(wrong, some(), {}).code(), Code::kInvalidArgument);
}

// The largest options that pass still plan and schedule.
TEST(Plan, ExtremesOfOptions) {
  const Grid g = decode(1);
  const HandBundles bundles(g, [](int64_t) { return 40; });
  constexpr int32_t kMost = 2147483647;
  for (PlanOptions o : {PlanOptions{.shares = kMost}, PlanOptions{.min_tiles = kMost},
                        PlanOptions{.batch_invariant = true, .min_tiles = kMost},
                        PlanOptions{.splits = 1 << 20}, PlanOptions{.workspace_budget = int64_t{1} << 62}})
    for (const Backend backend : {Backend::kCpu, Backend::kCuda}) {
      o.backend = backend;
      must_schedule(plan_for(g, bundles, o), bundles.view());
    }
}

// 0 tiles: as the policy has it for backend and mode.
TEST(Plan, ShortestPartsFollowThePolicy) {
  const auto min_part = [](Backend backend, bool batch_invariant, int32_t min_tiles) {
    return must_plan(problem_of(decode(1)), some(), 16,
                     {.backend = backend, .batch_invariant = batch_invariant, .min_tiles = min_tiles})
        .min_part;
  };
  for (const bool batch_invariant : {false, true}) {
    EXPECT_EQ(min_part(Backend::kCpu, batch_invariant, 0), 8 * 4);  // 4 blocks of 16 a tile
    EXPECT_EQ(min_part(Backend::kCuda, batch_invariant, 3), 3 * 4);
  }
  EXPECT_EQ(min_part(Backend::kCuda, false, 0), 2 * 4);
  EXPECT_EQ(min_part(Backend::kCuda, true, 0), 4 * 4);
}

TEST(Plan, InvariantPiecesGrowWithQueryRows) {
  Grid g = decode(1);
  g.q_heads = 4;
  const PlanOptions options{.path = Path::kDirect, .batch_invariant = true};
  EXPECT_EQ(must_plan(problem_of(g), some(), 64, options).min_part, 8);
  g.query_block = 64;  // 256 rows a list
  EXPECT_EQ(must_plan(problem_of(g), some(), 64, options).min_part, 8 * 16);
}

// D1: the old plan outlives a failed replan, and still runs what it ran.
TEST(Plan, FailedReplanLeavesTheOldPlan) {
  const Grid g = decode(2);
  const HandBundles bundles(g, [](int64_t) { return 40; });
  Result<Plan> plan = make_plan(problem_of(g), capacities_of(problem_of(g), bundles.view()), 64, {});
  ASSERT_TRUE(plan.ok());
  const Schedule before = must_schedule(*plan, bundles.view());
  EXPECT_FALSE(make_plan(problem_of(g), plan->capacities, 65, {}).ok());
  HandBundles longer = bundles;
  longer.bundle[1].count = 41;
  EXPECT_EQ(schedule(*plan, longer.view()).status().code(), Code::kCapacityExceeded);
  const Schedule after = must_schedule(*plan, bundles.view());
  EXPECT_TRUE(same(before.tasks, after.tasks));
  EXPECT_EQ(before.stamp, after.stamp);
}

// D3: capacity 8; dynamic 4 + window 4 + sink 1 need 9.
TEST(Plan, RowsBeyondTheCapacityAreNotCut) {
  const Grid g = decode(3);
  const Capacities c{.requests = 3, .queries = 3, .rows = 3, .entries = 100, .row_entries = 8};
  const Plan plan = must_plan(problem_of(g), c, 64, {});
  must_schedule(plan, HandBundles(g, [](int64_t) { return 8; }).view());
  const Status status =
      schedule(plan, HandBundles(g, [](int64_t b) { return b == 2 ? 9 : 8; }).view()).status();
  EXPECT_EQ(status.code(), Code::kCapacityExceeded);
  EXPECT_TRUE(says(status, "row_entries: 9 needed, the plan's capacity is 8"));
  EXPECT_EQ(status.where().row, 2);
  EXPECT_EQ(status.where().request, 2);
  EXPECT_EQ(status.where().value, 9);
  EXPECT_EQ(status.where().limit, 9);  // the first that is too large
}

TEST(Plan, EveryCapacityIsKept) {
  Grid g;
  g.q_len = {3, 2};
  g.q_heads = 4;
  const HandBundles bundles(g, [](int64_t b) { return static_cast<int32_t>(b + 1); });
  const Problem problem = problem_of(g);
  const Capacities exact = capacities_of(problem, bundles.view());
  EXPECT_EQ(exact.requests, 2);
  EXPECT_EQ(exact.queries, 5);
  EXPECT_EQ(exact.rows, 5);
  EXPECT_EQ(exact.entries, 15);
  EXPECT_EQ(exact.row_entries, 5);
  EXPECT_EQ(exact.group_rows, 4);
  must_schedule(must_plan(problem, exact, 64, {}), bundles.view());
  const auto less = [&](int64_t Capacities::*what, const char* name) {
    Capacities c = exact;
    --(c.*what);
    const Status status = schedule(must_plan(problem, c, 64, {}), bundles.view()).status();
    EXPECT_EQ(status.code(), Code::kCapacityExceeded) << name;
    EXPECT_TRUE(says(status, std::string(name) + ": "));
  };
  less(&Capacities::requests, "requests");
  less(&Capacities::queries, "queries");
  less(&Capacities::rows, "rows");
  less(&Capacities::entries, "entries");
  less(&Capacities::row_entries, "row_entries");
  less(&Capacities::group_rows, "group_rows");
}

TEST(Plan, OtherBlocksOrHeadsAreStale) {
  Grid g = decode(2);
  g.kv_heads = g.q_heads = g.index_heads = 4;
  const Plan plan = plan_for(g, HandBundles(g, [](int64_t) { return 9; }));
  const auto code = [&](const Grid& other) {
    return schedule(plan, HandBundles(other, [](int64_t) { return 1; }).view()).status().code();
  };
  EXPECT_EQ(code(g), Code::kOk);
  Grid blocks = g;
  blocks.block = 32;
  EXPECT_EQ(code(blocks), Code::kStalePlan);
  Grid heads = decode(1);
  heads.kv_heads = heads.q_heads = 5;  // one list for all five
  EXPECT_EQ(code(heads), Code::kStalePlan);
  Grid lists = decode(1);
  lists.kv_heads = 1, lists.q_heads = lists.index_heads = 5;
  EXPECT_EQ(code(lists), Code::kStalePlan);
}

// Bundles that hold a query twice would pass a bound that counts it once: refused, not overrun.
TEST(Plan, PartialStatesNeverPassTheBound) {
  const Grid g = decode(2);
  HandBundles bundles(g, [](int64_t) { return 100; });
  const Plan plan = plan_for(g, bundles, {.path = Path::kDirect, .splits = 3});
  bundles.row[0].last_query = 2;
  bundles.row[1].first_query = 0;
  Plan roomy = plan;
  roomy.capacities.group_rows = 0;
  EXPECT_EQ(schedule(roomy, bundles.view()).status().code(), Code::kCapacityExceeded);
}

TEST(Plan, PolicyIsPrintable) {
  EXPECT_NE(policy_text(policy_of(Backend::kCpu)).find("balanced, shares 16"), std::string::npos);
  EXPECT_NE(policy_text(policy_of(Backend::kCuda)).find("even, shares 264"), std::string::npos);
  static_assert(policy_of(Backend::kCpu).tile == 64);
  for (const Path path : {Path::kAuto, Path::kDirect, Path::kGather, Path::kDense})
    EXPECT_STRNE(path_name(path), "unknown");
}

}  // namespace
}  // namespace tamis
