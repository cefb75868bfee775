// K and V as tensors of five axes: 64 elements, tokens of which a box takes 8, halves of 64 elements, groups
// of 8 tokens, and one axis for heads and pages. Axes overlap: the box of a block begins at a token of axis 1
// and reaches over the groups of axis 3, so that it may begin at any token.
#pragma once

#include "kernels/cuda/device/tensor_map.h"
#include "kernels/cuda/prefill/launch.h"

namespace tamis::cuda {

struct SideSpecs {
  device::TensorSpec block, group;  // boxes of a block, of 8 tokens
  int32_t page_apart, outside;      // as in PrefillSide
};

// Where boxes serve (no_boxes() of attention/step_support.h).
inline SideSpecs specs_of(const DecodeSide& side, const SideShape& shape, int32_t kernel_dim) {
  // With one head, or one page, the other's step serves.
  const bool one_head = shape.kv_heads <= 1, one_page = shape.pages <= 1;
  const int64_t along = one_head ? (one_page ? 16 : side.page) : side.head;
  const int64_t apart = one_page ? 0 : one_head ? 1 : side.page / side.head;
  const int64_t places = (shape.pages - 1) * apart + shape.kv_heads;
  device::TensorSpec block{.data = side.data,
                           .size = {64, shape.page_tokens, side.dim / 64, shape.block / 8, places},
                           .stride = {side.token, 128, 8 * side.token, along},
                           .box = {64, 8, kernel_dim / 64, shape.block / 8, 1}};
  device::TensorSpec group = block;
  group.box[3] = 1;
  return {block, group, static_cast<int32_t>(apart), static_cast<int32_t>(places)};
}

// Rows of 16-bit elements, on 16 bytes where `on_16_bytes`. list_heads: of a KV head, that one list serves,
// so that kBoxRows rows are as many heads of as many queries as that makes. Fewer queries than fill a tile
// never come as boxes.
inline bool rows_have_boxes(bool on_16_bytes, int64_t query, int64_t head, int64_t queries,
                            int32_t list_heads) {
  constexpr int64_t most = int64_t{1} << 40;  // TensorSpec
  return on_16_bytes && query > 0 && query < most && head > 0 && head < most && kBoxRows % list_heads == 0 &&
         queries >= kPrefillRows / list_heads;
}
inline device::TensorSpec rows_spec(const void* data, int64_t query, int64_t head, int32_t dim, int32_t heads,
                                    int64_t queries, int32_t list_heads) {
  return {.data = data,
          .size = {dim, heads, queries, 1, 1},
          .stride = {head, query, 16, 16},
          .box = {64, list_heads, kBoxRows / list_heads, 1, 1}};
}

struct RowSpecs {
  device::TensorSpec q, out;
  bool q_there, out_there;
};
inline RowSpecs row_specs(const DecodeArgs& a, DType dtype) {
  return {
      .q = rows_spec(a.q.data, a.q.stride_query, a.q.stride_head, a.q.head_dim, a.q.q_heads, a.out.total_q,
                     a.list_heads),
      .out =
          rows_spec(a.out.data, a.out.query, a.out.head, a.v.dim, a.q.q_heads, a.out.total_q, a.list_heads),
      .q_there = rows_have_boxes(a.q.aligned, a.q.stride_query, a.q.stride_head, a.out.total_q, a.list_heads),
      .out_there = a.out.dtype == dtype && a.out.slots.slot == nullptr &&
                   rows_have_boxes(a.out.wide, a.out.query, a.out.head, a.out.total_q, a.list_heads)};
}

}  // namespace tamis::cuda
