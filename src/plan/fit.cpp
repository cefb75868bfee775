#include "plan/fit.h"

#include <algorithm>

#include "core/checks.h"
#include "plan/rows.h"

namespace tamis {
namespace {

Status exceeded(const char* what, int64_t value, int64_t capacity, Where where = {}) {
  where.value = value;
  where.limit = capacity + 1;
  return {Code::kCapacityExceeded, text(what, ": ", value, " needed, the plan's capacity is ", capacity),
          where};
}

Status exceeded_by(const BundleView& view, const Bundle& bundle, const char* what, int64_t value,
                   int64_t capacity) {
  Where where{.request = bundle.request};
  if (bundle.lists > 0) where.row = view.rows[bundle.first_list];
  return exceeded(what, value, capacity, where);
}

Status other_heads(const char* what, int64_t first, int64_t last, int64_t heads) {
  return {Code::kStalePlan,
          text(what, ": bundles have heads ", first, " .. ", last, ", the plan has ", heads, " heads")};
}

}  // namespace

// One pass without a division: this runs before every step.
Status check_fit(const Plan& plan, const BundleView& view) {
  if (view.block != plan.block)
    return {Code::kStalePlan,
            text("block: bundles of ", view.block, " tokens a block, the plan has ", plan.block)};
  const Capacities& most = plan.capacities;
  if (view.bundles > most.rows) return exceeded("rows", view.bundles, most.rows);
  if (view.entries > most.entries) return exceeded("entries", view.entries, most.entries);
  const HeadRuns runs = head_runs(plan.shape.q_heads, plan.shape.kv_heads, plan.shape.index_heads);
  int64_t rows = 0, queries = 0, requests = 0;
  for (int64_t b = 0; b < view.bundles; ++b) {
    const Bundle& bundle = view.bundle[b];
    const int64_t last_head = int64_t{bundle.kv_head} + bundle.kv_heads;
    if (bundle.kv_head < 0 || bundle.kv_heads < 0 || last_head > plan.shape.kv_heads)
      return other_heads("kv_heads", bundle.kv_head, last_head, plan.shape.kv_heads);
    if (bundle.count > most.row_entries)
      return exceeded_by(view, bundle, "row_entries", bundle.count, most.row_entries);
    for (int32_t list = 0; list < bundle.lists; ++list) {
      const RowInfo& row = view.row[view.rows[bundle.first_list + list]];
      if (row.index_head < 0 || row.index_head >= plan.shape.index_heads)
        return other_heads("index_heads", row.index_head, int64_t{row.index_head} + 1,
                           plan.shape.index_heads);
      queries = std::max<int64_t>(queries, row.last_query);
    }
    for (int64_t h = bundle.kv_head; most.group_rows > 0 && h < last_head; ++h)
      if (const int64_t n = group_rows(runs, view, bundle, h); n > most.group_rows)
        return exceeded_by(view, bundle, "group_rows", n, most.group_rows);
    rows += bundle.lists;
    requests = std::max<int64_t>(requests, int64_t{bundle.request} + 1);
  }
  if (rows > most.rows) return exceeded("rows", rows, most.rows);
  if (requests > most.requests) return exceeded("requests", requests, most.requests);
  if (queries > most.queries) return exceeded("queries", queries, most.queries);
  return {};
}

}  // namespace tamis
