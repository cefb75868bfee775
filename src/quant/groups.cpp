#include "quant/groups.h"

#include <string>

#include "core/tensor_checks.h"

namespace tamis {

Status check_kv_view(const char* name, const TensorView& x, Format format, ScaleKind kind) {
  if (!x.present()) return invalid(name, "tensor is missing");
  if (x.rank != 3 && x.rank != 4) return invalid(name, "rank ", x.rank, ", expected 4 (paged) or 3");
  for (int axis = 0; axis < x.rank; ++axis)
    if (x.shape[axis] < 0) return invalid(name, "extent ", x.shape[axis], " of axis ", axis, " is negative");
  // Far above any memory, low enough that no product of extents wraps around.
  constexpr int64_t most = int64_t{1} << 48;
  for (int64_t axis = 0, n = 1; axis < x.rank; ++axis) {
    if (x.shape[axis] > 0 && n > most / x.shape[axis])
      return {Code::kCapacityExceeded, text(name, ": more than ", most, " elements"), {.limit = most + 1}};
    n *= x.shape[axis];
  }
  TAMIS_RETURN_IF_ERROR(need_memory(name, x));
  if (format > Format::kInt4) return invalid("format", static_cast<int>(format), " is none of Format");
  if (kind > ScaleKind::kToken) return invalid("kind", static_cast<int>(kind), " is none of ScaleKind");
  const bool per_page = kind == ScaleKind::kPage || kind == ScaleKind::kPageChannel;
  if (format != Format::kPlain && per_page && x.rank != 4)
    return invalid(name, "a scale per page needs a paged cache");
  return {};
}

Status check_scale_view(const char* name, const TensorView& scale, ScaleKind kind, const KvExtents& e) {
  const std::string scale_name = text(name, "_scale");
  const char* argument = scale_name.c_str();
  if (!scale.present()) return invalid(argument, "tensor is missing");
  if (scale.dtype != DType::kF32)
    return invalid(argument, "dtype ", dtype_name(scale.dtype), " is not one of F32");
  const TensorView wanted = scale_view(kind, e, nullptr);
  bool same = scale.rank == wanted.rank;
  for (int axis = 0; same && axis < wanted.rank; ++axis) same = scale.shape[axis] == wanted.shape[axis];
  if (!same) {
    std::string shape;
    for (int axis = 0; axis < wanted.rank; ++axis) shape += text(axis ? "," : "", wanted.shape[axis]);
    return invalid(argument, "shape is not [", shape, "]");
  }
  TAMIS_RETURN_IF_ERROR(need_memory(argument, scale));
  return {};
}

}  // namespace tamis
