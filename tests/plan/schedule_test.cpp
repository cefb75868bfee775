// Schedules of random steps: what a kernel may rely on, whatever the options.
#include <gtest/gtest.h>

#include <map>

#include "plan/hand_bundles.h"
#include "plan/partition.h"
#include "plan/policy.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of hand_bundles.h

using Group = std::pair<int32_t, int32_t>;  // bundle, KV head

std::map<Group, std::vector<Task>> by_group(const Schedule& s) {
  std::map<Group, std::vector<Task>> out;
  for (const Task& t : s.tasks) out[{t.bundle, t.kv_head}].push_back(t);
  return out;
}

// Counted pair by pair from the definition of index heads.
int64_t rows_by_hand(const Grid& g, const BundleView& v, const Group& group) {
  const Bundle& b = v.bundle[group.first];
  int64_t rows = 0;
  for (int32_t list = 0; list < b.lists; ++list) {
    const RowInfo& row = v.row[v.rows[b.first_list + list]];
    for (int32_t q = row.first_query; q < row.last_query; ++q)
      for (int64_t h = 0; h < g.q_heads; ++h)
        rows +=
            h / (g.q_heads / g.index_heads) == row.index_head && h / (g.q_heads / g.kv_heads) == group.second;
  }
  return rows;
}

TEST(Schedule, EveryBlockIsInExactlyOneTask) {
  EXPECT_TRUE(rc::check("coverage", [] {
    const Step step = draw_step();
    const HandBundles bundles = step.bundles();
    const BundleView v = bundles.view();
    const Schedule s = must_schedule(plan_for(step.grid, bundles, step.options), v);
    auto groups = by_group(s);
    for (int32_t b = 0; b < v.bundles; ++b)
      for (int32_t h = v.bundle[b].kv_head; h < v.bundle[b].kv_head + v.bundle[b].kv_heads; ++h) {
        std::vector<int> seen(v.bundle[b].count);
        for (const Task& t : groups[Group(b, h)]) {
          RC_ASSERT(0 <= t.begin && t.begin <= t.end && t.end <= v.bundle[b].count);
          for (int32_t e = t.begin; e < t.end; ++e) ++seen[e];
        }
        for (const int n : seen) RC_ASSERT(n == 1);
        if (v.bundle[b].count == 0) {  // zero-filled once, by a task that owns the row
          RC_ASSERT(groups[Group(b, h)].size() == 1u);
          RC_ASSERT(groups[Group(b, h)][0].part == -1);
        }
        groups.erase({b, h});
      }
    RC_ASSERT(groups.empty());  // none that the bundles do not serve
  }));
}

TEST(Schedule, PartsAreContiguousAndAscend) {
  EXPECT_TRUE(rc::check("parts", [] {
    const Step step = draw_step();
    const HandBundles bundles = step.bundles();
    const Schedule s = must_schedule(plan_for(step.grid, bundles, step.options), bundles.view());
    std::map<int32_t, Task> of_part;
    for (const Task& t : s.tasks)
      if (t.part >= 0) RC_ASSERT(of_part.emplace(t.part, t).second);
    int32_t next = 0;
    RC_ASSERT(s.part_rows.size() == of_part.size() + 1);
    RC_ASSERT(s.part_rows[0] == 0);
    for (const MergeItem& m : s.merges) {
      RC_ASSERT(m.first_part == next);
      RC_ASSERT(m.parts >= 2);
      int32_t at = 0;
      for (int32_t i = 0; i < m.parts; ++i) {
        const Task& t = of_part.at(m.first_part + i);
        RC_ASSERT(t.bundle == m.bundle && t.kv_head == m.kv_head && t.begin == at);
        at = t.end;
        RC_ASSERT(s.part_rows[m.first_part + i + 1] - s.part_rows[m.first_part + i] ==
                  rows_by_hand(step.grid, bundles.view(), {m.bundle, m.kv_head}));
      }
      RC_ASSERT(at == bundles.bundle[m.bundle].count);
      next += m.parts;
    }
    RC_ASSERT(next == static_cast<int32_t>(of_part.size()));
    // A group with a task that is no part has only that one.
    for (const auto& [group, tasks] : by_group(s))
      for (const Task& t : tasks) RC_ASSERT(t.part >= 0 || tasks.size() == 1u);
  }));
}

