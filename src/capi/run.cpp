// Contexts, run and forward.
#include "capi/handles.h"
#include "capi/options.h"
#include "capi/output.h"
#include "capi/problem.h"
#include "capi/structs.h"
#include "capi/summaries.h"

namespace tamis::capi {
namespace {

Status read_counters(const tamis_run_counters* from, RunCounters* to) {
  if (from == nullptr) return {};
  tamis_run_counters c{};
  TAMIS_RETURN_IF_ERROR(read_struct("counters", from, &c));
  *to = {.tasks = c.tasks,
         .tiles = c.tiles,
         .tokens_loaded = c.tokens_loaded,
         .rows_redone = c.rows_redone,
         .empty_rows = c.empty_rows,
         .stale_rows = c.stale_rows,
         .saturated = c.saturated,
         .attention_us = c.attention_us,
         .merge_us = c.merge_us};
  return {};
}

void write_counters(const RunCounters& from, tamis_run_counters* to) {
  if (to == nullptr) return;
  write_struct<tamis_run_counters>({.struct_size = sizeof(tamis_run_counters),
                                    .tasks = from.tasks,
                                    .tiles = from.tiles,
                                    .tokens_loaded = from.tokens_loaded,
                                    .rows_redone = from.rows_redone,
                                    .empty_rows = from.empty_rows,
                                    .attention_us = from.attention_us,
                                    .merge_us = from.merge_us,
                                    .stale_rows = from.stale_rows,
                                    .saturated = from.saturated},
                                   to);
}

void add(const RunCounters& from, RunCounters* to) {
  to->tasks += from.tasks;
  to->tiles += from.tiles;
  to->tokens_loaded += from.tokens_loaded;
  to->rows_redone += from.rows_redone;
  to->empty_rows += from.empty_rows;
  to->stale_rows += from.stale_rows;
  to->saturated += from.saturated;
  to->attention_us += from.attention_us;
  to->merge_us += from.merge_us;
}

// The stamps of a plan say nothing of how much memory is behind q, k and v; a problem that has less than the
// one the bundles were checked against would be read past its end.
Status check_extent(const Problem& problem, const IndexState& index) {
  const Result<Shape> shape = describe(problem);
  if (!shape.ok()) return shape.status();
  if (same_step(index.shape, *shape)) return {};
  return {Code::kStalePlan, "bundles: were made for a problem of another shape than this one"};
}

Status run_c(const tamis_step* step, tamis_context* context, tamis_run_counters* counters) {
  tamis_step s{};
  Problem p;
  OutView out;
  RunCounters counts;
  TAMIS_RETURN_IF_ERROR(read_struct("step", step, &s));
  TAMIS_RETURN_IF_ERROR(read_problem(s.problem, Reads::kValues, &p));
  TAMIS_RETURN_IF_ERROR(need_current(s.bundles));
  TAMIS_RETURN_IF_ERROR(need("plan", s.plan));
  TAMIS_RETURN_IF_ERROR(need("schedule", s.schedule));
  TAMIS_RETURN_IF_ERROR(read_output(s.output, &out));
  if (s.workspace == nullptr && s.workspace_bytes != 0) return invalid("workspace", "is NULL");
  if (context == nullptr) return invalid("context", "is NULL");
  TAMIS_RETURN_IF_ERROR(read_counters(counters, &counts));
  TAMIS_RETURN_IF_ERROR(check_extent(p, *s.bundles->index));
  TAMIS_RETURN_IF_ERROR(run(*s.plan->plan, p, s.bundles->bundles.view(), *s.schedule->schedule, out,
                            {static_cast<std::byte*>(s.workspace), s.workspace_bytes}, context->context,
                            &counts));
  write_counters(counts, counters);
  return {};
}

// The summaries a report asks for, checked before anything runs.
Status check_report(const tamis_forward_report& r) {
  if (r.index != nullptr) TAMIS_RETURN_IF_ERROR(check_struct("report.index", r.index));
  if (r.bundles != nullptr) TAMIS_RETURN_IF_ERROR(check_struct("report.bundles", r.bundles));
  if (r.schedule != nullptr) TAMIS_RETURN_IF_ERROR(check_struct("report.schedule", r.schedule));
  return {};
}

void fill_report(const ForwardReport& from, tamis_forward_report* r) {
  copy_text(from.reason.data(), from.reason.size(), r->reason, r->reason_capacity);
  if (r->index != nullptr) write_struct(summary(from.index), r->index);
  if (r->bundles != nullptr) write_struct(summary(from.bundles), r->bundles);
  if (r->schedule != nullptr) write_struct(summary(from.schedule), r->schedule);
  r->path = static_cast<int32_t>(from.path);
  r->block = from.block;
  r->tile = from.tile;
  r->normalize_us = from.normalize_us;
  r->plan_us = from.plan_us;
  r->attention_us = from.counters.attention_us;
  r->merge_us = from.counters.merge_us;
  r->total_us = from.total_us;
}

Status forward_c(const tamis_problem* problem, const tamis_forward_options* options,
                 const tamis_output* output, tamis_context* context, tamis_forward_report* report) {
  Problem p;
  ForwardOptions o;
  OutView out;
  tamis_forward_report r{};
  RunCounters counts;
  TAMIS_RETURN_IF_ERROR(read_problem(problem, Reads::kValues, &p));
  TAMIS_RETURN_IF_ERROR(read_options(options, &o));
  TAMIS_RETURN_IF_ERROR(read_output(output, &out));
  if (context == nullptr) return invalid("context", "is NULL");
  if (report != nullptr) TAMIS_RETURN_IF_ERROR(read_struct("report", report, &r));
  TAMIS_RETURN_IF_ERROR(check_report(r));
  TAMIS_RETURN_IF_ERROR(read_counters(r.counters, &counts));
  ForwardReport made;
  TAMIS_RETURN_IF_ERROR(forward(p, o, out, context->context, &made));
  if (report == nullptr) return {};
  add(made.counters, &counts);
  write_counters(counts, r.counters);
  fill_report(made, &r);
  write_struct(r, report);
  return {};
}

}  // namespace
}  // namespace tamis::capi

using tamis::Status;
using namespace tamis::capi;

extern "C" {

int32_t tamis_context_create(int32_t threads, const char* isa, tamis_context** context, tamis_error* error) {
  if (context != nullptr) *context = nullptr;
  return guarded(error, [&]() -> Status {
    if (context == nullptr) return tamis::invalid("context", "is NULL");
    if (threads < 0) return tamis::invalid("threads", threads, " is negative");
    std::unique_ptr<tamis_context> made(new tamis_context{tamis::Context(threads)});
    if (isa != nullptr) TAMIS_RETURN_IF_ERROR(made->context.use_isa(isa));
    *context = made.release();
    return {};
  });
}
void tamis_context_destroy(tamis_context* context) { delete context; }

int32_t tamis_run(const tamis_step* step, tamis_context* context, tamis_run_counters* counters,
                  tamis_error* error) {
  return guarded(error, [&] { return run_c(step, context, counters); });
}

int32_t tamis_forward(const tamis_problem* problem, const tamis_forward_options* options,
                      const tamis_output* output, tamis_context* context, tamis_forward_report* report,
                      tamis_error* error) {
  return guarded(error, [&] { return forward_c(problem, options, output, context, report); });
}

}  // extern "C"
