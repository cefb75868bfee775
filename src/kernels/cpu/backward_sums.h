// Where dK and dV are summed: in the gradient itself where that is f32 with dense rows, else apart, for the
// physical spans that some bundle reads, and stored once all is summed.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/pool.h"
#include "index/transpose.h"
#include "kernels/cpu/numbers.h"
#include "tamis/problem.h"

namespace tamis::cpu {

// Asked of any view: a workspace is sized before gradients are checked.
inline bool sums_in_place(const MutableTensorView& t) {
  return t.rank > 0 && t.dtype == DType::kF32 && t.stride[t.rank - 1] == 1;
}

inline void clear_floats(float* at, int64_t count, Context::Pool& pool) {
  constexpr int64_t piece = 1 << 16;
  pool.for_each((count + piece - 1) / piece, [&](int, int64_t i) {
    memset(at + i * piece, 0, sizeof(float) * static_cast<size_t>(std::min(piece, count - i * piece)));
  });
}

// Zero in every element, nothing between them.
inline void clear_tensor(const MutableTensorView& t, Context::Pool& pool) {
  if (t.elements() == 0) return;
  const int64_t inner = t.elements() / t.shape[0], size = dtype_bytes(t.dtype);
  int64_t step = 1;
  bool dense = true;
  for (int axis = t.rank - 1; axis > 0; step *= t.shape[axis--]) dense = dense && t.stride[axis] == step;
  pool.for_each(t.shape[0], [&](int, int64_t i) {
    char* at = static_cast<char*>(t.data) + i * t.stride[0] * size;
    if (dense) {
      memset(at, 0, static_cast<size_t>(inner * size));
      return;
    }
    for (int64_t e = 0; e < inner; ++e) {
      int64_t rest = e, offset = 0;
      for (int axis = t.rank - 1; axis > 0; rest /= t.shape[axis--])
        offset += rest % t.shape[axis] * t.stride[axis];
      memset(at + offset * size, 0, static_cast<size_t>(size));
    }
  });
}

// The sums of one of the two. `apart` is not used where they are made in place.
class KeySums {
 public:
  KeySums(const MutableTensorView& gradient, const Problem& problem, const Shape& shape,
          const index::PhysicalSpans& spans, const std::vector<int32_t>& span_place, float* apart)
      : t_(gradient),
        dim_(gradient.shape[gradient.rank - 1]),
        page_size_(shape.page_size),
        kv_heads_(shape.kv_heads),
        spans_(spans),
        span_place_(span_place),
        apart_(apart),
        stride_(kv_strides(t_, problem.cache.layout)) {}

  // Floats kept apart for `touched` spans.
  static int64_t floats_apart(const MutableTensorView& gradient, int64_t touched,
                              const index::PhysicalSpans& spans, int64_t kv_heads, int64_t dim) {
    return sums_in_place(gradient) ? 0 : touched * spans.size() * kv_heads * dim;
  }

  int64_t dim() const { return dim_; }

  // The sum of a slot, and the distance to that of the next slot of its span.
  struct Place {
    float* at;
    int64_t stride;
  };
  Place at(int64_t slot, int64_t kv_head) const {
    if (sums_in_place(t_)) return {static_cast<float*>(t_.data) + element(slot, kv_head), stride_.token};
    const int64_t place = span_place_[spans_.of(slot)] * kv_heads_ + kv_head;
    return {apart_ + (place * spans_.size() + spans_.offset(slot)) * dim_, dim_};
  }

  void clear(int64_t touched, Context::Pool& pool) const {
    clear_tensor(t_, pool);
    clear_floats(apart_, floats_apart(t_, touched, spans_, kv_heads_, dim_), pool);
  }

  // Stores f of each sum of a span.
  template <class F>
  void finish(int64_t span, const F& f) const {
    for (int64_t slot = spans_.first(span), end = slot + spans_.length(span); slot < end; ++slot)
      for (int64_t h = 0; h < kv_heads_; ++h) {
        const int64_t to = element(slot, h);
        const float* from = at(slot, h).at;
        for (int64_t d = 0; d < dim_; ++d) store_float(t_, to + d * stride_.dim, f(from[d]));
      }
  }

 private:
  int64_t element(int64_t slot, int64_t kv_head) const {
    const int64_t page = page_size_ == 0 ? 0 : slot / page_size_, token = slot - page * page_size_;
    return page * stride_.page + token * stride_.token + kv_head * stride_.head;
  }

  const MutableTensorView& t_;
  const int64_t dim_, page_size_, kv_heads_;
  const index::PhysicalSpans& spans_;
  const std::vector<int32_t>& span_place_;  // [spans] place among the touched ones, -1
  float* const apart_;                      // [touched, kv_heads, slots of a span, dim]
  const KvStrides stride_;
};

}  // namespace tamis::cpu
