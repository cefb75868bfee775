// Where the elements of k or v are, and which scale each of them has.
#pragma once

#include <cstdint>

#include "core/checks.h"
#include "core/elements.h"
#include "tamis/cache.h"

namespace tamis {

// The extents of k or v, read off a plain view or one of codes.
struct KvExtents {
  int64_t pages, tokens, heads, dim;  // contiguous: one page of all rows
  bool paged;
  bool hnd;

  int64_t slots() const { return pages * tokens; }
};

inline KvExtents extents_of(const TensorView& x, Layout layout, bool packed) {
  const bool paged = x.rank == 4, hnd = layout == Layout::kHND;
  const int first = paged ? 1 : 0;
  return {.pages = paged ? x.shape[0] : 1,
          .tokens = x.shape[first + (hnd ? 1 : 0)],
          .heads = x.shape[first + (hnd ? 0 : 1)],
          .dim = x.shape[x.rank - 1] * (packed ? 2 : 1),
          .paged = paged,
          .hnd = hnd};
}

// The shape of the scale of a kind (docs/semantics.md section 8): a view without memory, dense.
inline TensorView scale_view(ScaleKind kind, const KvExtents& e, const float* data) {
  const int64_t rows = e.hnd ? e.heads : e.tokens, columns = e.hnd ? e.tokens : e.heads;
  switch (kind) {
    case ScaleKind::kHead:
      return dense_view(data, DType::kF32, {e.heads});
    case ScaleKind::kPage:
      return dense_view(data, DType::kF32, {e.pages, e.heads});
    case ScaleKind::kChannel:
      return dense_view(data, DType::kF32, {e.heads, e.dim});
    case ScaleKind::kPageChannel:
      return dense_view(data, DType::kF32, {e.pages, e.heads, e.dim});
    case ScaleKind::kToken:
      return e.paged ? dense_view(data, DType::kF32, {e.pages, rows, columns})
                     : dense_view(data, DType::kF32, {rows, columns});
    case ScaleKind::kTensor:
      break;
  }
  return dense_view(data, DType::kF32, {});
}

// How far apart scales lie, in elements of the scale: one is at
// page * page + token * token + head * head + dim * dim, and a stride is 0 where the kind makes no
// difference.
struct ScaleStrides {
  int64_t page, token, head, dim;
};

inline ScaleStrides scale_strides(ScaleKind kind, const TensorView& scale, Layout layout) {
  const auto& s = scale.stride;
  switch (kind) {
    case ScaleKind::kHead:
      return {0, 0, s[0], 0};
    case ScaleKind::kPage:
      return {s[0], 0, s[1], 0};
    case ScaleKind::kChannel:
      return {0, 0, s[0], s[1]};
    case ScaleKind::kPageChannel:
      return {s[0], 0, s[1], s[2]};
    case ScaleKind::kToken: {
      const int first = scale.rank - 2;
      const bool hnd = layout == Layout::kHND;
      return {first == 1 ? s[0] : 0, s[first + (hnd ? 1 : 0)], s[first + (hnd ? 0 : 1)], 0};
    }
    case ScaleKind::kTensor:
      break;
  }
  return {0, 0, 0, 0};
}

// Rank, extents and memory of k or v, and that the kind of scale can be had.
Status check_kv_view(const char* name, const TensorView& x, Format format, ScaleKind kind);

// `scale` against the shape its kind asks for.
Status check_scale_view(const char* name, const TensorView& scale, ScaleKind kind, const KvExtents& e);

}  // namespace tamis
