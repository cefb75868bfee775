// Layouts of candidate rows.
#include "tamis/convert.h"

#include <algorithm>

#include "capi/handles.h"
#include "capi/numbers.h"
#include "capi/problem.h"
#include "tamis/tamis_c_convert.h"

struct tamis_rows {
  tamis::CandidateRows csr;
  tamis::FixedRows fixed;
  tamis_candidates candidates;
  tamis_tensor tensors[3];
  bool filled = false;

  bool made() const { return filled; }
  void clear() { filled = false; }  // keeps the arrays: a call that fills may read them
};

struct tamis_tiers {
  tamis::TieredRows rows;
  std::vector<tamis_tensor> tensors;  // three of each tier
  bool filled = false;

  bool made() const { return filled; }
  void clear() { filled = false; }
};

namespace tamis::capi {
namespace {

static_assert(static_cast<int>(TAMIS_PADDING_DROP) == static_cast<int>(Padding::kDrop));

Status read_rows(const char* name, const tamis_candidates* from, bool arrays, CandidateView* to) {
  if (from == nullptr) return invalid(name, "is NULL");
  tamis_problem problem = write_options({});
  problem.candidates = *from;
  if (!arrays) problem.candidates.indptr = problem.candidates.indices = problem.candidates.count = nullptr;
  Problem p;
  TAMIS_RETURN_IF_ERROR(read_problem(&problem, Reads::kLists, &p));
  *to = p.candidates;
  return {};
}

// Arrays of `view`, which are those of `rows`.
void describe_rows(const CandidateView& view, tamis_rows* rows) {
  Problem p;
  p.candidates = view;
  rows->candidates = write_options(p).candidates;
  const auto tensor = [&](int which, const TensorView& from) -> const tamis_tensor* {
    if (!from.present()) return nullptr;
    rows->tensors[which] = write_tensor(from);
    return &rows->tensors[which];
  };
  rows->candidates.indptr = tensor(0, view.indptr);
  rows->candidates.indices = tensor(1, view.indices);
  rows->candidates.count = tensor(2, view.count);
  rows->filled = true;
}

Status fill_csr(Result<CandidateRows> made, const CandidateView& like, tamis_rows* rows) {
  if (!made.ok()) return made.status();
  rows->fixed = {};
  rows->csr = std::move(*made);
  describe_rows(rows->csr.view(like), rows);
  return {};
}

Status read_span(const char* name, const int64_t* numbers, int64_t count, std::span<const int64_t>* to) {
  if (count < 0) return invalid("count", count, " is negative");
  if (numbers == nullptr && count > 0) return invalid(name, "is NULL");
  *to = {numbers, static_cast<size_t>(count)};
  return {};
}

Status read_tiers(const tamis_tier* from, int64_t count, std::vector<TierView>* to) {
  if (count < 0) return invalid("count", count, " is negative");
  if (from == nullptr && count > 0) return invalid("tiers", "is NULL");
  for (int64_t i = 0; i < count; ++i) {
    TierView& tier = to->emplace_back();
    TAMIS_RETURN_IF_ERROR(read_optional("row_ids", from[i].row_ids, true, &tier.row_ids));
    TAMIS_RETURN_IF_ERROR(read_optional("cand_indices", from[i].indices, true, &tier.indices));
    TAMIS_RETURN_IF_ERROR(read_optional("cand_count", from[i].count, true, &tier.count));
  }
  return {};
}

Status to_csr_c(const tamis_candidates* from, int32_t padding, tamis_rows* rows) {
  Padding p{};
  CandidateView view;
  TAMIS_RETURN_IF_ERROR(read_rows("from", from, true, &view));
  TAMIS_RETURN_IF_ERROR(read_enum("padding", padding, Padding::kDrop, &p));
  return fill_csr(to_csr(view, p), view, rows);
}

Status to_fixed_width_c(const tamis_candidates* from, int64_t width, tamis_rows* rows) {
  CandidateView view;
  TAMIS_RETURN_IF_ERROR(read_rows("from", from, true, &view));
  Result<FixedRows> made = to_fixed_width(view, width == -1 ? std::optional<int64_t>() : width);
  if (!made.ok()) return made.status();
  rows->csr = {};
  rows->fixed = std::move(*made);
  describe_rows(rows->fixed.view(view), rows);
  return {};
}

Status from_tiers_c(const tamis_tier* tiers, int64_t count, int32_t padding, const tamis_candidates* like,
                    tamis_rows* rows) {
  Padding p{};
  CandidateView policies;
  std::vector<TierView> views;
  TAMIS_RETURN_IF_ERROR(read_tiers(tiers, count, &views));
  TAMIS_RETURN_IF_ERROR(read_enum("padding", padding, Padding::kDrop, &p));
  TAMIS_RETURN_IF_ERROR(read_rows("like", like, false, &policies));
  return fill_csr(to_csr(views, p), policies, rows);
}

Status make_tiers(const tamis_candidates* from, const int64_t* edges, int64_t count, tamis_tiers* tiers) {
  CandidateView view;
  std::span<const int64_t> e;
  TAMIS_RETURN_IF_ERROR(read_rows("from", from, true, &view));
  TAMIS_RETURN_IF_ERROR(read_span("edges", edges, count, &e));
  Result<TieredRows> made = to_tiers(view, e);
  if (!made.ok()) return made.status();
  std::vector<tamis_tensor> tensors;
  for (const TierView& tier : made->views())
    for (const TensorView* array : {&tier.row_ids, &tier.indices, &tier.count})
      tensors.push_back(write_tensor(*array));
  tiers->rows = std::move(*made);
  tiers->tensors = std::move(tensors);
  tiers->filled = true;
  return {};
}

Status view_tiers(const tamis_tiers* tiers, tamis_tier* to, int64_t capacity, int64_t* count) {
  TAMIS_RETURN_IF_ERROR(need("tiers", tiers));
  if (count == nullptr) return invalid("count", "is NULL");
  if (capacity < 0) return invalid("capacity", capacity, " is negative");
  if (to == nullptr && capacity > 0) return invalid("to", "is NULL");
  *count = static_cast<int64_t>(tiers->tensors.size() / 3);
  for (int64_t i = 0; i < std::min(capacity, *count); ++i) {
    const tamis_tensor* t = tiers->tensors.data() + 3 * i;
    to[i] = {t, t + 1, t + 2};
  }
  return {};
}

Status utilization_c(const tamis_candidates* rows, int64_t* used, int64_t* allocated) {
  CandidateView view;
  TAMIS_RETURN_IF_ERROR(read_rows("rows", rows, true, &view));
  if (used == nullptr || allocated == nullptr) return invalid(used ? "allocated" : "used", "is NULL");
  const Result<Utilization> u = utilization(view);
  if (!u.ok()) return u.status();
  *used = u->used;
  *allocated = u->allocated;
  return {};
}

Status tiers_utilization_c(const tamis_tier* tiers, int64_t count, int64_t* used, int64_t* allocated) {
  std::vector<TierView> views;
  TAMIS_RETURN_IF_ERROR(read_tiers(tiers, count, &views));
  if (count > 0 && (used == nullptr || allocated == nullptr))
    return invalid(used ? "allocated" : "used", "is NULL");
  const Result<TierUtilization> u = utilization(views);
  if (!u.ok()) return u.status();
  for (size_t i = 0; i < u->tiers.size(); ++i) {
    used[i] = u->tiers[i].used;
    allocated[i] = u->tiers[i].allocated;
  }
  return {};
}

}  // namespace
}  // namespace tamis::capi

