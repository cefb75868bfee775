// The codes of a quantized format behind one vocabulary: decode(code) * scale is the value, and encode is
// applied to value / scale. int4 codes are single here; packing is the storage's business.
#pragma once

#include <utility>

#include "core/float_formats.h"
#include "core/hd.h"
#include "tamis/cache.h"

namespace tamis {

struct Int8Codes {
  static constexpr DType kDType = DType::kI8;
  static constexpr float kLargest = 127.f;  // of both signs
  static TAMIS_HD float decode(uint8_t code) { return static_cast<int8_t>(code); }
  static TAMIS_HD uint8_t encode(float x) { return static_cast<uint8_t>(float_to_int8(x)); }
  static TAMIS_HD bool saturates(float x) { return int8_saturates(x); }
};

struct Int4Codes {
  static constexpr DType kDType = DType::kU8;
  static constexpr float kLargest = 7.f;
  static TAMIS_HD float decode(uint8_t code) { return static_cast<float>(nibble_of(code, 0)); }
  static TAMIS_HD uint8_t encode(float x) { return static_cast<uint8_t>(float_to_int4(x) & 15); }
  static TAMIS_HD bool saturates(float x) { return int4_saturates(x); }
};

struct E4M3Codes {
  static constexpr DType kDType = DType::kF8E4M3;
  static constexpr float kLargest = kLargestE4M3;
  static TAMIS_HD float decode(uint8_t code) { return e4m3_to_float(code); }
  static TAMIS_HD uint8_t encode(float x) { return float_to_e4m3(x); }
  static TAMIS_HD bool saturates(float x) { return e4m3_saturates(x); }
};

struct E5M2Codes {
  static constexpr DType kDType = DType::kF8E5M2;
  static constexpr float kLargest = kLargestE5M2;
  static TAMIS_HD float decode(uint8_t code) { return e5m2_to_float(code); }
  static TAMIS_HD uint8_t encode(float x) { return float_to_e5m2(x); }
  static TAMIS_HD bool saturates(float x) { return e5m2_saturates(x); }
};

// Calls f with the codes of a format that is not kPlain.
template <class F>
auto with_codes(Format format, const F& f) {
  switch (format) {
    case Format::kInt8:
      return f(Int8Codes{});
    case Format::kInt4:
      return f(Int4Codes{});
    case Format::kFp8E5M2:
      return f(E5M2Codes{});
    case Format::kFp8E4M3:
    case Format::kPlain:
      break;
  }
  return f(E4M3Codes{});
}

// The scale that takes `largest`, the largest magnitude of a group, to the largest code: a group of zeros
// gets 1. Never a subnormal, which a device may flush to zero, and never so large that the largest code times
// the scale would overflow.
template <class Codes>
TAMIS_HD inline float scale_for(float largest) {
  if (largest == 0.f) return 1.f;
  const float scale = largest / Codes::kLargest;
  if (scale < 0x1p-126f) return 0x1p-126f;
  return Codes::kLargest * scale <= 0x1.fffffep127f ? scale : bits_float(float_bits(scale) - 1);
}

}  // namespace tamis
