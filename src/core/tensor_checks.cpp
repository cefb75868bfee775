#include "core/tensor_checks.h"

#include <algorithm>

namespace tamis {

Status need_tensor(const char* name, const TensorView& t, std::span<const DType> dtypes, int rank) {
  if (!t.present()) return invalid(name, "tensor is missing");
  if (std::find(dtypes.begin(), dtypes.end(), t.dtype) == dtypes.end()) {
    std::string wanted;
    for (DType d : dtypes) wanted += text(" ", dtype_name(d));
    return invalid(name, "dtype ", dtype_name(t.dtype), " is not one of", wanted);
  }
  if (t.rank != rank) return invalid(name, "rank ", t.rank, ", expected ", rank);
  for (int axis = 0; axis < t.rank; ++axis)
    if (t.shape[axis] < 0) return invalid(name, "extent ", t.shape[axis], " of axis ", axis, " is negative");
  return {};
}

namespace {

std::string extents(std::span<const int64_t> shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += text(i ? "," : "", shape[i]);
  return out + "]";
}

}  // namespace

Status need_shape(const char* name, const TensorView& t, std::span<const DType> dtypes,
                  std::initializer_list<int64_t> shape) {
  TAMIS_RETURN_IF_ERROR(need_tensor(name, t, dtypes, static_cast<int>(shape.size())));
  const std::span<const int64_t> want(shape.begin(), shape.size()), have(t.shape.data(), shape.size());
  for (size_t axis = 0; axis < want.size(); ++axis)
    if (want[axis] != kAnyExtent && want[axis] != have[axis])
      return invalid(name, "shape ", extents(have), ", expected ", extents(want));
  return {};
}

Status need_memory(const char* name, const TensorView& t) {
  return t.data == nullptr && t.elements() > 0 ? invalid(name, "has elements but no memory") : Status();
}

Status need_aligned(const char* name, const TensorView& t) {
  if (!t.present()) return {};
  const int bytes = dtype_bytes(t.dtype);
  if (reinterpret_cast<uintptr_t>(t.data) % static_cast<uintptr_t>(bytes) == 0) return {};
  return invalid(name, "data does not start on a multiple of ", bytes, " bytes");
}

}  // namespace tamis
