// From problem, bundles and rows to what a kernel is told.
#pragma once

#include "core/philox.h"
#include "kernels/cpu/args.h"
#include "kernels/cpu/rows.h"
#include "tamis/bundle.h"
#include "tamis/problem.h"

namespace tamis::cpu {

inline Element element_of(const TensorView& t, Format format) {
  switch (format) {
    case Format::kInt8:
      return Element::kInt8;
    case Format::kFp8E4M3:
      return Element::kE4M3;
    case Format::kFp8E5M2:
      return Element::kE5M2;
    case Format::kInt4:
      return Element::kInt4;
    case Format::kPlain:
      break;
  }
  return t.dtype == DType::kF32 ? Element::kF32 : t.dtype == DType::kF16 ? Element::kF16 : Element::kBF16;
}

// Where the scale of (page, token, d) lies, in floats; the head is part of the base.
inline void put_scale(const Quantization& quant, const KvStrides& of_token, int64_t kv_head, Side* side) {
  const TensorView& t = quant.scale;
  const auto stride = [&](int axis) { return t.stride[axis]; };
  int64_t head = 0;
  switch (quant.kind) {
    case ScaleKind::kTensor:
      break;
    case ScaleKind::kHead:
      head = stride(0);
      break;
    case ScaleKind::kPage:
      side->scale_page = stride(0), head = stride(1);
      break;
    case ScaleKind::kChannel:
      head = stride(0), side->scale_dim = stride(1);
      break;
    case ScaleKind::kPageChannel:
      side->scale_page = stride(0), head = stride(1), side->scale_dim = stride(2);
      break;
    case ScaleKind::kToken:
      side->scale_page = of_token.page, side->scale_token = of_token.token, head = of_token.head;
      break;
  }
  side->scale = static_cast<const float*>(t.data) + kv_head * head;
}

inline Side side_of(const TensorView& t, const Quantization& quant, Layout layout, int64_t kv_head) {
  const KvStrides stride = kv_strides(t, layout);
  const int64_t bytes = dtype_bytes(t.dtype);
  Side side{.data = static_cast<const char*>(t.data) + kv_head * stride.head * bytes,
            .page = stride.page * bytes,
            .token = stride.token * bytes,
            .dim = stride.dim * bytes,
            .head_dim = t.shape[t.rank - 1] * (quant.format == Format::kInt4 ? 2 : 1),
            .element = element_of(t, quant.format),
            .scale = nullptr,
            .scale_page = 0,
            .scale_token = 0,
            .scale_dim = 0};
  if (quant.format == Format::kPlain) return side;
  // A scale of each token has k's shape less the head size: k's strides by name, with that axis put back.
  TensorView per_token = quant.scale;
  per_token.shape[per_token.rank] = 1;
  per_token.stride[per_token.rank] = 1;
  ++per_token.rank;
  put_scale(quant, quant.kind == ScaleKind::kToken ? kv_strides(per_token, layout) : KvStrides{}, kv_head,
            &side);
  return side;
}

inline DropoutArgs dropout_args(const Dropout& dropout, int32_t request, const RowChunk& chunk) {
  return {.active = dropout.p > 0,
          .threshold = dropout_threshold(dropout.p),
          .keep = static_cast<float>(1 / (1 - dropout.p)),
          .seed = dropout.seed,
          .request = static_cast<uint32_t>(request),
          .heads = chunk.heads,
          .positions = chunk.positions};
}

inline ScoreArgs score_args(const Problem& p, const Shape& s, const RowChunk& chunk) {
  return {.scale = static_cast<float>(s.scale),
          .softcap = static_cast<float>(p.score.softcap),
          .slopes = p.score.alibi_slopes.present() ? chunk.slopes : nullptr,
          .positions = chunk.positions};
}

// Blocks [begin, end) of a bundle.
inline BlockArgs block_args(const BundleView& view, const Bundle& bundle, int32_t begin, int32_t end,
                            int64_t page_size) {
  return {.blocks = view.blocks + bundle.begin,
          .members = view.members + bundle.members_at,
          .span_begin = view.span_begin + bundle.begin,
          .spans = view.spans,
          .begin = begin,
          .end = end,
          .lists = bundle.lists,
          .words = view.words,
          .block = view.block,
          .page_size = page_size,
          .load_all = false};
}

}  // namespace tamis::cpu
