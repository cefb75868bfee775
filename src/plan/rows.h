// The query rows of a group: which (query, query head) pairs one (bundle, KV head) computes, in which order,
// and where their partial states lie. Scheduler, kernels and merge all count rows here, so they cannot
// disagree.
//
// Order of rows: lists of the bundle, then queries of the list's row ascending, then query heads ascending.
// A list whose index head serves no query head of the KV head has no rows in that group.
#pragma once

#include <cstdint>

#include "core/hd.h"
#include "tamis/bundle.h"

namespace tamis {

// Both index heads and KV heads own equal runs of query heads. The lengths of the runs are kept, not the
// counts: a division per list would cost more than all else here.
struct HeadRuns {
  int64_t of_index_head, of_kv_head;
};

TAMIS_HD inline HeadRuns head_runs(int64_t q_heads, int64_t kv_heads, int64_t index_heads) {
  return {q_heads / index_heads, q_heads / kv_heads};
}

// Query heads [first, first + count).
struct HeadRange {
  int64_t first, count;
};

// The query heads of an index head that belong to a KV head.
TAMIS_HD inline HeadRange heads_of(const HeadRuns& runs, int64_t index_head, int64_t kv_head) {
  int64_t first = index_head * runs.of_index_head, last = first + runs.of_index_head;
  if (first < kv_head * runs.of_kv_head) first = kv_head * runs.of_kv_head;
  if (last > (kv_head + 1) * runs.of_kv_head) last = (kv_head + 1) * runs.of_kv_head;
  return {first, last > first ? last - first : 0};
}

// Query rows of list `list` (0 .. bundle.lists) of a bundle for one KV head.
TAMIS_HD inline int64_t list_rows(const HeadRuns& runs, const BundleView& view, const Bundle& bundle,
                                  int64_t list, int64_t kv_head) {
  const RowInfo& row = view.row[view.rows[bundle.first_list + list]];
  return (row.last_query - row.first_query) * heads_of(runs, row.index_head, kv_head).count;
}

// Query rows of a whole group.
TAMIS_HD inline int64_t group_rows(const HeadRuns& runs, const BundleView& view, const Bundle& bundle,
                                   int64_t kv_head) {
  int64_t rows = 0;
  for (int64_t list = 0; list < bundle.lists; ++list) rows += list_rows(runs, view, bundle, list, kv_head);
  return rows;
}

// Partial states in a workspace that starts on a 64-byte line, all float32: numerators o [rows, Dv], then
// running maxima m [rows], then sums l [rows]. Byte offsets.
struct PartialLayout {
  int64_t o, m, l, bytes;
};

TAMIS_HD inline PartialLayout partial_layout(int64_t rows, int64_t v_head_dim) {
  constexpr int64_t kLine = 64, kFloat = 4;
  const int64_t o = (rows * v_head_dim * kFloat + kLine - 1) / kLine * kLine;
  const int64_t ml = (rows * kFloat + kLine - 1) / kLine * kLine;
  return {0, o, o + ml, o + 2 * ml};
}

}  // namespace tamis
