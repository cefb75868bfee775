// Arguments that can be judged without reading any array: presence, dtypes, ranks, extents, options.
#include "tamis/problem.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "core/elements.h"
#include "core/tensor_checks.h"

namespace tamis {
namespace {

constexpr DType kI32Only[] = {DType::kI32};
constexpr DType kF32Only[] = {DType::kF32};
constexpr DType kU64Only[] = {DType::kU64};
constexpr DType kI32OrI64[] = {DType::kI32, DType::kI64};

// Far above any model, low enough that products of two sizes and a 32-bit count stay inside 64 bits.
constexpr int64_t kMostHeads = int64_t{1} << 16, kMostHeadSize = int64_t{1} << 16;
constexpr int64_t kMostPages = (int64_t{1} << 31) - 1;  // page numbers and tokens are 32-bit

Status check_options(const Problem& p) {
  const CandidateView& c = p.candidates;
  if (c.semantics != Semantics::kSet)
    return {Code::kUnsupportedSemantics,
            text("semantics: '", c.semantics == Semantics::kSequence ? "sequence" : "multiset",
                 "' is named but not computed, only 'set' is: a repeated key is a different function")};
  if (c.unit < 1) return invalid("unit", c.unit, " is below 1");
  if (c.query_block < 1) return invalid("query_block", c.query_block, " is below 1");
  if (p.mask.window < 0) return invalid("window", p.mask.window, " is negative");
  if (p.mask.sink < 0) return invalid("sink", p.mask.sink, " is negative");
  if (p.score.scale && !std::isfinite(*p.score.scale)) return invalid("scale", "is not finite");
  if (!std::isfinite(p.score.softcap) || p.score.softcap < 0)
    return invalid("softcap", p.score.softcap, " is not finite and at least 0");
  if (!(p.dropout.p >= 0 && p.dropout.p < 1)) return invalid("dropout_p", p.dropout.p, " is outside [0, 1)");
  return {};
}

struct Stored {
  DType dtype;
  int bits;  // of one element
};

Stored stored_as(Format format, DType plain) {
  switch (format) {
    case Format::kInt8:
      return {DType::kI8, 8};
    case Format::kFp8E4M3:
      return {DType::kF8E4M3, 8};
    case Format::kFp8E5M2:
      return {DType::kF8E5M2, 8};
    case Format::kInt4:
      return {DType::kU8, 4};
    case Format::kPlain:
      break;
  }
  return {plain, 8 * dtype_bytes(plain)};
}

Status check_scale(const char* scale_name, const char* kind_name, const Quantization& quant,
                   const TensorView& codes, int64_t dim, const Shape& s) {
  switch (quant.kind) {
    case ScaleKind::kTensor:
      return need_shape(scale_name, quant.scale, kF32Only, {});
    case ScaleKind::kHead:
      return need_shape(scale_name, quant.scale, kF32Only, {s.kv_heads});
    case ScaleKind::kChannel:
      return need_shape(scale_name, quant.scale, kF32Only, {s.kv_heads, dim});
    case ScaleKind::kToken:
      if (codes.rank == 4)
        return need_shape(scale_name, quant.scale, kF32Only,
                          {codes.shape[0], codes.shape[1], codes.shape[2]});
      return need_shape(scale_name, quant.scale, kF32Only, {codes.shape[0], codes.shape[1]});
    case ScaleKind::kPage:
    case ScaleKind::kPageChannel:
      break;
  }
  if (s.page_size == 0) return invalid(kind_name, "a scale per page needs a paged cache");
  if (quant.kind == ScaleKind::kPage)
    return need_shape(scale_name, quant.scale, kF32Only, {s.pages, s.kv_heads});
  return need_shape(scale_name, quant.scale, kF32Only, {s.pages, s.kv_heads, dim});
}

// Dtype, rank and head size of k or v; the other extents are compared by the caller. Sets *bits.
Status check_kv(const char* name, const TensorView& t, const Quantization& quant, bool paged, int* bits) {
  const int rank = paged ? 4 : 3;
  if (quant.format == Format::kPlain) {
    TAMIS_RETURN_IF_ERROR(need_tensor(name, t, kPlainFloats, rank));
  } else {
    const DType wanted[] = {stored_as(quant.format, t.dtype).dtype};
    TAMIS_RETURN_IF_ERROR(need_tensor(name, t, wanted, rank));
  }
  *bits = stored_as(quant.format, t.dtype).bits;
  return {};
}

int64_t head_size(const TensorView& t, const Quantization& quant) {
  return t.shape[t.rank - 1] * (quant.format == Format::kInt4 ? 2 : 1);
}

Status check_head_counts(const Shape& s) {
  if (s.q_heads < 1) return invalid("q", "has no heads");
  if (s.kv_heads < 1) return invalid("k", "has no heads");
  if (s.head_dim < 1) return invalid("q", "has no head dimension");
  if (s.v_head_dim < 1) return invalid("v", "has no head dimension");
  if (s.q_heads > kMostHeads) return invalid("q", s.q_heads, " query heads, at most ", kMostHeads);
  if (s.head_dim > kMostHeadSize) return invalid("q", "head size ", s.head_dim, ", at most ", kMostHeadSize);
  if (s.v_head_dim > kMostHeadSize)
    return invalid("v", "head size ", s.v_head_dim, ", at most ", kMostHeadSize);
  if (s.pages > kMostPages) return invalid("k", s.pages, " pages, at most ", kMostPages);
  if (s.page_size > kMostPages) return invalid("page_size", s.page_size, " tokens, at most ", kMostPages);
  if (s.q_heads % s.kv_heads != 0)
    return invalid("q", s.q_heads, " query heads are no multiple of ", s.kv_heads, " KV heads");
  if (s.index_heads != 1 && s.index_heads != s.kv_heads && s.index_heads != s.q_heads)
    return invalid("index_heads", s.index_heads, " is not 1, ", s.kv_heads, " (KV heads) or ", s.q_heads,
                   " (query heads)");
  return {};
}

Status read_tensors(const Problem& p, Shape* s) {
  const CacheView& c = p.cache;
  TAMIS_RETURN_IF_ERROR(need_tensor("q", p.query.q, kPlainFloats, 3));
  const bool paged = c.page_table.present();
  if (paged == c.cu_kv.present()) return invalid("page_table", "give exactly one of page_table and cu_kv");
  TAMIS_RETURN_IF_ERROR(check_kv("k", c.k, c.k_quant, paged, &s->k_bits));
  TAMIS_RETURN_IF_ERROR(check_kv("v", c.v, c.v_quant, paged, &s->v_bits));
  for (int axis = 0; axis < c.k.rank - 1; ++axis)
    if (c.k.shape[axis] != c.v.shape[axis]) return invalid("v", "disagrees with k outside the head size");
  const int token_axis = (paged ? 1 : 0) + (c.layout == Layout::kHND ? 1 : 0);
  const int head_axis = (paged ? 1 : 0) + (c.layout == Layout::kHND ? 0 : 1);
  s->q_heads = p.query.q.shape[1];
  s->head_dim = p.query.q.shape[2];
  s->kv_heads = c.k.shape[head_axis];
  s->v_head_dim = head_size(c.v, c.v_quant);
  if (paged) {
    s->pages = c.k.shape[0];
    s->page_size = c.k.shape[token_axis];
    if (s->page_size < 1) return invalid("k", "has pages of no tokens");
  } else {
    s->kv_rows = c.k.shape[token_axis];
  }
  TAMIS_RETURN_IF_ERROR(check_head_counts(*s));
  if (head_size(c.k, c.k_quant) != s->head_dim)
    return invalid("k", "head size ", head_size(c.k, c.k_quant), ", q has ", s->head_dim);
  if (c.k_quant.format != Format::kPlain)
    TAMIS_RETURN_IF_ERROR(check_scale("k_scale", "k_scale_kind", c.k_quant, c.k, s->head_dim, *s));
  if (c.v_quant.format != Format::kPlain)
    TAMIS_RETURN_IF_ERROR(check_scale("v_scale", "v_scale_kind", c.v_quant, c.v, s->v_head_dim, *s));
  return {};
}

Status read_index_only(const Problem& p, Shape* s) {
  const IndexOnly& only = *p.index_only;
  if (p.query.q.present() || p.cache.k.present() || p.cache.v.present())
    return invalid("q", "q, k and v have no place in an index-only problem");
  if (p.cache.page_table.present() && p.cache.cu_kv.present())
    return invalid("page_table", "give at most one of page_table and cu_kv");
  if (only.page_size < 0) return invalid("page_size", only.page_size, " is negative");
  if (only.num_pages < 0) return invalid("num_pages", only.num_pages, " is negative");
  if (only.kv_bits < 1 || only.kv_bits > 64) return invalid("kv_dtype", only.kv_bits, " bits an element");
  s->q_heads = only.q_heads;
  s->kv_heads = only.kv_heads;
  s->head_dim = only.head_dim;
  s->v_head_dim = only.v_head_dim;
  s->page_size = only.page_size;
  s->pages = only.num_pages;
  s->k_bits = s->v_bits = only.kv_bits;
  s->index_only = true;
  return check_head_counts(*s);
}

Status check_requests(const Problem& p, Shape* s) {
  TAMIS_RETURN_IF_ERROR(need_tensor("cu_q", p.query.cu_q, kI32Only, 1));
  if (p.query.cu_q.shape[0] < 1) return invalid("cu_q", "is empty, it holds one number more than requests");
  s->requests = p.query.cu_q.shape[0] - 1;
  if (!s->index_only) s->total_q = p.query.q.shape[0];
  TAMIS_RETURN_IF_ERROR(need_shape("kv_len", p.cache.kv_len, kI32Only, {s->requests}));
  if (p.query.q_pos.present())
    TAMIS_RETURN_IF_ERROR(
        need_shape("q_pos", p.query.q_pos, kI32Only, {s->index_only ? kAnyExtent : s->total_q}));
  if (p.cache.cu_kv.present())
    TAMIS_RETURN_IF_ERROR(need_shape("cu_kv", p.cache.cu_kv, kI32Only, {s->requests + 1}));
  if (p.cache.page_table.present()) {
    TAMIS_RETURN_IF_ERROR(need_shape("page_table", p.cache.page_table, kI32Only, {s->requests, kAnyExtent}));
    s->max_pages = p.cache.page_table.shape[1];
  }
  return {};
}

Status check_extras(const Problem& p, const Shape& s) {
  const CacheView& c = p.cache;
  if (c.page_stamps.present() != c.table_stamps.present())
    return invalid(c.page_stamps.present() ? "table_stamps" : "page_stamps",
                   "page_stamps and table_stamps go together");
  if (c.page_stamps.present()) {
    if (!c.page_table.present()) return invalid("page_stamps", "needs a paged cache");
    TAMIS_RETURN_IF_ERROR(
        need_shape("page_stamps", c.page_stamps, kU64Only, {s.index_only ? kAnyExtent : s.pages}));
    TAMIS_RETURN_IF_ERROR(need_shape("table_stamps", c.table_stamps, kU64Only, {s.requests, s.max_pages}));
  }
  if (p.score.alibi_slopes.present())
    TAMIS_RETURN_IF_ERROR(need_shape("alibi_slopes", p.score.alibi_slopes, kF32Only, {s.q_heads}));
  if (s.index_only) return {};
  if (p.gradients.d_out.present()) {
    const DType wanted[] = {DType::kF32, p.query.q.dtype};
    TAMIS_RETURN_IF_ERROR(
        need_shape("d_out", p.gradients.d_out, wanted, {s.total_q, s.q_heads, s.v_head_dim}));
  }
  if (p.gradients.d_lse.present())
    TAMIS_RETURN_IF_ERROR(need_shape("d_lse", p.gradients.d_lse, kF32Only, {s.total_q, s.q_heads}));
  return {};
}

Status check_candidates(const CandidateView& c) {
  switch (c.form) {
    case CandidateForm::kCsr:
      if (c.count.present())
        return invalid("cand_count", "belongs to the fixed-width form, cand_indptr is CSR");
      TAMIS_RETURN_IF_ERROR(need_tensor("cand_indptr", c.indptr, kI32OrI64, 1));
      return need_tensor("cand_indices", c.indices, kI32Only, 1);
    case CandidateForm::kFixedWidth:
      TAMIS_RETURN_IF_ERROR(need_tensor("cand_indices", c.indices, kI32Only, 2));
      if (c.count.present()) return need_shape("cand_count", c.count, kI32Only, {c.indices.shape[0]});
      return {};
    case CandidateForm::kNone:
    case CandidateForm::kAll:
      break;
  }
  return {};
}

}  // namespace

Result<Shape> describe(const Problem& problem) {
  Shape s{};
  s.index_heads = problem.candidates.index_heads;
  TAMIS_RETURN_IF_ERROR(check_options(problem));
  TAMIS_RETURN_IF_ERROR(problem.index_only ? read_index_only(problem, &s) : read_tensors(problem, &s));
  s.group = s.q_heads / s.kv_heads;
  s.scale = problem.score.scale.value_or(1 / std::sqrt(static_cast<double>(s.head_dim)));
  TAMIS_RETURN_IF_ERROR(check_requests(problem, &s));
  TAMIS_RETURN_IF_ERROR(check_extras(problem, s));
  TAMIS_RETURN_IF_ERROR(check_candidates(problem.candidates));
  return s;
}

KvStrides kv_strides(const TensorView& kv, Layout layout) {
  const bool paged = kv.rank == 4, hnd = layout == Layout::kHND;
  const int first = paged ? 1 : 0;
  return {.page = paged ? kv.stride[0] : 0,
          .token = kv.stride[first + (hnd ? 1 : 0)],
          .head = kv.stride[first + (hnd ? 0 : 1)],
          .dim = kv.stride[kv.rank - 1]};
}

}  // namespace tamis
