// What a tensor must be: presence, dtype, rank, extents, memory. invalid_argument naming it otherwise.
#pragma once

#include <initializer_list>
#include <span>

#include "core/checks.h"
#include "tamis/tensor.h"

namespace tamis {

inline constexpr int64_t kAnyExtent = -1;

Status need_tensor(const char* name, const TensorView& t, std::span<const DType> dtypes, int rank);
Status need_shape(const char* name, const TensorView& t, std::span<const DType> dtypes,
                  std::initializer_list<int64_t> shape);

// A present tensor with elements has memory behind it; an absent one needs none.
Status need_memory(const char* name, const TensorView& t);

// Memory that starts on a multiple of an element's size: kernels read and write whole elements.
Status need_aligned(const char* name, const TensorView& t);

}  // namespace tamis
