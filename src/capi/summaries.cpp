#include "capi/summaries.h"

#include <cstddef>
#include <type_traits>

#include "capi/handles.h"
#include "capi/structs.h"

namespace tamis::capi {
namespace {

// Callers read the library's own arrays through the C types.
static_assert(sizeof(tamis_span) == sizeof(Span) && offsetof(tamis_span, token) == offsetof(Span, token) &&
              offsetof(tamis_span, length) == offsetof(Span, length) &&
              offsetof(tamis_span, slot) == offsetof(Span, slot));
static_assert(sizeof(tamis_row_info) == sizeof(RowInfo) &&
              offsetof(tamis_row_info, request) == offsetof(RowInfo, request) &&
              offsetof(tamis_row_info, index_head) == offsetof(RowInfo, index_head) &&
              offsetof(tamis_row_info, first_query) == offsetof(RowInfo, first_query) &&
              offsetof(tamis_row_info, last_query) == offsetof(RowInfo, last_query));
static_assert(std::is_standard_layout_v<Span> && std::is_standard_layout_v<RowInfo>);

tamis_index_arrays arrays_of(const IndexView& v) {
  return {.struct_size = sizeof(tamis_index_arrays),
          .rows = v.rows,
          .entries = v.entries,
          .block = v.block,
          .words = v.words,
          .row = reinterpret_cast<const tamis_row_info*>(v.row),
          .begin = v.begin,
          .count = v.count,
          .blocks = v.blocks,
          .members = v.members,
          .full = v.full,
          .span_begin = v.span_begin,
          .spans = reinterpret_cast<const tamis_span*>(v.spans)};
}

tamis_plan_summary summary(const Plan& p) {
  return {.struct_size = sizeof(tamis_plan_summary),
          .reason = p.reason.c_str(),
          .backend = static_cast<int32_t>(p.backend),
          .path = static_cast<int32_t>(p.path),
          .block = p.block,
          .tile = p.tile,
          .splits = p.splits,
          .batch_invariant = p.batch_invariant,
          .shares = p.shares,
          .reserved = 0,
          .min_part = p.min_part,
          .max_parts = p.max_parts,
          .workspace_bound = p.workspace.bound,
          .workspace_typical = p.workspace.typical,
          .fingerprint = p.fingerprint};
}

}  // namespace

tamis_percentiles summary(const Percentiles& from) { return {from.p50, from.p95, from.max}; }

tamis_index_summary summary(const IndexStats& s) {
  return {.struct_size = sizeof(tamis_index_summary),
          .raw = s.counts.raw,
          .padding = s.counts.padding,
          .invalid = s.counts.invalid,
          .duplicates = s.counts.duplicates,
          .unique = s.counts.unique,
          .future = s.future,
          .empty_rows = s.empty_rows,
          .blocks = s.blocks,
          .spans = s.spans,
          .touched_pages = s.touched_pages,
          .gaps = s.gaps,
          .rows_bitmap = s.rows_bitmap,
          .rows_sort = s.rows_sort,
          .rows_hash = s.rows_hash,
          .row_blocks = summary(s.row_blocks)};
}

tamis_bundle_summary summary(const BundleStats& s) {
  return {.struct_size = sizeof(tamis_bundle_summary),
          .policy = static_cast<int32_t>(s.policy),
          .neighbours = s.neighbours,
          .bundles = 0,
          .listed_blocks = s.listed_blocks,
          .union_blocks = s.union_blocks};
}

tamis_schedule_summary summary(const ScheduleStats& s) {
  return {.struct_size = sizeof(tamis_schedule_summary),
          .tasks = s.tasks,
          .split_rows = s.split_rows,
          .parts = s.parts,
          .empty_tasks = s.empty_tasks,
          .task_blocks = summary(s.task_blocks),
          .workspace_bytes = s.workspace_bytes,
          .fingerprint = 0,
          .stamp = 0};
}

}  // namespace tamis::capi

using tamis::Status;
using namespace tamis::capi;

extern "C" {

int32_t tamis_index_view(const tamis_index_set* index, tamis_index_arrays* arrays, tamis_error* error) {
  return guarded(error, [&]() -> Status {
    TAMIS_RETURN_IF_ERROR(need("index", index));
    TAMIS_RETURN_IF_ERROR(check_struct("arrays", arrays));
    write_struct(arrays_of(index->state->set.view()), arrays);
    return {};
  });
}

int32_t tamis_index_stats(const tamis_index_set* index, tamis_index_summary* out, tamis_error* error) {
  return guarded(error, [&]() -> Status {
    TAMIS_RETURN_IF_ERROR(need("index", index));
    TAMIS_RETURN_IF_ERROR(check_struct("summary", out));
    write_struct(summary(index->state->set.stats()), out);
    return {};
  });
}

int32_t tamis_index_reuse(const tamis_index_set* index, tamis_percentiles* reuse, tamis_error* error) {
  return guarded(error, [&]() -> Status {
    TAMIS_RETURN_IF_ERROR(need("index", index));
    if (reuse == nullptr) return tamis::invalid("reuse", "is NULL");
    *reuse = summary(tamis::reuse_statistics(index->state->set.view()));
    return {};
  });
}

int32_t tamis_bundle_stats(const tamis_bundles* bundles, tamis_bundle_summary* out, tamis_error* error) {
  return guarded(error, [&]() -> Status {
    TAMIS_RETURN_IF_ERROR(need_current(bundles));
    TAMIS_RETURN_IF_ERROR(check_struct("summary", out));
    tamis_bundle_summary s = summary(bundles->bundles.stats());
    s.bundles = bundles->bundles.view().bundles;
    write_struct(s, out);
    return {};
  });
}

int32_t tamis_plan_info(const tamis_plan* plan, tamis_plan_summary* out, tamis_error* error) {
  return guarded(error, [&]() -> Status {
    TAMIS_RETURN_IF_ERROR(need("plan", plan));
    TAMIS_RETURN_IF_ERROR(check_struct("summary", out));
    write_struct(summary(*plan->plan), out);
    return {};
  });
}

int32_t tamis_schedule_info(const tamis_schedule* schedule, tamis_schedule_summary* out, tamis_error* error) {
  return guarded(error, [&]() -> Status {
    TAMIS_RETURN_IF_ERROR(need("schedule", schedule));
    TAMIS_RETURN_IF_ERROR(check_struct("summary", out));
    tamis_schedule_summary s = summary(schedule->schedule->stats);
    s.fingerprint = schedule->schedule->fingerprint;
    s.stamp = schedule->schedule->stamp;
    write_struct(s, out);
    return {};
  });
}

}  // extern "C"
