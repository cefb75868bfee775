// Plain k or v to codes and scales.
#include <algorithm>
#include <cmath>

#include "core/codes.h"
#include "core/tensor_checks.h"
#include "quant/groups.h"
#include "tamis/quant.h"

namespace tamis {
namespace {

Status check_used(const TensorView& used, const KvExtents& e) {
  if (!used.present()) return {};
  if (used.dtype != DType::kU8) return invalid("used", "dtype ", dtype_name(used.dtype), " is not U8");
  const bool fits = e.paged ? used.rank == 2 && used.shape[0] == e.pages && used.shape[1] == e.tokens
                            : used.rank == 1 && used.shape[0] == e.tokens;
  if (!fits && e.paged) return invalid("used", "shape is not [", e.pages, ",", e.tokens, "]");
  if (!fits) return invalid("used", "shape is not [", e.tokens, "]");
  return need_memory("used", used);
}

// One k or v on its way: where its elements, its used slots and its scales are.
class Source {
 public:
  Source(const TensorView& x, ScaleKind kind, const QuantizeOptions& options, const TensorView& scale)
      : extents(extents_of(x, options.layout, false)),
        x_(x),
        used_(options.used),
        at_(kv_strides(x, options.layout)),
        scale_at_(scale_strides(kind, scale, options.layout)) {}

  bool used(int64_t page, int64_t token) const {
    if (!used_.present()) return true;
    return (extents.paged ? used_.at<uint8_t>({page, token}) : used_.at<uint8_t>({token})) != 0;
  }
  float value(int64_t page, int64_t token, int64_t head, int64_t dim) const {
    return load_float(x_, page * at_.page + token * at_.token + head * at_.head + dim * at_.dim);
  }
  int64_t scale_of(int64_t page, int64_t token, int64_t head, int64_t dim) const {
    return page * scale_at_.page + token * scale_at_.token + head * scale_at_.head + dim * scale_at_.dim;
  }

  // f(page, token) for every used slot, until it fails.
  template <class F>
  Status for_used(const F& f) const {
    for (int64_t page = 0; page < extents.pages; ++page)
      for (int64_t token = 0; token < extents.tokens; ++token)
        if (used(page, token)) TAMIS_RETURN_IF_ERROR(f(page, token));
    return {};
  }

  const KvExtents extents;

 private:
  const TensorView& x_;
  const TensorView& used_;
  const KvStrides at_;
  const ScaleStrides scale_at_;
};

// The largest magnitude of each group.
Status find_largest(const Source& source, const char* name, std::vector<float>* largest) {
  const KvExtents& e = source.extents;
  return source.for_used([&](int64_t page, int64_t token) -> Status {
    for (int64_t head = 0; head < e.heads; ++head)
      for (int64_t d = 0; d < e.dim; ++d) {
        const float x = source.value(page, token, head, d);
        if (!std::isfinite(x))
          return invalid(name, x, " in slot ", page * e.tokens + token, ", head ", head, ", dimension ", d,
                         " is not finite");
        float& top = (*largest)[source.scale_of(page, token, head, d)];
        top = std::max(top, std::fabs(x));
      }
    return {};
  });
}

template <class Codes>
void encode(const Source& source, bool packed, Layout layout, Quantized* q) {
  const KvExtents& e = source.extents;
  const KvStrides at = kv_strides(q->codes, layout);
  (void)source.for_used([&](int64_t page, int64_t token) -> Status {
    for (int64_t head = 0; head < e.heads; ++head) {
      uint8_t* row = q->code_bytes.data() + page * at.page + token * at.token + head * at.head;
      for (int64_t d = 0; d < e.dim; ++d) {
        const float x = source.value(page, token, head, d) / q->scales[source.scale_of(page, token, head, d)];
        q->saturated_codes += Codes::saturates(x);
        const uint8_t code = Codes::encode(x);
        if (!packed)
          row[d] = code;
        else
          row[d / 2] = static_cast<uint8_t>(row[d / 2] | code << (d % 2 * 4));  // from 0
      }
    }
    return {};
  });
}

Result<Quantized> quantize_unguarded(const TensorView& x, Format format, ScaleKind kind,
                                     const QuantizeOptions& options) {
  if (format == Format::kPlain) return invalid("format", "is plain: there is nothing to quantize");
  TAMIS_RETURN_IF_ERROR(check_kv_view(options.name, x, format, kind));
  if (!is_plain_float(x.dtype))
    return invalid(options.name, "dtype ", dtype_name(x.dtype), " is not one of F32 F16 BF16");
  const bool packed = format == Format::kInt4;
  if (packed && x.shape[x.rank - 1] % 2 != 0)
    return invalid(options.name, "head size ", x.shape[x.rank - 1], " is odd, int4 stores two codes a byte");
  const KvExtents e = extents_of(x, options.layout, false);
  TAMIS_RETURN_IF_ERROR(check_used(options.used, e));

  Quantized q;
  const TensorView scale = scale_view(kind, e, nullptr);
  q.scales.assign(scale.elements(), 0.f);
  const Source source(x, kind, options, scale);
  TAMIS_RETURN_IF_ERROR(find_largest(source, options.name, &q.scales));
  with_codes(format, [&]<class Codes>(Codes) {
    for (float& s : q.scales) s = scale_for<Codes>(s);
    q.codes = dense_like(x, x.shape[x.rank - 1] / (packed ? 2 : 1), nullptr, Codes::kDType);
    q.code_bytes.assign(q.codes.elements(), 0);
    encode<Codes>(source, packed, options.layout, &q);
  });
  q.codes.data = q.code_bytes.data();
  q.quantization = {.format = format, .kind = kind, .scale = scale_view(kind, e, q.scales.data())};
  return q;
}

// Marks the committed tokens of one request.
void mark(const Problem& p, const Shape& s, int64_t request, std::vector<uint8_t>* used) {
  const int64_t length = p.cache.kv_len.at<int32_t>({request});
  if (s.page_size == 0) {
    const int64_t first = p.cache.cu_kv.at<int32_t>({request});
    std::fill_n(used->begin() + first, length, uint8_t{1});
    return;
  }
  for (int64_t t = 0; t < length; t += s.page_size) {
    const int64_t page = p.cache.page_table.at<int32_t>({request, t / s.page_size});
    if (page < 0 || page >= s.pages) continue;
    std::fill_n(used->begin() + page * s.page_size, std::min(s.page_size, length - t), uint8_t{1});
  }
}

}  // namespace

Result<Quantized> quantize(const TensorView& x, Format format, ScaleKind kind,
                           const QuantizeOptions& options) {
  return guarded([&] { return quantize_unguarded(x, format, kind, options); });
}

Result<std::vector<uint8_t>> used_slots(const Problem& problem) {
  return guarded([&]() -> Result<std::vector<uint8_t>> {
    const Result<Shape> shape = describe(problem);
    if (!shape.ok()) return shape.status();
    if (shape->index_only) return invalid("k", "tensor is missing, an index-only problem has no values");
    TAMIS_RETURN_IF_ERROR(check_arrays(problem, *shape));
    const int64_t slots = shape->page_size > 0 ? shape->pages * shape->page_size : shape->kv_rows;
    std::vector<uint8_t> used(slots, 0);
    for (int64_t b = 0; b < shape->requests; ++b) mark(problem, *shape, b, &used);
    return used;
  });
}

}  // namespace tamis