TEST(Schedule, PartSizesAndCounts) {
  EXPECT_TRUE(rc::check("sizes", [] {
    const Step step = draw_step();
    const HandBundles bundles = step.bundles();
    const Plan plan = plan_for(step.grid, bundles, step.options);
    const Schedule s = must_schedule(plan, bundles.view());
    int64_t total = 0;
    const auto groups = by_group(s);
    for (const Task& t : s.tasks) total += t.end - t.begin;
    for (const auto& [group, tasks] : groups) {
      RC_ASSERT(static_cast<int64_t>(tasks.size()) <= std::max<int64_t>(1, plan.max_parts));
      if (plan.splits > 0) {
        RC_ASSERT(static_cast<int64_t>(tasks.size()) ==
                  (bundles.bundle[group.first].count == 0 ? 1 : plan.splits));
        continue;
      }
      for (const Task& t : tasks) {
        RC_ASSERT(tasks.size() == 1u || t.end - t.begin >= plan.min_part);
        // An even share is chosen to be no more than three of these.
        const int64_t share = plan.batch_invariant ? 0 : (total + plan.shares - 1) / plan.shares;
        const int64_t times = plan.backend == Backend::kCuda ? 3 : 1;
        RC_ASSERT(t.end - t.begin <= std::max(times * share, plan.min_part) + 2 * plan.min_part - 2 +
                                         (plan.batch_invariant ? 1 : 0));
      }
    }
    if (plan.splits == 0 && !plan.batch_invariant)
      RC_ASSERT(s.tasks.size() <= groups.size() + static_cast<size_t>(plan.shares));
  }));
}

TEST(Schedule, StatisticsCount) {
  EXPECT_TRUE(rc::check("statistics", [] {
    const Step step = draw_step();
    const HandBundles bundles = step.bundles();
    const Plan plan = plan_for(step.grid, bundles, step.options);
    const Schedule s = must_schedule(plan, bundles.view());
    std::vector<int64_t> lengths;
    int64_t parts = 0;
    for (const Task& t : s.tasks) {
      lengths.push_back(t.end - t.begin);
      parts += t.part >= 0;
    }
    std::sort(lengths.begin(), lengths.end());
    RC_ASSERT(s.stats.tasks == static_cast<int64_t>(s.tasks.size()));
    RC_ASSERT(s.stats.parts == parts);
    RC_ASSERT(s.stats.split_rows == static_cast<int64_t>(s.merges.size()));
    int64_t most_parts = 1;
    for (const MergeItem& m : s.merges) most_parts = std::max<int64_t>(most_parts, m.parts);
    RC_ASSERT(s.stats.most_parts == most_parts);
    RC_ASSERT(s.stats.empty_tasks == std::count(lengths.begin(), lengths.end(), 0));
    RC_ASSERT(s.stats.workspace_bytes == partial_bytes(plan, s));
    if (lengths.empty()) return;
    const size_t n = lengths.size();
    RC_ASSERT(s.stats.task_blocks.p50 == lengths[(n + 1) / 2 - 1]);
    RC_ASSERT(s.stats.task_blocks.p95 == lengths[(n * 95 + 99) / 100 - 1]);
    RC_ASSERT(s.stats.task_blocks.max == lengths.back());
  }));
}

// Lengths too long to count in bins.
TEST(Schedule, StatisticsOfVeryLongTasks) {
  const Grid g = decode(5, 16);
  const HandBundles bundles(g, [](int64_t b) { return std::vector{500000, 7, 90000, 100000, 3}[b]; });
  const Schedule s =
      must_schedule(plan_for(g, bundles, {.path = Path::kDirect, .splits = 1}), bundles.view());
  EXPECT_EQ(s.stats.task_blocks.p50, 90000);
  EXPECT_EQ(s.stats.task_blocks.p95, 500000);
  EXPECT_EQ(s.stats.task_blocks.max, 500000);
}

TEST(Schedule, SameInputSameSchedule) {
  EXPECT_TRUE(rc::check("purity", [] {
    const Step step = draw_step();
    const HandBundles one = step.bundles(), two = step.bundles();
    const Schedule a = must_schedule(plan_for(step.grid, one, step.options), one.view());
    const Schedule b = must_schedule(plan_for(step.grid, two, step.options), two.view());
    RC_ASSERT(same(a.tasks, b.tasks));
    RC_ASSERT(same(a.merges, b.merges));
    RC_ASSERT(a.part_rows == b.part_rows);
    RC_ASSERT(a.stamp == b.stamp && a.fingerprint == b.fingerprint);
  }));
}

