// The device's schedule on the host, against the partition itself: as many groups as prefill has, so that all
// ways to write tasks are met.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "emulated/steps/emulate.h"

namespace tamis {
namespace {

struct Given {
  std::vector<int32_t> counts;  // of bundles; -1: no such row
  Split split = Split::kEven;
  int64_t min_part = 4, parts = 0, shares = 132, most_tasks = 1 << 14;
  int32_t kv_heads_served = 1, bundles_a_block = 2;
};

struct Written {
  std::string error;
  ScratchHead head{};
  DeviceControl control{};
  std::vector<DeviceTask> tasks;
};

Written written(Given g) {
  const auto bundles = static_cast<int32_t>(g.counts.size());
  Written w;
  index::IndexHead head{.stamp = 0, .mark = {7, 8}, .unused = 0};
  std::vector<uint64_t> offence(g.counts.size(), index::kNoOffence);
  std::vector<index::OffenceRecord> record(g.counts.size());
  constexpr int64_t kArrivals = 40;
  alignas(16) uint32_t arrivals[kArrivals];
  std::fill(std::begin(arrivals), std::end(arrivals), 9u);
  w.tasks.resize(static_cast<size_t>(g.most_tasks));
  ScheduleArgs a{};
  a.index.head = &head;
  a.index.count = g.counts.data();
  a.index.offence = offence.data();
  a.index.record = record.data();
  a.index.bundles = bundles;
  a.scratch.head = &w.head;
  a.scratch.tasks = w.tasks.data();
  a.scratch.arrivals = arrivals;
  a.control = &w.control;
  a.rule = {g.split, 0, g.min_part, g.parts};
  a.shares = g.shares;
  a.most_tasks = g.most_tasks;
  a.most_parts = 1 << 14;
  a.arrivals = kArrivals;
  a.kv_heads_served = g.kv_heads_served;
  a.bundles_a_block = g.bundles_a_block;
  a.plan = 5;
  a.index_plan = 7;
  w.error = testing::emulate_schedule(a, 1);
  for (const uint32_t n : arrivals) EXPECT_EQ(n, 0u);
  return w;
}

// Tasks by the functions of src/plan/partition.h, group after group.
std::vector<DeviceTask> wanted(const Given& g) {
  std::vector<int64_t> prefix{0};
  for (const int32_t n : g.counts)
    for (int32_t h = 0; n >= 0 && h < g.kv_heads_served; ++h) prefix.push_back(prefix.back() + n);
  const auto groups = static_cast<int64_t>(prefix.size()) - 1;
  const Partition rule =
      g.split == Split::kEven
          ? even_partition(even_share(prefix.data(), groups, g.shares, g.min_part), g.min_part)
          : Partition{g.split, 0, g.min_part, g.parts};
  std::vector<DeviceTask> tasks;
  int32_t parts = 0;
  for (int32_t group = 0; group < groups; ++group) {
    const Cuts cuts = cut_group(rule, prefix.data(), group);
    const int32_t bundle = group / g.kv_heads_served;
    for (int32_t i = 0; i < cuts.parts; ++i)
      tasks.push_back(
          {.bundle = bundle,
           .kv_head = g.kv_heads_served > 1 ? group % g.kv_heads_served : bundle % g.bundles_a_block,
           .begin = static_cast<int32_t>(border(cuts, i)),
           .end = static_cast<int32_t>(border(cuts, i + 1)),
           .part = cuts.parts > 1 ? parts + i : -1,
           .first_part = parts,
           .parts = static_cast<int32_t>(cuts.parts),
           .counter = group});
    if (cuts.parts > 1) parts += static_cast<int32_t>(cuts.parts);
  }
  return tasks;
}

bool same(const DeviceTask& a, const DeviceTask& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

void expect_as_wanted(const Given& g) {
  const Written w = written(g);
  ASSERT_EQ(w.error, "");
  const std::vector<DeviceTask> want = wanted(g);
  ASSERT_EQ(w.head.code, 0);
  ASSERT_EQ(w.head.tasks, static_cast<int32_t>(want.size()));
  for (size_t t = 0; t < w.tasks.size(); ++t)
    ASSERT_TRUE(same(w.tasks[t], t < want.size() ? want[t] : DeviceTask{})) << "task " << t;
}

constexpr int32_t kSizes[] = {1, 255, 256, 257, 2048, 2049, 4096, 4097, 6200};

// `longer`: of 2048, one after the other; -1: none.
Given given(int32_t bundles, int32_t longer) {
  Given g;
  for (int32_t b = 0; b < bundles; ++b) g.counts.push_back(b % 2048 == longer ? 4000 : 20 + b % 5);
  return g;
}

TEST(EmulatedSchedule, ManyGroupsOfWhichNoneIsCut) {
  for (const int32_t bundles : kSizes) expect_as_wanted(given(bundles, -1));
}

TEST(EmulatedSchedule, ManyGroupsOfWhichOneIsCut) {
  for (const int32_t bundles : kSizes)
    for (const int32_t longer : {0, 255, 1900}) {
      Given g = given(bundles, longer);
      g.shares = 20'000 / g.min_part;
      expect_as_wanted(g);
    }
  Given last = given(6200, -1);  // only the last chunk has one
  last.counts[6100] = 1 << 20;
  expect_as_wanted(last);
}

TEST(EmulatedSchedule, RowsThatThisStepDoesNotHave) {
  for (const int32_t there : {0, 1, 300, 4096}) {
    Given g = given(4500, -1);
    std::fill(g.counts.begin() + there, g.counts.end(), -1);
    expect_as_wanted(g);
  }
}

TEST(EmulatedSchedule, GroupsThatShareABundle) {
  for (const int32_t bundles : {37, 1500}) {
    Given g = given(bundles, -1);
    g.kv_heads_served = 3;
    expect_as_wanted(g);
  }
}

TEST(EmulatedSchedule, OtherSplits) {
  for (const Split split : {Split::kForced, Split::kInvariant})
    for (const int32_t longer : {-1, 7}) {
      Given g = given(2500, longer);
      g.split = split;
      g.min_part = 16;
      g.parts = longer < 0 ? 1 : 3;
      expect_as_wanted(g);
    }
}

TEST(EmulatedSchedule, MoreTasksThanThePlanHolds) {
  for (const int32_t bundles : {300, 5000}) {
    Given g = given(bundles, -1);
    g.most_tasks = bundles - 1;
    const Written w = written(g);
    ASSERT_EQ(w.error, "");
    EXPECT_EQ(w.control.verdict.code, static_cast<int32_t>(Code::kCapacityExceeded));
    EXPECT_EQ(w.control.verdict.value, bundles);
    EXPECT_EQ(w.head.tasks, 0);
    for (const DeviceTask& t : w.tasks) ASSERT_TRUE(same(t, {}));
  }
}

}  // namespace
}  // namespace tamis
