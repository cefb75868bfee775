// Element types and non-owning, strided views of arrays.
//
// A view never owns memory and never says where it lives: the function that takes it does (host functions:
// host memory). Strides are in elements, may be zero or negative, and need not be dense; int4 data is viewed
// as kU8 with half the last extent. A default-constructed view means "absent"; a scalar has rank 0.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <type_traits>

namespace tamis {

enum class DType : uint8_t {
  kF64,
  kF32,
  kF16,
  kBF16,
  kF8E4M3,  // OCP e4m3fn: no infinities, 0x7F and 0xFF are NaN
  kF8E5M2,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool,
};

int dtype_bytes(DType dtype);
const char* dtype_name(DType dtype);  // "F32", "BF16", "F8_E4M3", ...: the names safetensors uses

inline constexpr int kMaxRank = 5;

template <class Data>
struct BasicTensorView {
  Data* data = nullptr;  // may be null when the tensor has no elements, or when only its shape is of interest
  DType dtype = DType::kF32;
  int rank = -1;                           // -1: absent
  std::array<int64_t, kMaxRank> shape{};   // [rank]
  std::array<int64_t, kMaxRank> stride{};  // [rank], elements

  bool present() const { return rank >= 0; }

  // Product of the extents, or 2^63 - 1 where that is more; 1 for a scalar, 0 when absent or where an extent
  // is not positive.
  int64_t elements() const {
    if (!present()) return 0;
    constexpr int64_t most = std::numeric_limits<int64_t>::max();
    int64_t n = 1;
    for (int axis = 0; axis < rank; ++axis) {
      if (shape[axis] <= 0) return 0;
      n = n > most / shape[axis] ? most : n * shape[axis];
    }
    return n;
  }

  // What may be written may be read.
  template <class D = Data>
  requires(!std::is_const_v<D>) operator BasicTensorView<const D>() const {
    return {data, dtype, rank, shape, stride};
  }

  // The element at the given indices. T must match dtype; no bounds are checked.
  template <class T>
  const T& at(std::initializer_list<int64_t> index) const {
    int64_t offset = 0;
    int axis = 0;
    for (int64_t i : index) offset += i * stride[axis++];
    return static_cast<const T*>(data)[offset];
  }
};

using TensorView = BasicTensorView<const void>;
using MutableTensorView = BasicTensorView<void>;

// A dense row-major view. The caller sees to it that `data` holds the product of the extents.
TensorView dense_view(const void* data, DType dtype, std::initializer_list<int64_t> shape);
MutableTensorView mutable_view(void* data, DType dtype, std::initializer_list<int64_t> shape);

// The same with the extents of `like`, but for the last.
TensorView dense_like(const TensorView& like, int64_t last_extent, const void* data, DType dtype);
MutableTensorView mutable_like(const TensorView& like, int64_t last_extent, void* data, DType dtype);

}  // namespace tamis
