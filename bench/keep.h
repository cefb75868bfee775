// Arrays a Work owns, and the views its problems hold of them.
#pragma once

#include <deque>
#include <initializer_list>
#include <utility>
#include <vector>

#include "data.h"
#include "tamis/tensor.h"

namespace tamis::bench {

class Keep {
 public:
  TensorView ints(std::vector<int32_t> x, std::initializer_list<int64_t> shape) {
    ints_.push_back(std::move(x));
    return dense_view(ints_.back().data(), DType::kI32, shape);
  }
  TensorView ints(std::vector<int32_t> x) {
    const auto n = static_cast<int64_t>(x.size());
    return ints(std::move(x), {n});
  }
  TensorView words(std::vector<uint64_t> x, std::initializer_list<int64_t> shape) {
    words_.push_back(std::move(x));
    return dense_view(words_.back().data(), DType::kU64, shape);
  }
  // Random values; the shape must not be empty.
  Result<TensorView> random(DType dtype, std::initializer_list<int64_t> shape, uint64_t seed,
                            Context& context) {
    const TensorView shaped = dense_view(nullptr, dtype, shape);
    Result<Buffer> buffer = Buffer::make(shaped.elements() * dtype_bytes(dtype));
    if (!buffer.ok()) return buffer.status();
    fill(buffer->data(), shaped.elements(), dtype, seed, context);
    buffers_.push_back(std::move(*buffer));
    return dense_view(buffers_.back().data(), dtype, shape);
  }

 private:
  std::deque<std::vector<int32_t>> ints_;
  std::deque<std::vector<uint64_t>> words_;
  std::deque<Buffer> buffers_;
};

}  // namespace tamis::bench
