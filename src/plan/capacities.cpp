#include <algorithm>

#include "plan/rows.h"
#include "tamis/plan.h"

namespace tamis {

// Where the problem is wrong, the bundles still tell the rest: make_plan will name what is wrong.
Capacities capacities_of(const Problem& problem, const BundleView& bundles) {
  const Result<Shape> shape = describe(problem);
  Capacities out{.entries = bundles.entries};
  if (shape.ok()) {
    out.requests = shape->requests;
    out.queries = shape->total_q;
  }
  for (int64_t b = 0; b < bundles.bundles; ++b) {
    const Bundle& bundle = bundles.bundle[b];
    out.rows += bundle.lists;
    out.row_entries = std::max<int64_t>(out.row_entries, bundle.count);
    out.requests = std::max<int64_t>(out.requests, bundle.request + 1);
    for (int32_t list = 0; list < bundle.lists; ++list)
      out.queries =
          std::max<int64_t>(out.queries, bundles.row[bundles.rows[bundle.first_list + list]].last_query);
    if (!shape.ok()) continue;
    const HeadRuns runs = head_runs(shape->q_heads, shape->kv_heads, shape->index_heads);
    for (int32_t h = 0; h < bundle.kv_heads; ++h)
      out.group_rows = std::max(out.group_rows, group_rows(runs, bundles, bundle, bundle.kv_head + h));
  }
  return out;
}

}  // namespace tamis
