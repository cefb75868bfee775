// The stages between a problem and a run, one call each.
#include <algorithm>
#include <vector>

#include "capi/handles.h"
#include "capi/options.h"
#include "capi/problem.h"
#include "capi/structs.h"
#include "core/source.h"

namespace tamis::capi {

Status need_current(const tamis_bundles* bundles) {
  TAMIS_RETURN_IF_ERROR(need("bundles", bundles));
  if (bundles->index->generation == bundles->generation) return {};
  return {Code::kStalePlan, "bundles: their index set was filled again; make them anew"};
}

bool same_step(const Shape& then, const Shape& now) {
  return then.requests == now.requests && then.total_q == now.total_q && then.q_heads == now.q_heads &&
         then.kv_heads == now.kv_heads && then.index_heads == now.index_heads &&
         then.page_size == now.page_size && then.pages <= now.pages && then.kv_rows <= now.kv_rows;
}

namespace {

// Bundles and index sets speak of the rows of one problem.
Status check_same(const char* name, const Problem& problem, const IndexState& index) {
  const Result<Shape> shape = describe(problem);
  if (!shape.ok()) return shape.status();
  if (same_step(index.shape, *shape)) return {};
  return invalid(name, "of a problem of another shape than this one");
}

Status normalize_c(const tamis_problem* problem, const tamis_normalize_options* options, IndexState* state) {
  Problem p;
  NormalizeOptions o;
  TAMIS_RETURN_IF_ERROR(read_problem(problem, Reads::kLists, &p));
  TAMIS_RETURN_IF_ERROR(read_options(options, &o));
  TAMIS_RETURN_IF_ERROR(normalize_into(p, o, &state->set));
  state->shape = *describe(p);
  state->made = true;
  return {};
}

Status check_place(const char* name, int64_t value, int64_t limit) {
  if (value >= 0 && value < limit) return {};
  return {Code::kInvalidArgument,
          text(name, ": ", value, " is outside [0, ", limit, ")"),
          {.value = value, .limit = limit}};
}

// A problem and the index that was made of it, and where tokens go.
Status read_expand(const tamis_problem* problem, const tamis_index_set* index, const int32_t* tokens,
                   int64_t capacity, const int64_t* count, Problem* p, IndexView* view) {
  TAMIS_RETURN_IF_ERROR(read_problem(problem, Reads::kLists, p));
  TAMIS_RETURN_IF_ERROR(need("index", index));
  TAMIS_RETURN_IF_ERROR(check_same("index", *p, *index->state));
  TAMIS_RETURN_IF_ERROR(check_arrays(*p, *describe(*p)));
  *view = index->state->set.view();
  if (view->source != source_stamp(*p, *describe(*p)))
    return {Code::kStalePlan, "index: was made for other lengths, positions or masks than this problem's"};
  if (count == nullptr) return invalid("count", "is NULL");
  if (capacity < 0) return invalid("capacity", capacity, " is negative");
  if (tokens == nullptr && capacity > 0) return invalid("tokens", "is NULL");
  return {};
}

int64_t queries_of(const IndexView& view) { return view.rows == 0 ? 0 : view.row[view.rows - 1].last_query; }

Status expand_all_c(const tamis_problem* problem, const tamis_index_set* index, int64_t* indptr,
                    int32_t* tokens, int64_t capacity, int64_t* count) {
  Problem p;
  IndexView view;
  TAMIS_RETURN_IF_ERROR(read_expand(problem, index, tokens, capacity, count, &p, &view));
  if (indptr == nullptr) return invalid("indptr", "is NULL");
  int64_t all = 0;
  *indptr = 0;
  for (int64_t query = 0; query < queries_of(view); ++query)
    for (int64_t head = 0; head < p.candidates.index_heads; ++head) {
      const std::vector<int32_t> set = expand_set(p, view, query, head);
      const int64_t room = std::max<int64_t>(0, capacity - all), size = static_cast<int64_t>(set.size());
      if (room > 0) std::copy_n(set.begin(), std::min(room, size), tokens + all);
      *++indptr = all += size;
    }
  *count = all;
  return {};
}

Status expand_c(const tamis_problem* problem, const tamis_index_set* index, int64_t query, int64_t index_head,
                int32_t* tokens, int64_t capacity, int64_t* count) {
  Problem p;
  IndexView view;
  TAMIS_RETURN_IF_ERROR(read_expand(problem, index, tokens, capacity, count, &p, &view));
  TAMIS_RETURN_IF_ERROR(check_place("query", query, queries_of(view)));
  TAMIS_RETURN_IF_ERROR(check_place("index_head", index_head, p.candidates.index_heads));
  const std::vector<int32_t> set = expand_set(p, view, query, index_head);
  *count = static_cast<int64_t>(set.size());
  std::copy_n(set.begin(), std::min(capacity, *count), tokens);
  return {};
}

Status bundle_c(const tamis_problem* problem, const tamis_index_set* index,
                const tamis_bundle_options* options, tamis_bundles* out) {
  Problem p;
  BundleOptions o;
  TAMIS_RETURN_IF_ERROR(read_problem(problem, Reads::kLists, &p));
  TAMIS_RETURN_IF_ERROR(need("index", index));
  TAMIS_RETURN_IF_ERROR(read_options(options, &o));
  TAMIS_RETURN_IF_ERROR(check_same("index", p, *index->state));
  Result<Bundles> made = bundle(p, index->state->set, o);
  if (!made.ok()) return made.status();
  out->bundles = std::move(*made);
  out->generation = index->state->generation;
  out->index = index->state;
  return {};
}

Status capacities_c(const tamis_problem* problem, const tamis_bundles* bundles, tamis_capacities* out) {
  Problem p;
  TAMIS_RETURN_IF_ERROR(read_problem(problem, Reads::kShapes, &p));
  TAMIS_RETURN_IF_ERROR(need_current(bundles));
  TAMIS_RETURN_IF_ERROR(check_struct("capacities", out));
  TAMIS_RETURN_IF_ERROR(check_same("bundles", p, *bundles->index));
  const Capacities c = capacities_of(p, bundles->bundles.view());
  write_struct<tamis_capacities>({.struct_size = sizeof(tamis_capacities),
                                  .requests = c.requests,
                                  .queries = c.queries,
                                  .rows = c.rows,
                                  .entries = c.entries,
                                  .row_entries = c.row_entries,
                                  .group_rows = c.group_rows},
                                 out);
  return {};
}

Status plan_c(const tamis_problem* problem, const tamis_capacities* capacities, int32_t block,
              const tamis_plan_options* options, tamis_plan* out) {
  Problem p;
  tamis_capacities c{};
  PlanOptions o;
  TAMIS_RETURN_IF_ERROR(read_problem(problem, Reads::kShapes, &p));
  TAMIS_RETURN_IF_ERROR(read_struct("capacities", capacities, &c));
  TAMIS_RETURN_IF_ERROR(read_options(options, &o));
  Result<Plan> made = make_plan(p,
                                {.requests = c.requests,
                                 .queries = c.queries,
                                 .rows = c.rows,
                                 .entries = c.entries,
                                 .row_entries = c.row_entries,
                                 .group_rows = c.group_rows},
                                block, o);
  if (!made.ok()) return made.status();
  out->plan = std::move(*made);
  return {};
}

}  // namespace
}  // namespace tamis::capi

