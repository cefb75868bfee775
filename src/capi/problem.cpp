#include "capi/problem.h"

#include "capi/guard.h"
#include "capi/numbers.h"
#include "capi/structs.h"

namespace tamis::capi {
namespace {

struct DTypeNumber {
  int32_t number;
  DType dtype;
};
constexpr DTypeNumber kDTypes[] = {
    {TAMIS_F64, DType::kF64},   {TAMIS_F32, DType::kF32},        {TAMIS_F16, DType::kF16},
    {TAMIS_BF16, DType::kBF16}, {TAMIS_F8_E4M3, DType::kF8E4M3}, {TAMIS_F8_E5M2, DType::kF8E5M2},
    {TAMIS_I64, DType::kI64},   {TAMIS_I32, DType::kI32},        {TAMIS_I16, DType::kI16},
    {TAMIS_I8, DType::kI8},     {TAMIS_U64, DType::kU64},        {TAMIS_U32, DType::kU32},
    {TAMIS_U16, DType::kU16},   {TAMIS_U8, DType::kU8},          {TAMIS_BOOL, DType::kBool},
};
static_assert(TAMIS_MAX_RANK == kMaxRank);

// Negative extents are describe()'s to refuse; no array is read before that.
bool has_elements(const tamis_tensor& t) {
  for (int axis = 0; axis < t.rank; ++axis)
    if (t.shape[axis] <= 0) return false;
  return true;
}

template <class View>
Status read_view(const char* name, const tamis_tensor& from, bool read, View* to) {
  tamis_tensor t{};
  TAMIS_RETURN_IF_ERROR(read_struct(name, &from, &t));
  const DTypeNumber* dtype = nullptr;
  for (const DTypeNumber& known : kDTypes)
    if (known.number == t.dtype) dtype = &known;
  if (dtype == nullptr) return invalid(name, "dtype ", t.dtype, " is no tamis_dtype");
  if (t.rank < 0 || t.rank > kMaxRank)
    return invalid(name, "rank ", t.rank, " is outside [0, ", kMaxRank, "]");
  if (read && t.data == nullptr && has_elements(t)) return invalid(name, "data is NULL");
  const int bytes = dtype_bytes(dtype->dtype);
  if (read && reinterpret_cast<uintptr_t>(t.data) % bytes != 0)
    return invalid(name, "data does not start on a multiple of ", bytes, " bytes");
  to->data = t.data;
  to->dtype = dtype->dtype;
  to->rank = t.rank;
  for (int axis = 0; axis < t.rank; ++axis) {
    to->shape[axis] = t.shape[axis];
    to->stride[axis] = t.stride[axis];
  }
  return {};
}

Status read_quantization(const char* format, const char* kind, const tamis_quantization& from,
                         Quantization* to) {
  TAMIS_RETURN_IF_ERROR(read_enum(format, from.format, Format::kInt4, &to->format));
  return read_enum(kind, from.kind, ScaleKind::kToken, &to->kind);
}

Status read_candidates(const tamis_candidates& from, CandidateView* to) {
  TAMIS_RETURN_IF_ERROR(read_enum("form", from.form, CandidateForm::kAll, &to->form));
  TAMIS_RETURN_IF_ERROR(read_enum("duplicates", from.duplicates, OnDuplicate::kReject, &to->duplicates));
  TAMIS_RETURN_IF_ERROR(read_enum("invalid", from.invalid, OnInvalid::kDrop, &to->invalid));
  TAMIS_RETURN_IF_ERROR(read_enum("semantics", from.semantics, Semantics::kMultiset, &to->semantics));
  to->unit = from.unit;
  to->query_block = from.query_block;
  to->index_heads = from.index_heads;
  return {};
}

Status read_score(const tamis_score& from, ScoreRule* to) {
  bool has_scale = false;
  TAMIS_RETURN_IF_ERROR(check_reserved("score", from.reserved));
  TAMIS_RETURN_IF_ERROR(read_flag("has_scale", from.has_scale, &has_scale));
  if (has_scale) to->scale = from.scale;
  to->softcap = from.softcap;
  return {};
}

Status read_index_only(const tamis_index_only* from, IndexOnly* to) {
  tamis_index_only only{};
  TAMIS_RETURN_IF_ERROR(read_struct("index_only", from, &only));
  TAMIS_RETURN_IF_ERROR(check_reserved("index_only", only.reserved));
  *to = {.q_heads = only.q_heads,
         .kv_heads = only.kv_heads,
         .head_dim = only.head_dim,
         .v_head_dim = only.v_head_dim,
         .page_size = only.page_size,
         .num_pages = only.num_pages,
         .kv_bits = only.kv_bits};
  return {};
}

}  // namespace

Status read_tensor(const char* name, const tamis_tensor& from, bool read, MutableTensorView* to) {
  return read_view(name, from, read, to);
}
Status read_tensor(const char* name, const tamis_tensor& from, bool read, TensorView* to) {
  return read_view(name, from, read, to);
}

Status read_problem(const tamis_problem* from, Reads reads, Problem* to) {
  tamis_problem c = write_options({});
  TAMIS_RETURN_IF_ERROR(read_struct("problem", from, &c));
  Status status;
  for_each_tensor(c, *to, [&](const char* name, const tamis_tensor* tensor, TensorView& view, Reads needs) {
    if (status.ok() && tensor != nullptr) status = read_view(name, *tensor, reads >= needs, &view);
  });
  TAMIS_RETURN_IF_ERROR(std::move(status));
  TAMIS_RETURN_IF_ERROR(check_reserved("cache", c.cache.reserved));
  TAMIS_RETURN_IF_ERROR(read_enum("kv_layout", c.cache.layout, Layout::kHND, &to->cache.layout));
  TAMIS_RETURN_IF_ERROR(read_quantization("k_format", "k_scale_kind", c.cache.k_quant, &to->cache.k_quant));
  TAMIS_RETURN_IF_ERROR(read_quantization("v_format", "v_scale_kind", c.cache.v_quant, &to->cache.v_quant));
  TAMIS_RETURN_IF_ERROR(read_candidates(c.candidates, &to->candidates));
  TAMIS_RETURN_IF_ERROR(check_reserved("mask", c.mask.reserved));
  TAMIS_RETURN_IF_ERROR(read_flag("causal", c.mask.causal, &to->mask.causal));
  to->mask.window = c.mask.window;
  to->mask.sink = c.mask.sink;
  TAMIS_RETURN_IF_ERROR(read_score(c.score, &to->score));
  to->dropout = {.p = c.dropout.p, .seed = c.dropout.seed};
  return c.index_only ? read_index_only(c.index_only, &to->index_only.emplace()) : Status();
}

tamis_problem write_options(const Problem& from) {
  const CandidateView& candidates = from.candidates;
  const auto quantization = [](const Quantization& q) {
    return tamis_quantization{static_cast<int32_t>(q.format), static_cast<int32_t>(q.kind), nullptr};
  };
  tamis_problem to{};
  to.struct_size = sizeof to;
  to.cache.layout = static_cast<int32_t>(from.cache.layout);
  to.cache.k_quant = quantization(from.cache.k_quant);
  to.cache.v_quant = quantization(from.cache.v_quant);
  to.candidates.form = static_cast<int32_t>(candidates.form);
  to.candidates.duplicates = static_cast<int32_t>(candidates.duplicates);
  to.candidates.invalid = static_cast<int32_t>(candidates.invalid);
  to.candidates.semantics = static_cast<int32_t>(candidates.semantics);
  to.candidates.unit = candidates.unit;
  to.candidates.query_block = candidates.query_block;
  to.candidates.index_heads = candidates.index_heads;
  to.mask.causal = from.mask.causal;
  to.mask.window = from.mask.window;
  to.mask.sink = from.mask.sink;
  to.score.scale = from.score.scale.value_or(0);
  to.score.has_scale = from.score.scale.has_value();
  to.score.softcap = from.score.softcap;
  to.dropout = {from.dropout.p, from.dropout.seed};
  return to;
}

tamis_tensor write_tensor(const TensorView& from) {
  tamis_tensor to{};
  to.struct_size = sizeof to;
  to.data = const_cast<void*>(from.data);  // the interface only reads inputs
  for (const DTypeNumber& known : kDTypes)
    if (known.dtype == from.dtype) to.dtype = known.number;
  to.rank = from.rank;
  for (int axis = 0; axis < from.rank; ++axis) {
    to.shape[axis] = from.shape[axis];
    to.stride[axis] = from.stride[axis];
  }
  return to;
}

tamis_index_only write_index_only(const IndexOnly& from) {
  tamis_index_only to{};
  to.struct_size = sizeof to;
  to.q_heads = from.q_heads;
  to.kv_heads = from.kv_heads;
  to.head_dim = from.head_dim;
  to.v_head_dim = from.v_head_dim;
  to.page_size = from.page_size;
  to.num_pages = from.num_pages;
  to.kv_bits = from.kv_bits;
  return to;
}

}  // namespace tamis::capi

