// Turning bundles into tasks, on the host.
#include <algorithm>
#include <limits>

#include "core/checks.h"
#include "plan/fit.h"
#include "plan/policy.h"
#include "plan/rows.h"
#include "plan/tasks.h"

namespace tamis {
namespace {

// Blocks before each group, bundle-major: [groups + 1].
std::vector<int64_t> prefix_of_groups(const BundleView& view) {
  std::vector<int64_t> prefix{0};
  prefix.reserve(view.bundles + 1);
  for (int64_t b = 0; b < view.bundles; ++b)
    for (int32_t h = 0; h < view.bundle[b].kv_heads; ++h)
      prefix.push_back(prefix.back() + view.bundle[b].count);
  return prefix;
}

Partition partition_of(const Plan& plan, const std::vector<int64_t>& prefix) {
  if (split_of(plan.backend, plan.splits, plan.batch_invariant) != Split::kEven)
    return make_partition(prefix.back(), plan.splits, plan.batch_invariant, plan.shares, plan.min_part);
  const int64_t groups = static_cast<int64_t>(prefix.size()) - 1;
  return even_partition(even_share(prefix.data(), groups, plan.shares, plan.min_part), plan.min_part);
}

struct Sizes {
  int64_t tasks = 0, parts = 0, merges = 0, most_parts = 1;
};

Sizes count_parts(const Partition& partition, const std::vector<int64_t>& prefix) {
  Sizes sizes;
  for (size_t g = 0; g + 1 < prefix.size(); ++g) {
    const int64_t parts = cut_group(partition, prefix.data(), g).parts;
    sizes.tasks += parts;
    if (parts < 2) continue;
    sizes.parts += parts;
    sizes.most_parts = std::max(sizes.most_parts, parts);
    ++sizes.merges;
  }
  return sizes;
}

// Task lengths in blocks, nearest rank. Counting beats sorting while tasks are short, and they are: shares
// are equal.
Percentiles lengths(const std::vector<Task>& tasks) {
  constexpr int64_t kMostBins = 1 << 16;
  if (tasks.empty()) return {};
  const int64_t n = static_cast<int64_t>(tasks.size());
  const int64_t at50 = (n * 50 + 99) / 100 - 1, at95 = (n * 95 + 99) / 100 - 1;
  Percentiles out;
  for (const Task& t : tasks) out.max = std::max<int64_t>(out.max, t.end - t.begin);
  if (out.max < kMostBins) {
    std::vector<int32_t> bins(out.max + 1);
    for (const Task& t : tasks) ++bins[t.end - t.begin];
    int64_t below = 0;  // tasks shorter than `blocks`
    for (int64_t blocks = 0; blocks <= out.max; below += bins[blocks++]) {
      if (below <= at50) out.p50 = blocks;
      if (below <= at95) out.p95 = blocks;
    }
    return out;
  }
  std::vector<int32_t> blocks;
  blocks.reserve(tasks.size());
  for (const Task& t : tasks) blocks.push_back(t.end - t.begin);
  std::nth_element(blocks.begin(), blocks.begin() + at95, blocks.end());
  out.p95 = blocks[at95];
  std::nth_element(blocks.begin(), blocks.begin() + at50, blocks.begin() + at95 + 1);
  out.p50 = blocks[at50];
  return out;
}

}  // namespace

namespace {

Result<Schedule> make_schedule(const Plan& plan, const BundleView& bundles) {
  TAMIS_RETURN_IF_ERROR(check_fit(plan, bundles));
  const std::vector<int64_t> prefix = prefix_of_groups(bundles);
  const Partition partition = partition_of(plan, prefix);
  const Sizes sizes = count_parts(partition, prefix);
  if (constexpr int64_t most = std::numeric_limits<int32_t>::max(); sizes.tasks > most)
    return Status(Code::kCapacityExceeded, text("tasks: ", sizes.tasks, " needed, at most ", most),
                  {.value = sizes.tasks, .limit = most + 1});

  Schedule out;
  out.fingerprint = plan.fingerprint;
  out.stamp = schedule_stamp(bundles);
  out.tasks.resize(sizes.tasks);
  out.merges.reserve(sizes.merges);
  out.part_rows.reserve(sizes.parts + 1);
  out.part_rows.push_back(0);
  const HeadRuns runs = head_runs(plan.shape.q_heads, plan.shape.kv_heads, plan.shape.index_heads);
  int64_t task = 0, group = 0;
  for (int32_t b = 0; b < bundles.bundles; ++b) {
    const Bundle& bundle = bundles.bundle[b];
    for (int32_t h = 0; h < bundle.kv_heads; ++h, ++group) {
      const Cuts cuts = cut_group(partition, prefix.data(), group);
      const int32_t kv_head = bundle.kv_head + h, first_part = static_cast<int32_t>(out.part_rows.size()) - 1;
      write_tasks(cuts, b, kv_head, first_part, out.tasks.data() + task);
      task += cuts.parts;
      if (cuts.parts < 2) continue;
      out.merges.push_back({b, kv_head, first_part, static_cast<int32_t>(cuts.parts)});
      const int64_t rows = group_rows(runs, bundles, bundle, kv_head);
      for (int64_t i = 0; i < cuts.parts; ++i) out.part_rows.push_back(out.part_rows.back() + rows);
    }
  }

  out.stats = {.tasks = sizes.tasks,
               .split_rows = sizes.merges,
               .parts = sizes.parts,
               .empty_tasks = std::count_if(out.tasks.begin(), out.tasks.end(),
                                            [](const Task& t) { return t.begin == t.end; }),
               .most_parts = sizes.most_parts,
               .task_blocks = lengths(out.tasks),
               .workspace_bytes = partial_bytes(plan, out)};
  // Bundles of bundle() stay below the bound; these hold some query or block twice.
  if (out.stats.workspace_bytes > plan.workspace.bound)
    return Status(Code::kCapacityExceeded,
                  text("workspace: ", out.stats.workspace_bytes,
                       " bytes of partial states, the plan's bound is ", plan.workspace.bound),
                  {.value = out.stats.workspace_bytes, .limit = plan.workspace.bound + 1});
  return out;
}

}  // namespace

Result<Schedule> schedule(const Plan& plan, const BundleView& bundles) {
  return guarded([&] { return make_schedule(plan, bundles); });
}

int64_t partial_bytes(const Plan& plan, const Schedule& schedule) {
  const int64_t rows = schedule.part_rows.empty() ? 0 : schedule.part_rows.back();
  return partial_layout(rows, plan.shape.v_head_dim).bytes;
}

}  // namespace tamis
