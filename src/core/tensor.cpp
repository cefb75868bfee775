#include "tamis/tensor.h"

#include <iterator>
#include <span>

#include "core/saturating.h"

namespace tamis {
namespace {

struct Kind {
  int bytes;
  const char* name;
};

// In the order of DType.
constexpr Kind kKinds[] = {{8, "F64"},     {4, "F32"}, {2, "F16"}, {2, "BF16"}, {1, "F8_E4M3"},
                           {1, "F8_E5M2"}, {8, "I64"}, {4, "I32"}, {2, "I16"},  {1, "I8"},
                           {8, "U64"},     {4, "U32"}, {2, "U16"}, {1, "U8"},   {1, "BOOL"}};

}  // namespace

// A number that is none of DType comes from a caller's cast: it has no bytes, and a name that says so.
int dtype_bytes(DType dtype) {
  return static_cast<size_t>(dtype) < std::size(kKinds) ? kKinds[static_cast<int>(dtype)].bytes : 0;
}
const char* dtype_name(DType dtype) {
  return static_cast<size_t>(dtype) < std::size(kKinds) ? kKinds[static_cast<int>(dtype)].name : "unknown";
}

namespace {

template <class Data>
BasicTensorView<Data> dense(Data* data, DType dtype, std::span<const int64_t> shape) {
  BasicTensorView<Data> view{.data = data, .dtype = dtype, .rank = static_cast<int>(shape.size())};
  int64_t step = 1;
  for (int axis = view.rank - 1; axis >= 0; --axis) {
    view.shape[axis] = shape[axis];
    view.stride[axis] = step;
    step = times(step, view.shape[axis]);
  }
  return view;
}

template <class Data>
BasicTensorView<Data> dense(const TensorView& like, int64_t last_extent, Data* data, DType dtype) {
  std::array<int64_t, kMaxRank> shape = like.shape;
  shape[like.rank - 1] = last_extent;
  return dense(data, dtype, std::span<const int64_t>(shape.data(), like.rank));
}

}  // namespace

TensorView dense_view(const void* data, DType dtype, std::initializer_list<int64_t> shape) {
  return dense(data, dtype, std::span<const int64_t>(shape.begin(), shape.size()));
}

MutableTensorView mutable_view(void* data, DType dtype, std::initializer_list<int64_t> shape) {
  return dense(data, dtype, std::span<const int64_t>(shape.begin(), shape.size()));
}

TensorView dense_like(const TensorView& like, int64_t last_extent, const void* data, DType dtype) {
  return dense(like, last_extent, data, dtype);
}

MutableTensorView mutable_like(const TensorView& like, int64_t last_extent, void* data, DType dtype) {
  return dense(like, last_extent, data, dtype);
}

}  // namespace tamis