std::vector<std::pair<int32_t, int32_t>> cuts_of(const Schedule& s, int32_t bundle) {
  std::vector<std::pair<int32_t, int32_t>> out;
  for (const Task& t : s.tasks)
    if (t.bundle == bundle) out.push_back({t.begin, t.end});
  return out;
}

// F3: alone, beside a prefill, beside 1000 short rows; each with a plan of its own capacities.
TEST(Schedule, BatchInvariantRowsIgnoreTheirNeighbours) {
  const int32_t row = (8193 + 63) / 64;
  const PlanOptions options{.path = Path::kDirect, .batch_invariant = true};
  const auto cuts = [&](std::vector<int32_t> counts, int32_t at) {
    const Grid g = decode(counts.size());
    const HandBundles bundles(g, [&](int64_t b) { return counts[b]; });
    return cuts_of(must_schedule(plan_for(g, bundles, options), bundles.view()), at);
  };
  const auto alone = cuts({row}, 0);
  EXPECT_GT(alone.size(), 2u);
  EXPECT_EQ(cuts({9, 10, row}, 2), alone);
  EXPECT_EQ(cuts({row, 2000, 1}, 0), alone);
  std::vector<int32_t> many(1001, 1);
  many[700] = row;
  EXPECT_EQ(cuts(many, 700), alone);
}

TEST(Schedule, BatchInvariantProperty) {
  EXPECT_TRUE(rc::check("batch invariant", [] {
    Step step = draw_step();
    step.options.splits = 0;
    step.options.batch_invariant = true;
    const HandBundles bundles = step.bundles();
    const Plan plan = plan_for(step.grid, bundles, step.options);
    const Schedule all = must_schedule(plan, bundles.view());
    for (int32_t b = 0; b < bundles.view().bundles; ++b) {
      HandBundles alone = bundles;
      alone.bundle = {bundles.bundle[b]};
      RC_ASSERT(cuts_of(must_schedule(plan, alone.view()), 0) == cuts_of(all, b));
    }
  }));
}

// K5: one row of 131072 ids beside 63 of 128, the long one anywhere. An equal share is what every worker
// would carry if work could be cut anywhere; no task exceeds twice that.
TEST(Schedule, OneLongRowIsSpread) {
  for (const int32_t block : {16, 32, 64, 128})
    for (const int64_t at : {0, 1, 31, 63}) {
      const Grid g = decode(64, block);
      const HandBundles bundles(g, [&](int64_t b) { return (b == at ? 131072 : 128) / block; });
      const Plan plan = plan_for(g, bundles, {.path = Path::kDirect});
      const Schedule s = must_schedule(plan, bundles.view());
      const double mean = static_cast<double>(bundles.view().entries) / plan.shares;
      EXPECT_LE(static_cast<double>(s.stats.task_blocks.max), 2 * mean) << "block " << block << " at " << at;
      EXPECT_EQ(s.stats.split_rows, 1);
      EXPECT_GE(s.stats.parts, plan.shares - 4);
      const Plan whole = plan_for(g, bundles, {.path = Path::kDirect, .splits = 1});
      EXPECT_EQ(must_schedule(whole, bundles.view()).stats.task_blocks.max, 131072 / block);
    }
}

// Balanced on CUDA means even: one share for all rows of the step, found from their lengths.
TEST(Schedule, CudaCutsRowsEvenly) {
  EXPECT_TRUE(rc::check("even", [] {
    Step step = draw_step();
    step.options.backend = Backend::kCuda;
    step.options.splits = 0;
    step.options.batch_invariant = false;
    const HandBundles bundles = step.bundles();
    const Plan plan = plan_for(step.grid, bundles, step.options);
    const Schedule s = must_schedule(plan, bundles.view());
    std::vector<int64_t> prefix{0};
    for (const auto& [group, tasks] : by_group(s))
      prefix.push_back(prefix.back() + bundles.bundle[group.first].count);
    const int64_t groups = static_cast<int64_t>(prefix.size()) - 1;
    const int64_t share = even_share(prefix.data(), groups, plan.shares, plan.min_part);
    for (const auto& [group, tasks] : by_group(s)) {
      const int64_t count = bundles.bundle[group.first].count,
                    parts = even_parts(count, share, plan.min_part);
      RC_ASSERT(static_cast<int64_t>(tasks.size()) == parts);
      for (int64_t i = 0; i < parts; ++i) RC_ASSERT(tasks[i].begin == i * count / parts);
    }
  }));
}

