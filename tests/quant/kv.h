// Reading k, v, codes and scales element by element, written out once more: what the library's own walk over
// them is compared with.
#pragma once

#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "support/problems.h"
#include "tamis/quant.h"

namespace tamis::testing {

inline constexpr Format kFormats[] = {Format::kInt8, Format::kFp8E4M3, Format::kFp8E5M2, Format::kInt4};
inline constexpr ScaleKind kKinds[] = {ScaleKind::kTensor,  ScaleKind::kHead,        ScaleKind::kPage,
                                       ScaleKind::kChannel, ScaleKind::kPageChannel, ScaleKind::kToken};

inline bool per_page(ScaleKind kind) { return kind == ScaleKind::kPage || kind == ScaleKind::kPageChannel; }

inline double largest_code(Format format) {
  return format == Format::kInt8      ? 127
         : format == Format::kInt4    ? 7
         : format == Format::kFp8E4M3 ? 448
                                      : 57344;
}

inline std::string label(Format format, ScaleKind kind) {
  return "format " + std::to_string(static_cast<int>(format)) + ", kind " +
         std::to_string(static_cast<int>(kind));
}

struct Place {
  int64_t page, token, head, dim;  // page 0 of a contiguous cache
};

struct Extents {
  int64_t pages, tokens, heads, dim;
};

inline Extents extents(const TensorView& x, Layout layout, int64_t pack = 1) {
  const bool paged = x.rank == 4, hnd = layout == Layout::kHND;
  const int first = paged;
  return {paged ? x.shape[0] : 1, x.shape[first + hnd], x.shape[first + !hnd], x.shape[x.rank - 1] * pack};
}

inline void for_each_place(const Extents& e, const std::function<void(const Place&)>& f) {
  for (int64_t page = 0; page < e.pages; ++page)
    for (int64_t token = 0; token < e.tokens; ++token)
      for (int64_t head = 0; head < e.heads; ++head)
        for (int64_t dim = 0; dim < e.dim; ++dim) f({page, token, head, dim});
}

// The element of a view, which may hold floats or bytes.
inline int64_t offset_of(const TensorView& x, Layout layout, const Place& at, int64_t pack = 1) {
  const KvStrides s = kv_strides(x, layout);
  return at.page * s.page + at.token * s.token + at.head * s.head + at.dim / pack * s.dim;
}

inline double plain_value(const TensorView& x, Layout layout, const Place& at) {
  const int64_t offset = offset_of(x, layout, at);
  if (x.dtype == DType::kF32) return static_cast<const float*>(x.data)[offset];
  const uint16_t bits = static_cast<const uint16_t*>(x.data)[offset];
  if (x.dtype == DType::kBF16) return std::bit_cast<float>(uint32_t{bits} << 16);
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  if (exponent == 31) return mantissa ? kNaN : kInf;
  const double value = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return bits & 0x8000 ? -value : value;
}

// What a code means, by the definition of its format.
inline double code_value(Format format, const TensorView& codes, Layout layout, const Place& at) {
  const auto* bytes = static_cast<const uint8_t*>(codes.data);
  if (format == Format::kInt4) {
    const int byte = bytes[offset_of(codes, layout, at, 2)];
    const int nibble = at.dim % 2 ? byte / 16 : byte % 16;
    return nibble < 8 ? nibble : nibble - 16;
  }
  const int byte = bytes[offset_of(codes, layout, at)];
  if (format == Format::kInt8) return byte < 128 ? byte : byte - 256;
  const int mantissa_bits = format == Format::kFp8E4M3 ? 3 : 2, bias = format == Format::kFp8E4M3 ? 7 : 15;
  const int exponent = (byte & 127) >> mantissa_bits, mantissa = byte & ((1 << mantissa_bits) - 1);
  const double size = exponent == 0
                          ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                          : std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
  return byte & 128 ? -size : size;
}

// Half the distance of neighbouring codes about a code: how far a value may be from its code.
inline double half_step(Format format, double code) {
  if (format == Format::kInt8 || format == Format::kInt4) return 0.5;
  const int mantissa_bits = format == Format::kFp8E4M3 ? 3 : 2;
  const int least = format == Format::kFp8E4M3 ? -6 : -14;
  const int exponent = code == 0 ? least : std::max(least, std::ilogb(code));
  return std::ldexp(0.5, exponent - mantissa_bits);
}

// The scale of an element.
inline float scale_value(const Quantization& q, Layout layout, const Place& at) {
  const TensorView& s = q.scale;
  const bool hnd = layout == Layout::kHND;
  const int64_t a = hnd ? at.head : at.token, b = hnd ? at.token : at.head;
  switch (q.kind) {
    case ScaleKind::kTensor:
      return s.at<float>({});
    case ScaleKind::kHead:
      return s.at<float>({at.head});
    case ScaleKind::kPage:
      return s.at<float>({at.page, at.head});
    case ScaleKind::kChannel:
      return s.at<float>({at.head, at.dim});
    case ScaleKind::kPageChannel:
      return s.at<float>({at.page, at.head, at.dim});
    case ScaleKind::kToken:
      break;
  }
  return s.rank == 3 ? s.at<float>({at.page, a, b}) : s.at<float>({a, b});
}

// Which elements share a scale.
using Group = std::tuple<int64_t, int64_t, int64_t, int64_t>;
inline Group group_of(ScaleKind kind, const Place& at) {
  switch (kind) {
    case ScaleKind::kTensor:
      return {-1, -1, -1, -1};
    case ScaleKind::kHead:
      return {-1, -1, at.head, -1};
    case ScaleKind::kPage:
      return {at.page, -1, at.head, -1};
    case ScaleKind::kChannel:
      return {-1, -1, at.head, at.dim};
    case ScaleKind::kPageChannel:
      return {at.page, -1, at.head, at.dim};
    case ScaleKind::kToken:
      break;
  }
  return {at.page, at.token, at.head, -1};
}

}  // namespace tamis::testing
