// Memory of a test's tensors, and how they lie in it.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <vector>

#include "support/numbers.h"
#include "support/spec.h"

namespace tamis::testing {

using Buffers = std::vector<std::vector<unsigned char>>;

// A view of the given extents over a new buffer, or over the last one at `shift` elements. What is left out
// of floats is NaN.
inline TensorView lay(Buffers& buffers, std::initializer_list<int64_t> shape, DType dtype, Placement how,
                      int64_t row_elements, int64_t shift) {
  TensorView t = dense_view(nullptr, dtype, shape);
  const bool gaps = how != Placement::kDense && how != Placement::kReversed;
  int64_t step = how == Placement::kSpread ? 2 : 1;
  for (int axis = t.rank - 1; axis >= 0; --axis) {
    t.stride[axis] = step;
    step *= axis == t.rank - 1 && how == Placement::kInterleaved ? row_elements : t.shape[axis];
    if (gaps) step += 3 + axis;
  }
  const int64_t size = dtype_bytes(dtype);
  if (shift == 0) {
    buffers.emplace_back(std::max<int64_t>(1, step * size));  // an empty vector has no address to count from
    for (int64_t i = 0; i < step && size > 1; ++i) store(buffers.back().data(), dtype, i, kNaN);
  }
  unsigned char* data = buffers.back().data() + shift * size;
  for (int axis = 0; how == Placement::kReversed && axis < t.rank; ++axis) {
    if (t.shape[axis] > 0) data += (t.shape[axis] - 1) * t.stride[axis] * size;
    t.stride[axis] *= -1;
  }
  t.data = data;
  return t;
}

}  // namespace tamis::testing