// 64 rows of 264 blocks on 264 workers: even parts take one wave, balanced ones would need a second.
TEST(Schedule, CudaStepsFitOneWave) {
  const Grid g = decode(64, 16);
  const HandBundles bundles(g, [](int64_t) { return 264; });
  PlanOptions options{.backend = Backend::kCuda, .path = Path::kDirect};
  const Schedule even = must_schedule(plan_for(g, bundles, options), bundles.view());
  EXPECT_EQ(even.tasks.size(), 256u);
  for (const Task& t : even.tasks) EXPECT_EQ(t.end - t.begin, 66);
  options.shares = policy_of(Backend::kCuda).shares;
  options.min_tiles = policy_of(Backend::kCuda).min_tiles;
  options.backend = Backend::kCpu;
  const Schedule balanced = must_schedule(plan_for(g, bundles, options), bundles.view());
  EXPECT_GT(balanced.tasks.size(), 264u);
  // The other modes are cut as on the CPU.
  for (const PlanOptions& o : {PlanOptions{.path = Path::kDirect, .splits = 5, .min_tiles = 4},
                               PlanOptions{.path = Path::kDirect, .batch_invariant = true, .min_tiles = 4}}) {
    PlanOptions cuda = o;
    cuda.backend = Backend::kCuda;
    EXPECT_TRUE(same(must_schedule(plan_for(g, bundles, cuda), bundles.view()).tasks,
                     must_schedule(plan_for(g, bundles, o), bundles.view()).tasks));
  }
}

// D6: edges of prefix sums.
TEST(Schedule, BatchesOfEmptyRows) {
  for (const size_t requests : {0, 1, 31, 32, 33, 64})
    for (const PlanOptions& options :
         {PlanOptions{}, PlanOptions{.splits = 3}, PlanOptions{.batch_invariant = true}}) {
      const Grid g = decode(requests);
      const HandBundles bundles(g, [](int64_t) { return 0; });
      const Schedule s = must_schedule(plan_for(g, bundles, options), bundles.view());
      EXPECT_EQ(s.tasks.size(), requests);
      EXPECT_EQ(s.stats.empty_tasks, static_cast<int64_t>(requests));
      EXPECT_EQ(s.stats.parts, 0);
      EXPECT_EQ(s.stats.workspace_bytes, 0);
      EXPECT_EQ(s.part_rows, std::vector<int64_t>{0});
      for (const Task& t : s.tasks) EXPECT_TRUE(t.begin == 0 && t.end == 0 && t.part == -1);
    }
}

TEST(Schedule, OneLastRowAmongEmptyOnes) {
  const Grid g = decode(33);
  const HandBundles bundles(g, [](int64_t b) { return b == 32 ? 640 : 0; });
  const Schedule s =
      must_schedule(plan_for(g, bundles, {.path = Path::kDirect, .shares = 64}), bundles.view());
  EXPECT_EQ(s.stats.split_rows, 1);
  EXPECT_EQ(s.stats.empty_tasks, 32);
  EXPECT_EQ(s.stats.task_blocks.max, 10);
}

TEST(Schedule, ManyRows) {
  for (const size_t requests : {11623, 65536}) {
    const Grid g = decode(requests);
    const HandBundles bundles(g, [](int64_t) { return 1; });
    const Schedule s = must_schedule(plan_for(g, bundles), bundles.view());
    EXPECT_EQ(s.tasks.size(), requests);
    EXPECT_EQ(s.stats.parts, 0);
    EXPECT_EQ(s.tasks.back().bundle, static_cast<int32_t>(requests) - 1);
  }
}

TEST(Schedule, ARowOf161Splits) {
  for (const int32_t blocks : {1, 160, 161, 162, 5000}) {
    const Grid g = decode(2);
    const HandBundles bundles(g, [&](int64_t) { return blocks; });
    const Schedule s =
        must_schedule(plan_for(g, bundles, {.path = Path::kDirect, .splits = 161}), bundles.view());
    EXPECT_EQ(s.stats.parts, 322);
    EXPECT_EQ(s.stats.split_rows, 2);
    EXPECT_EQ(s.stats.empty_tasks, blocks < 161 ? 2 * (161 - blocks) : 0);
    EXPECT_EQ(s.stats.task_blocks.max, (blocks + 160) / 161);
  }
}

}  // namespace
}  // namespace tamis
