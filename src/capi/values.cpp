// Calls that need no handle: the reference, merging and the accounting.
#include <algorithm>

#include "capi/guard.h"
#include "capi/problem.h"
#include "capi/structs.h"
#include "core/checks.h"
#include "tamis/explain.h"
#include "tamis/merge.h"
#include "tamis/reference.h"

namespace tamis::capi {
namespace {

Status check_array(const char* name, const double* array, int64_t count, int64_t expected) {
  if (array == nullptr && count == 0) return {};
  if (array == nullptr) return invalid(name, "is NULL");
  if (count == expected) return {};
  return {Code::kInvalidArgument,
          text(name, ": ", count, " elements, expected ", expected),
          {.value = count, .limit = expected + 1}};
}

Status reference_c(const tamis_problem* problem, double* out, int64_t out_count, double* lse,
                   int64_t lse_count) {
  Problem p;
  TAMIS_RETURN_IF_ERROR(read_problem(problem, Reads::kValues, &p));
  const Result<Shape> s = describe(p);
  if (!s.ok()) return s.status();
  const int64_t rows = s->total_q * s->q_heads;
  TAMIS_RETURN_IF_ERROR(check_array("out", out, out_count, rows * s->v_head_dim));
  TAMIS_RETURN_IF_ERROR(check_array("lse", lse, lse_count, rows));
  const Result<reference::Answer> answer = reference::forward(p);
  if (!answer.ok()) return answer.status();
  if (out != nullptr) std::copy(answer->output.out.begin(), answer->output.out.end(), out);
  if (lse != nullptr) std::copy(answer->output.lse.begin(), answer->output.lse.end(), lse);
  return {};
}

using Arrays = std::span<const float* const>;

Status read_arrays(const char* name, const float* const* arrays, int64_t count, Arrays* to) {
  if (count < 0) return invalid("count", count, " is negative");
  if (arrays == nullptr && count > 0) return invalid(name, "is NULL");
  *to = Arrays(arrays, static_cast<size_t>(count));
  return {};
}

tamis_explain_options defaults(const AccountingOptions& o) {
  return {.struct_size = sizeof(tamis_explain_options),
          .tile = o.tile,
          .splits = o.splits,
          .bandwidth = o.bandwidth};
}

tamis_accounting flat(const Accounting& a) {
  return {.struct_size = sizeof(tamis_accounting),
          .rows = a.tiles.rows,
          .kv_heads = a.tiles.kv_heads,
          .selected_tokens = a.tiles.selected_tokens,
          .touched_pages = a.tiles.touched_pages,
          .tiles_aligned = a.tiles.aligned,
          .tiles_packed = a.tiles.packed,
          .tile_efficiency_aligned = a.tiles.efficiency_aligned,
          .tile_efficiency_packed = a.tiles.efficiency_packed,
          .block_utilization = a.tiles.block_utilization,
          .bytes_logical = a.bytes.logical,
          .bytes_pages = a.bytes.pages,
          .bytes_aligned = a.bytes.aligned,
          .bytes_dense = a.bytes.dense,
          .compression_logical = a.bytes.compression_logical,
          .compression_aligned = a.bytes.compression_aligned,
          .index_bytes = a.bytes.index,
          .index_bytes_normalized = a.bytes.index_normalized,
          .scale_bytes = a.bytes.scales,
          .transaction_bytes = a.bytes.transactions,
          .transaction_efficiency = a.bytes.transaction_efficiency,
          .flops_logical = a.flops_logical,
          .flops_aligned = a.flops_aligned,
          .workspace_splits = a.workspace.splits,
          .workspace_partial_o = a.workspace.partial_o,
          .workspace_partial_ml = a.workspace.partial_ml,
          .workspace_total = a.workspace.total,
          .floor_us = a.floor_us};
}

Status explain_c(const tamis_problem* problem, const tamis_explain_options* options, tamis_accounting* out) {
  Problem p;
  tamis_explain_options o = defaults(AccountingOptions{});
  TAMIS_RETURN_IF_ERROR(read_problem(problem, Reads::kLists, &p));
  if (options != nullptr) TAMIS_RETURN_IF_ERROR(read_struct("explain_options", options, &o));
  TAMIS_RETURN_IF_ERROR(check_struct("accounting", out));
  const Result<Accounting> a =
      explain(p, AccountingOptions{.tile = o.tile, .splits = o.splits, .bandwidth = o.bandwidth});
  if (!a.ok()) return a.status();
  write_struct(flat(*a), out);
  return {};
}

}  // namespace
}  // namespace tamis::capi

using tamis::Status;
using namespace tamis::capi;

extern "C" {

int32_t tamis_reference_forward(const tamis_problem* problem, double* out, int64_t out_count, double* lse,
                                int64_t lse_count, tamis_error* error) {
  return guarded(error, [&] { return reference_c(problem, out, out_count, lse, lse_count); });
}

int32_t tamis_merge_states(int64_t count, const float* const* outs, const float* const* lses, int64_t rows,
                           int64_t dim, float* out, float* lse, tamis_error* error) {
  return guarded(error, [&]() -> Status {
    Arrays o, l;
    TAMIS_RETURN_IF_ERROR(read_arrays("outs", outs, count, &o));
    TAMIS_RETURN_IF_ERROR(read_arrays("lses", lses, count, &l));
    return tamis::merge_states(o, l, rows, dim, out, lse);
  });
}

int32_t tamis_gated_sum(int64_t count, const float* const* outs, const float* const* gates, int64_t rows,
                        int64_t dim, float* out, tamis_error* error) {
  return guarded(error, [&]() -> Status {
    Arrays o, g;
    TAMIS_RETURN_IF_ERROR(read_arrays("outs", outs, count, &o));
    TAMIS_RETURN_IF_ERROR(read_arrays("gates", gates, count, &g));
    return tamis::gated_sum(o, g, rows, dim, out);
  });
}

void tamis_explain_options_init_sized(tamis_explain_options* options, uint64_t size) {
  init_struct(defaults(tamis::AccountingOptions{}), options, size);
}

int32_t tamis_explain(const tamis_problem* problem, const tamis_explain_options* options,
                      tamis_accounting* accounting, tamis_error* error) {
  return guarded(error, [&] { return explain_c(problem, options, accounting); });
}

}  // extern "C"