extern "C" {

void tamis_problem_init_sized(tamis_problem* problem, uint64_t size) {
  tamis::capi::init_struct(tamis::capi::write_options({}), problem, size);
}

int32_t tamis_describe(const tamis_problem* problem, tamis_shape* shape, tamis_error* error) {
  return tamis::capi::guarded(error, [&]() -> tamis::Status {
    using namespace tamis;
    Problem p;
    TAMIS_RETURN_IF_ERROR(capi::read_problem(problem, capi::Reads::kShapes, &p));
    TAMIS_RETURN_IF_ERROR(capi::check_struct("shape", shape));
    const Result<Shape> s = describe(p);
    if (!s.ok()) return s.status();
    capi::write_struct<tamis_shape>({.struct_size = sizeof(tamis_shape),
                                     .requests = s->requests,
                                     .total_q = s->total_q,
                                     .q_heads = s->q_heads,
                                     .kv_heads = s->kv_heads,
                                     .index_heads = s->index_heads,
                                     .group = s->group,
                                     .head_dim = s->head_dim,
                                     .v_head_dim = s->v_head_dim,
                                     .page_size = s->page_size,
                                     .pages = s->pages,
                                     .max_pages = s->max_pages,
                                     .kv_rows = s->kv_rows,
                                     .scale = s->scale,
                                     .k_bits = s->k_bits,
                                     .v_bits = s->v_bits,
                                     .index_only = s->index_only,
                                     .reserved = 0},
                                    shape);
    return {};
  });
}

}  // extern "C"
