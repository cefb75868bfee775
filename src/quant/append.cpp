// New tokens into a quantized cache: everything is checked first, then written, so a refusal leaves the cache
// as it was.
#include <algorithm>
#include <cmath>

#include "core/codes.h"
#include "core/tensor_checks.h"
#include "quant/groups.h"
#include "tamis/quant.h"

namespace tamis {
namespace {

TensorView read_only(const MutableTensorView& t) {
  return {.data = t.data, .dtype = t.dtype, .rank = t.rank, .shape = t.shape, .stride = t.stride};
}

// A call after its shapes have been checked.
struct Write {
  const QuantizedCache& cache;
  const TensorView& rows;
  const TensorView& slots;
  KvExtents extents;
  KvStrides at;
  ScaleStrides scale_at;
  TensorView scale;  // of the cache, or the token scales that are to be written

  int64_t slot(int64_t i) const {
    return slots.dtype == DType::kI64 ? slots.at<int64_t>({i}) : slots.at<int32_t>({i});
  }
  float value(int64_t i, int64_t head, int64_t d) const {
    return load_float(rows, i * rows.stride[0] + head * rows.stride[1] + d * rows.stride[2]);
  }
  int64_t page(int64_t slot) const { return extents.paged ? slot / extents.tokens : 0; }
  int64_t token(int64_t slot) const { return extents.paged ? slot % extents.tokens : slot; }
  int64_t scale_of(int64_t slot, int64_t head, int64_t d) const {
    return page(slot) * scale_at.page + token(slot) * scale_at.token + head * scale_at.head +
           d * scale_at.dim;
  }
};

Status check_shapes(const QuantizedCache& c, const TensorView& codes, const TensorView& rows,
                    const TensorView& slots) {
  if (c.quantization.format == Format::kPlain)
    return invalid(c.name, "is a plain cache: its rows are copied, not quantized");
  TAMIS_RETURN_IF_ERROR(check_kv_view(c.name, codes, c.quantization.format, c.quantization.kind));
  const DType wanted = with_codes(c.quantization.format, [](auto k) { return decltype(k)::kDType; });
  if (codes.dtype != wanted)
    return invalid(c.name, "dtype ", dtype_name(codes.dtype), " is not one of ", dtype_name(wanted));
  const KvExtents e = extents_of(codes, c.layout, c.quantization.format == Format::kInt4);
  if (!rows.present()) return invalid("rows", "tensor is missing");
  if (!is_plain_float(rows.dtype))
    return invalid("rows", "dtype ", dtype_name(rows.dtype), " is not one of F32 F16 BF16");
  if (rows.rank != 3 || rows.shape[0] < 0 || rows.shape[1] != e.heads || rows.shape[2] != e.dim)
    return invalid("rows", "shape is not [n,", e.heads, ",", e.dim, "]");
  TAMIS_RETURN_IF_ERROR(need_memory("rows", rows));
  if (!slots.present()) return invalid("slots", "tensor is missing");
  if (slots.dtype != DType::kI32 && slots.dtype != DType::kI64)
    return invalid("slots", "dtype ", dtype_name(slots.dtype), " is not one of I32 I64");
  if (slots.rank != 1 || slots.shape[0] != rows.shape[0])
    return invalid("slots", "shape is not [", rows.shape[0], "]");
  TAMIS_RETURN_IF_ERROR(need_memory("slots", slots));
  if (c.quantization.kind == ScaleKind::kToken) {
    if (!c.token_scale.present()) return invalid("token_scale", "tensor is missing, a new token has its own");
    return check_scale_view(c.name, read_only(c.token_scale), ScaleKind::kToken, e);
  }
  if (c.token_scale.present()) return invalid("token_scale", "belongs to scales per token");
  return check_scale_view(c.name, c.quantization.scale, c.quantization.kind, e);
}

Status check_row(const Write& w, int64_t i, int64_t slot) {
  const bool own_scale = w.cache.quantization.kind == ScaleKind::kToken;
  for (int64_t head = 0; head < w.extents.heads; ++head)
    for (int64_t d = 0; d < w.extents.dim; ++d) {
      const float x = w.value(i, head, d);
      if (!std::isfinite(x))
        return invalid("rows", x, " in row ", i, ", head ", head, ", dimension ", d, " is not finite");
      if (own_scale) continue;
      const float scale = static_cast<const float*>(w.scale.data)[w.scale_of(slot, head, d)];
      if (!(std::isfinite(scale) && scale > 0))
        return invalid(text(w.cache.name, "_scale").c_str(), scale, " of slot ", slot, ", head ", head,
                       ", dimension ", d, " is not finite and above 0");
    }
  return {};
}

Status check_contents(const Write& w) {
  for (int64_t i = 0; i < w.rows.shape[0]; ++i) {
    const int64_t slot = w.slot(i);
    if (slot == -1) continue;
    if (slot < 0 || slot >= w.extents.slots())
      return {Code::kInvalidArgument,
              text("slots: ", slot, " of row ", i, " is outside [0, ", w.extents.slots(), ")"),
              {.row = i, .value = slot, .limit = w.extents.slots()}};
    TAMIS_RETURN_IF_ERROR(check_row(w, i, slot));
  }
  return {};
}

template <class Codes>
float own_scale(const Write& w, int64_t i, int64_t head) {
  float largest = 0;
  for (int64_t d = 0; d < w.extents.dim; ++d) largest = std::max(largest, std::fabs(w.value(i, head, d)));
  return scale_for<Codes>(largest);
}

template <class Codes>
int64_t write_row(const Write& w, int64_t i, int64_t slot) {
  const bool packed = w.cache.quantization.format == Format::kInt4;
  int64_t saturated = 0;
  for (int64_t head = 0; head < w.extents.heads; ++head) {
    if (w.cache.quantization.kind == ScaleKind::kToken)
      static_cast<float*>(w.cache.token_scale.data)[w.scale_of(slot, head, 0)] = own_scale<Codes>(w, i, head);
    auto* row = static_cast<uint8_t*>(w.cache.codes.data) + w.page(slot) * w.at.page +
                w.token(slot) * w.at.token + head * w.at.head;
    for (int64_t d = 0; d < w.extents.dim; ++d) {
      const float x =
          w.value(i, head, d) / static_cast<const float*>(w.scale.data)[w.scale_of(slot, head, d)];
      saturated += Codes::saturates(x);
      const uint8_t code = Codes::encode(x);
      uint8_t& byte = row[(packed ? d / 2 : d) * w.at.dim];
      if (!packed)
        byte = code;
      else
        byte = d % 2 == 0 ? code : pack_nibbles(byte, code);  // the second follows: the head size is even
    }
  }
  return saturated;
}

}  // namespace

Result<AppendCounts> append_rows(const QuantizedCache& cache, const TensorView& rows,
                                 const TensorView& slots) {
  return guarded([&]() -> Result<AppendCounts> {
    const TensorView codes = read_only(cache.codes);
    TAMIS_RETURN_IF_ERROR(check_shapes(cache, codes, rows, slots));
    const ScaleKind kind = cache.quantization.kind;
    const TensorView scale =
        kind == ScaleKind::kToken ? read_only(cache.token_scale) : cache.quantization.scale;
    const Write w{.cache = cache,
                  .rows = rows,
                  .slots = slots,
                  .extents = extents_of(codes, cache.layout, cache.quantization.format == Format::kInt4),
                  .at = kv_strides(codes, cache.layout),
                  .scale_at = scale_strides(kind, scale, cache.layout),
                  .scale = scale};
    TAMIS_RETURN_IF_ERROR(check_contents(w));
    AppendCounts counts;
    for (int64_t i = 0; i < rows.shape[0]; ++i) {
      const int64_t slot = w.slot(i);
      ++(slot == -1 ? counts.skipped : counts.rows);
      if (slot == -1) continue;
      counts.saturated += with_codes(cache.quantization.format,
                                     [&]<class Codes>(Codes) { return write_row<Codes>(w, i, slot); });
    }
    return counts;
  });
}

}  // namespace tamis