using tamis::Status;
using namespace tamis::capi;

extern "C" {

int32_t tamis_index_set_create(tamis_index_set** index, tamis_error* error) {
  return create("index", index, error);
}
void tamis_index_set_destroy(tamis_index_set* index) { delete index; }

int32_t tamis_normalize(const tamis_problem* problem, const tamis_normalize_options* options,
                        tamis_index_set* index, tamis_error* error) {
  return guarded(error, [&]() -> Status {
    TAMIS_RETURN_IF_ERROR(empty("index", index));
    return normalize_c(problem, options, index->state.get());
  });
}

int32_t tamis_expand_set(const tamis_problem* problem, const tamis_index_set* index, int64_t query,
                         int64_t index_head, int32_t* tokens, int64_t capacity, int64_t* count,
                         tamis_error* error) {
  return guarded(error, [&] { return expand_c(problem, index, query, index_head, tokens, capacity, count); });
}

int32_t tamis_expand_sets(const tamis_problem* problem, const tamis_index_set* index, int64_t* indptr,
                          int32_t* tokens, int64_t capacity, int64_t* count, tamis_error* error) {
  return guarded(error, [&] { return expand_all_c(problem, index, indptr, tokens, capacity, count); });
}

int32_t tamis_bundles_create(tamis_bundles** bundles, tamis_error* error) {
  return create("bundles", bundles, error);
}
void tamis_bundles_destroy(tamis_bundles* bundles) { delete bundles; }

int32_t tamis_bundle(const tamis_problem* problem, const tamis_index_set* index,
                     const tamis_bundle_options* options, tamis_bundles* bundles, tamis_error* error) {
  return guarded(error, [&]() -> Status {
    TAMIS_RETURN_IF_ERROR(empty("bundles", bundles));
    return bundle_c(problem, index, options, bundles);
  });
}

int32_t tamis_capacities_of(const tamis_problem* problem, const tamis_bundles* bundles,
                            tamis_capacities* capacities, tamis_error* error) {
  return guarded(error, [&] { return capacities_c(problem, bundles, capacities); });
}

int32_t tamis_plan_create(tamis_plan** plan, tamis_error* error) { return create("plan", plan, error); }
void tamis_plan_destroy(tamis_plan* plan) { delete plan; }

int32_t tamis_plan_make(const tamis_problem* problem, const tamis_capacities* capacities, int32_t block,
                        const tamis_plan_options* options, tamis_plan* plan, tamis_error* error) {
  return guarded(error, [&]() -> Status {
    TAMIS_RETURN_IF_ERROR(empty("plan", plan));
    return plan_c(problem, capacities, block, options, plan);
  });
}

int32_t tamis_schedule_create(tamis_schedule** schedule, tamis_error* error) {
  return create("schedule", schedule, error);
}
void tamis_schedule_destroy(tamis_schedule* schedule) { delete schedule; }

int32_t tamis_schedule_make(const tamis_plan* plan, const tamis_bundles* bundles, tamis_schedule* schedule,
                            tamis_error* error) {
  return guarded(error, [&]() -> Status {
    TAMIS_RETURN_IF_ERROR(empty("schedule", schedule));
    TAMIS_RETURN_IF_ERROR(need("plan", plan));
    TAMIS_RETURN_IF_ERROR(need_current(bundles));
    tamis::Result<tamis::Schedule> made = tamis::schedule(*plan->plan, bundles->bundles.view());
    if (!made.ok()) return made.status();
    schedule->schedule = std::move(*made);
    return {};
  });
}

int32_t tamis_workspace_bytes(const tamis_plan* plan, const tamis_schedule* schedule, int64_t* bytes,
                              tamis_error* error) {
  return guarded(error, [&]() -> Status {
    TAMIS_RETURN_IF_ERROR(need("plan", plan));
    TAMIS_RETURN_IF_ERROR(need("schedule", schedule));
    if (bytes == nullptr) return tamis::invalid("bytes", "is NULL");
    if (schedule->schedule->fingerprint != plan->plan->fingerprint)
      return {tamis::Code::kStalePlan, "schedule: was made by another plan"};
    *bytes = tamis::partial_bytes(*plan->plan, *schedule->schedule);
    return {};
  });
}

}  // extern "C"