using tamis::Status;
using namespace tamis::capi;

extern "C" {

int32_t tamis_rows_create(tamis_rows** rows, tamis_error* error) { return create("rows", rows, error); }
void tamis_rows_destroy(tamis_rows* rows) { delete rows; }

int32_t tamis_rows_to_csr(const tamis_candidates* from, int32_t padding, tamis_rows* rows,
                          tamis_error* error) {
  return guarded(error, [&]() -> Status {
    TAMIS_RETURN_IF_ERROR(empty("rows", rows));
    return to_csr_c(from, padding, rows);
  });
}

int32_t tamis_rows_to_fixed_width(const tamis_candidates* from, int64_t width, tamis_rows* rows,
                                  tamis_error* error) {
  return guarded(error, [&]() -> Status {
    TAMIS_RETURN_IF_ERROR(empty("rows", rows));
    return to_fixed_width_c(from, width, rows);
  });
}

int32_t tamis_rows_view(const tamis_rows* rows, tamis_candidates* candidates, tamis_error* error) {
  return guarded(error, [&]() -> Status {
    TAMIS_RETURN_IF_ERROR(need("rows", rows));
    if (candidates == nullptr) return tamis::invalid("candidates", "is NULL");
    *candidates = rows->candidates;
    return {};
  });
}

int32_t tamis_tiers_create(tamis_tiers** tiers, tamis_error* error) { return create("tiers", tiers, error); }
void tamis_tiers_destroy(tamis_tiers* tiers) { delete tiers; }

int32_t tamis_tiers_make(const tamis_candidates* from, const int64_t* edges, int64_t count,
                         tamis_tiers* tiers, tamis_error* error) {
  return guarded(error, [&]() -> Status {
    TAMIS_RETURN_IF_ERROR(empty("tiers", tiers));
    return make_tiers(from, edges, count, tiers);
  });
}

int32_t tamis_tiers_view(const tamis_tiers* tiers, tamis_tier* to, int64_t capacity, int64_t* count,
                         tamis_error* error) {
  return guarded(error, [&] { return view_tiers(tiers, to, capacity, count); });
}

int32_t tamis_rows_from_tiers(const tamis_tier* tiers, int64_t count, int32_t padding,
                              const tamis_candidates* like, tamis_rows* rows, tamis_error* error) {
  return guarded(error, [&]() -> Status {
    TAMIS_RETURN_IF_ERROR(empty("rows", rows));
    return from_tiers_c(tiers, count, padding, like, rows);
  });
}

int32_t tamis_tier_of(const int64_t* edges, int64_t count, int64_t length, int64_t* tier,
                      tamis_error* error) {
  return guarded(error, [&]() -> Status {
    std::span<const int64_t> e;
    TAMIS_RETURN_IF_ERROR(read_span("edges", edges, count, &e));
    if (tier == nullptr) return tamis::invalid("tier", "is NULL");
    const tamis::Result<int64_t> found = tamis::tier_of(e, length);
    if (!found.ok()) return found.status();
    *tier = *found;
    return {};
  });
}

int32_t tamis_rows_utilization(const tamis_candidates* rows, int64_t* used, int64_t* allocated,
                               tamis_error* error) {
  return guarded(error, [&] { return utilization_c(rows, used, allocated); });
}

int32_t tamis_tiers_utilization(const tamis_tier* tiers, int64_t count, int64_t* used, int64_t* allocated,
                                tamis_error* error) {
  return guarded(error, [&] { return tiers_utilization_c(tiers, count, used, allocated); });
}

}  // extern "C"
