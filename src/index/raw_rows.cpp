#include "index/raw_rows.h"

#include "core/checks.h"

namespace tamis::index {
namespace {

int64_t offset(const TensorView& t, int64_t i) {
  return t.dtype == DType::kI64 ? t.at<int64_t>({i}) : t.at<int32_t>({i});
}

Status check_row_count(int64_t rows) {
  if (rows <= kMostRows) return {};
  return {Code::kCapacityExceeded,
          text("cand_indices: ", rows, " rows, more than ", kMostRows),
          {.value = rows, .limit = kMostRows + 1}};
}

Status check_offsets(const CandidateView& c) {
  const int64_t rows = c.indptr.shape[0] - 1, entries = c.indices.shape[0];
  if (rows < 0) return invalid("cand_indptr", "has no offset, not even the first");
  TAMIS_RETURN_IF_ERROR(check_row_count(rows));
  if (offset(c.indptr, 0) != 0)
    return invalid("cand_indptr", "starts at ", offset(c.indptr, 0), ", not at 0");
  for (int64_t r = 0; r < rows; ++r)
    if (offset(c.indptr, r + 1) < offset(c.indptr, r))
      return {Code::kInvalidArgument,
              text("cand_indptr: falls from ", offset(c.indptr, r), " to ", offset(c.indptr, r + 1), " at ",
                   r + 1),
              {.row = r, .value = offset(c.indptr, r + 1)}};
  if (offset(c.indptr, rows) != entries)
    return invalid("cand_indptr", "ends at ", offset(c.indptr, rows), ", cand_indices has ", entries,
                   " entries");
  return {};
}

Status check_counts(const CandidateView& c) {
  const int64_t rows = c.indices.shape[0], width = c.indices.shape[1];
  if (c.count.shape[0] != rows) return invalid("cand_count", c.count.shape[0], " counts for ", rows, " rows");
  for (int64_t r = 0; r < rows; ++r)
    if (const int32_t count = c.count.at<int32_t>({r}); count < 0 || count > width)
      return {Code::kInvalidArgument,
              text("cand_count: ", count, " of row ", r, " is outside [0, ", width, "]"),
              {.row = r, .value = count, .limit = width + 1}};
  return {};
}

}  // namespace

Status check_ints(const char* name, const TensorView& t, int rank, bool or_i64) {
  if (!t.present()) return invalid(name, "tensor is missing");
  if (t.dtype != DType::kI32 && !(or_i64 && t.dtype == DType::kI64))
    return invalid(name, "dtype ", dtype_name(t.dtype), " is not ", or_i64 ? "I32 or I64" : "I32");
  if (t.rank != rank) return invalid(name, "rank ", t.rank, ", expected ", rank);
  bool elements = true;
  for (int axis = 0; axis < rank; ++axis) {
    if (t.shape[axis] < 0) return invalid(name, "extent ", t.shape[axis], " of axis ", axis, " is negative");
    elements = elements && t.shape[axis] > 0;  // the product could overflow
  }
  if (elements && t.data == nullptr) return invalid(name, "has elements but no memory");
  return {};
}

Result<int64_t> check_raw_rows(const CandidateView& c) {
  if (c.form == CandidateForm::kCsr) {
    TAMIS_RETURN_IF_ERROR(check_ints("cand_indptr", c.indptr, 1, true));
    TAMIS_RETURN_IF_ERROR(check_ints("cand_indices", c.indices, 1));
    if (c.count.present())
      return invalid("cand_count", "belongs to the fixed-width form, cand_indptr is CSR");
    TAMIS_RETURN_IF_ERROR(check_offsets(c));
    return c.indptr.shape[0] - 1;
  }
  if (c.form != CandidateForm::kFixedWidth) return invalid("cand_indices", "there are no rows to convert");
  TAMIS_RETURN_IF_ERROR(check_ints("cand_indices", c.indices, 2));
  TAMIS_RETURN_IF_ERROR(check_row_count(c.indices.shape[0]));
  if (c.count.present()) {
    TAMIS_RETURN_IF_ERROR(check_ints("cand_count", c.count, 1));
    TAMIS_RETURN_IF_ERROR(check_counts(c));
  }
  return c.indices.shape[0];
}

}  // namespace tamis::index
