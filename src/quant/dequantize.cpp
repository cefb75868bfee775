// Codes and scales back to f32, and int4 packing.
#include "core/codes.h"
#include "quant/groups.h"
#include "tamis/quant.h"

namespace tamis {
namespace {

struct Places {
  KvExtents extents;
  KvStrides at;  // of what is read
};

// Calls value(offset of the slot and head, page, token, head, dim) for every element, in the order of `out`.
template <class Value>
void fill(const Places& from, const Value& value, std::vector<float>* out) {
  const KvExtents& e = from.extents;
  const int64_t rows = e.hnd ? e.heads : e.tokens, columns = e.hnd ? e.tokens : e.heads;
  for (int64_t page = 0; page < e.pages; ++page)
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t column = 0; column < columns; ++column) {
        const int64_t token = e.hnd ? column : row, head = e.hnd ? row : column;
        const int64_t at = page * from.at.page + token * from.at.token + head * from.at.head;
        for (int64_t d = 0; d < e.dim; ++d) out->push_back(value(at, page, token, head, d));
      }
}

Result<Dequantized> dequantize_unguarded(const TensorView& codes, Layout layout, const Quantization& q,
                                         const char* name) {
  TAMIS_RETURN_IF_ERROR(check_kv_view(name, codes, q.format, q.kind));
  const bool packed = q.format == Format::kInt4;
  const Places from{extents_of(codes, layout, packed), kv_strides(codes, layout)};
  Dequantized result;
  result.values.reserve(from.extents.slots() * from.extents.heads * from.extents.dim);
  if (q.format == Format::kPlain) {
    if (!is_plain_float(codes.dtype))
      return invalid(name, "dtype ", dtype_name(codes.dtype), " is not one of F32 F16 BF16");
    fill(
        from,
        [&](int64_t at, int64_t, int64_t, int64_t, int64_t d) {
          return load_float(codes, at + d * from.at.dim);
        },
        &result.values);
  } else {
    TAMIS_RETURN_IF_ERROR(check_scale_view(name, q.scale, q.kind, from.extents));
    const ScaleStrides scale_at = scale_strides(q.kind, q.scale, layout);
    const auto* bytes = static_cast<const uint8_t*>(codes.data);
    const auto* scales = static_cast<const float*>(q.scale.data);
    TAMIS_RETURN_IF_ERROR(with_codes(q.format, [&]<class Codes>(Codes) -> Status {
      if (codes.dtype != Codes::kDType)
        return invalid(name, "dtype ", dtype_name(codes.dtype), " is not one of ", dtype_name(Codes::kDType));
      fill(
          from,
          [&](int64_t at, int64_t page, int64_t token, int64_t head, int64_t d) {
            const uint8_t byte = bytes[at + (packed ? d / 2 : d) * from.at.dim];
            const uint8_t code = packed ? static_cast<uint8_t>(nibble_of(byte, d % 2)) : byte;
            return Codes::decode(code) * scales[page * scale_at.page + token * scale_at.token +
                                                head * scale_at.head + d * scale_at.dim];
          },
          &result.values);
      return {};
    }));
  }
  result.view = dense_like(codes, from.extents.dim, result.values.data(), DType::kF32);
  return result;
}

}  // namespace

Result<Dequantized> dequantize(const TensorView& codes, Layout layout, const Quantization& quantization,
                               const char* name) {
  return guarded([&] { return dequantize_unguarded(codes, layout, quantization, name); });
}

Result<DequantizedProblem> dequantized(const Problem& problem) {
  const CacheView& cache = problem.cache;
  Result<Dequantized> k = dequantize(cache.k, cache.layout, cache.k_quant, "k");
  if (!k.ok()) return k.status();
  Result<Dequantized> v = dequantize(cache.v, cache.layout, cache.v_quant, "v");
  if (!v.ok()) return v.status();
  DequantizedProblem result{.problem = problem, .k = std::move(*k), .v = std::move(*v)};
  result.problem.cache.k = result.k.view;
  result.problem.cache.v = result.v.view;
  result.problem.cache.k_quant = result.problem.cache.v_quant = {};
  return result;
}

Status pack_int4(std::span<const int8_t> codes, std::span<uint8_t> packed) {
  if (codes.size() % 2 != 0) return invalid("codes", codes.size(), " codes do not fill whole bytes");
  if (packed.size() != codes.size() / 2)
    return invalid("packed", packed.size(), " bytes for ", codes.size(), " codes");
  for (size_t i = 0; i < codes.size(); ++i)
    if (codes[i] < -8 || codes[i] > 7)
      return {Code::kInvalidArgument,
              text("codes: ", int{codes[i]}, " at ", i, " is outside [-8, 7]"),
              {.value = codes[i], .limit = 8}};
  for (size_t i = 0; i < packed.size(); ++i) packed[i] = pack_nibbles(codes[2 * i], codes[2 * i + 1]);
  return {};
}

Status unpack_int4(std::span<const uint8_t> packed, std::span<int8_t> codes) {
  if (codes.size() / 2 != packed.size() || codes.size() % 2 != 0)
    return invalid("codes", codes.size(), " codes for ", packed.size(), " bytes");
  for (size_t i = 0; i < codes.size(); ++i)
    codes[i] = static_cast<int8_t>(nibble_of(packed[i / 2], static_cast<int64_t>(i % 2)));
  return {};
}

}  // namespace tamis
