// The vector vocabulary of the CPU kernels: W floats at a time, W by instruction set. Built on the compiler's
// vector types; intrinsics only where those have no word for it. Every name lives in the namespace of its
// instruction set, so that no code made for one can be linked into another.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#ifndef TAMIS_ISA
#error "TAMIS_ISA names the namespace of the instruction set this file is compiled for"
#endif

#define TAMIS_INLINE [[gnu::always_inline]] inline

namespace tamis::cpu::TAMIS_ISA {

#if defined(__AVX512F__)
inline constexpr int W = 16;
#elif defined(__AVX2__)
inline constexpr int W = 8;
#else
inline constexpr int W = 4;
#endif

typedef float Vec __attribute__((vector_size(4 * W)));
typedef int32_t IntVec __attribute__((vector_size(4 * W)));
typedef uint32_t UintVec __attribute__((vector_size(4 * W)));
typedef uint8_t ByteVec __attribute__((vector_size(W)));
typedef uint16_t HalfVec __attribute__((vector_size(2 * W)));
typedef float Vec4 __attribute__((vector_size(16)));

// Element types as they lie in memory. Quantized ones are codes; their scale is applied in Scaled.
struct F32 {
  static constexpr int kBits = 32;
};
struct BF16 {
  static constexpr int kBits = 16;
};
struct F16 {
  static constexpr int kBits = 16;
};
struct Int8 {
  static constexpr int kBits = 8;
};
struct E4M3 {
  static constexpr int kBits = 8;
};
struct E5M2 {
  static constexpr int kBits = 8;
};
struct Int4 {  // two a byte, low nibble first, -8 .. 7
  static constexpr int kBits = 4;
};

TAMIS_INLINE Vec select(IntVec mask, Vec yes, Vec no);
TAMIS_INLINE IntVec lanes(uint32_t bits);

TAMIS_INLINE Vec splat(float x) { return x - Vec{}; }

TAMIS_INLINE Vec load(const float* p) {
  Vec v;
  memcpy(&v, p, sizeof v);
  return v;
}

TAMIS_INLINE void store(float* p, Vec v) { memcpy(p, &v, sizeof v); }

TAMIS_INLINE Vec widen(F32, const void* p) { return load(static_cast<const float*>(p)); }

// The compiler's own conversion goes by halves and shuffles; the instruction does it at once.
TAMIS_INLINE UintVec widen_bits(const void* p) {
#if defined(__AVX512F__)
  __m256i half;
  memcpy(&half, p, sizeof half);
  return reinterpret_cast<UintVec>(_mm512_maskz_cvtepu16_epi32(0xFFFF, half));
#elif defined(__AVX2__)
  __m128i half;
  memcpy(&half, p, sizeof half);
  return reinterpret_cast<UintVec>(_mm256_cvtepu16_epi32(half));
#else
  HalfVec half;
  memcpy(&half, p, sizeof half);
  return __builtin_convertvector(half, UintVec);
#endif
}

TAMIS_INLINE Vec widen(BF16, const void* p) { return reinterpret_cast<Vec>(widen_bits(p) << 16); }

// IEEE half precision from its bits, by one exact product, which also normalizes subnormals.
TAMIS_INLINE Vec half_value(UintVec bits) {
  const UintVec magnitude = bits & 0x7FFF;
  const UintVec finite = reinterpret_cast<UintVec>(reinterpret_cast<Vec>(magnitude << 13) * 0x1p112f);
  const UintVec top = (magnitude << 13) | 0x7F800000;
  const UintVec is_top = reinterpret_cast<UintVec>(magnitude >= 0x7C00);
  return reinterpret_cast<Vec>(((is_top & top) | (~is_top & finite)) | (bits >> 15 << 31));
}

TAMIS_INLINE Vec widen(F16, const void* p) {
#if defined(__AVX512F__)
  __m256i half;
  memcpy(&half, p, sizeof half);
  return reinterpret_cast<Vec>(_mm512_maskz_cvtph_ps(0xFFFF, half));
#elif defined(__AVX2__)
  __m128i half;
  memcpy(&half, p, sizeof half);
  return reinterpret_cast<Vec>(_mm256_cvtph_ps(half));
#else
  return half_value(widen_bits(p));
#endif
}

TAMIS_INLINE UintVec widen_bytes(const void* p) {
  ByteVec bytes;
  memcpy(&bytes, p, sizeof bytes);
#if defined(__AVX512F__)
  return reinterpret_cast<UintVec>(_mm512_maskz_cvtepu8_epi32(0xFFFF, reinterpret_cast<__m128i>(bytes)));
#elif defined(__AVX2__)
  __m128i low = _mm_setzero_si128();
  memcpy(&low, &bytes, sizeof bytes);
  return reinterpret_cast<UintVec>(_mm256_cvtepu8_epi32(low));
#else
  return __builtin_convertvector(bytes, UintVec);
#endif
}

TAMIS_INLINE Vec widen(Int8, const void* p) {
  const IntVec code = reinterpret_cast<IntVec>(widen_bytes(p));
  return __builtin_convertvector((code ^ 0x80) - 0x80, Vec);
}

// OCP 8-bit floats, E4M3 without infinities: one code and its negative are NaN.
TAMIS_INLINE Vec widen(E4M3, const void* p) {
  const UintVec bits = widen_bytes(p), magnitude = bits & 0x7F;
  const UintVec finite = reinterpret_cast<UintVec>(reinterpret_cast<Vec>(magnitude << 20) * 0x1p120f);
  const UintVec is_nan = reinterpret_cast<UintVec>(magnitude == 0x7F);
  return reinterpret_cast<Vec>((is_nan & 0x7FC00000) | (~is_nan & finite) | (bits >> 7 << 31));
}

// E5M2 is the upper half of an f16.
TAMIS_INLINE Vec widen(E5M2, const void* p) { return half_value(widen_bytes(p) << 8); }

TAMIS_INLINE Vec widen(Int4, const void* p) {
  uint64_t packed = 0;
  memcpy(&packed, p, W / 2);
  IntVec code;
#if defined(__AVX512F__)
  const uint64_t nibbles = 0x0F0F0F0F0F0F0F0F;
  const __m128i bytes = _mm_set_epi64x(static_cast<int64_t>(_pdep_u64(packed >> 32, nibbles)),
                                       static_cast<int64_t>(_pdep_u64(packed, nibbles)));
  code = reinterpret_cast<IntVec>(_mm512_maskz_cvtepu8_epi32(0xFFFF, bytes));
#else
  for (int i = 0; i < W; ++i) code[i] = static_cast<int32_t>(packed >> (4 * i) & 15);
#endif
  return __builtin_convertvector((code ^ 8) - 8, Vec);
}

// Element d of a row that lies without gaps, as an address: codes of four bits come in pairs.
template <class T>
TAMIS_INLINE const char* at(T, const char* row, int64_t d) {
  return row + d * T::kBits / 8;
}

// The first `count` < W elements, then zeros; reads nothing behind them.
template <class T>
TAMIS_INLINE Vec widen_some(T type, const void* p, int count) {
  alignas(64) char padded[4 * W] = {};
  memcpy(padded, p, static_cast<size_t>((count * T::kBits + 7) / 8));
  return widen(type, padded);
}

// What the products read: a row of elements, and for quantized ones the scale that turns codes into numbers.
struct Row {
  const char* data;
  const float* scale;
};

template <class T>
struct Plain {
  using Type = T;
  TAMIS_INLINE static Vec load(const Row& row, int64_t d) { return widen(T{}, at(T{}, row.data, d)); }
  TAMIS_INLINE static Vec load_some(const Row& row, int64_t d, int count) {
    return widen_some(T{}, at(T{}, row.data, d), count);
  }
};

// x = code * scale, in registers. One scale a row, or one for each element.
template <class T>
struct ScaledRow {
  using Type = T;
  TAMIS_INLINE static Vec load(const Row& row, int64_t d) {
    return widen(T{}, at(T{}, row.data, d)) * splat(*row.scale);
  }
  // Zeros stay zeros, whatever the scale.
  TAMIS_INLINE static Vec load_some(const Row& row, int64_t d, int count) {
    const Vec x = widen_some(T{}, at(T{}, row.data, d), count) * splat(*row.scale);
    return select(lanes((1u << count) - 1), x, Vec{});
  }
};
template <class T>
struct ScaledChannels {
  using Type = T;
  TAMIS_INLINE static Vec load(const Row& row, int64_t d) {
    return widen(T{}, at(T{}, row.data, d)) * tamis::cpu::TAMIS_ISA::load(row.scale + d);
  }
  TAMIS_INLINE static Vec load_some(const Row& row, int64_t d, int count) {
    return widen_some(T{}, at(T{}, row.data, d), count) * widen_some(F32{}, row.scale + d, count);
  }
};

TAMIS_INLINE Vec select(IntVec mask, Vec yes, Vec no) { return mask ? yes : no; }

TAMIS_INLINE Vec max(Vec a, Vec b) { return a > b ? a : b; }

// a * b + c, rounded once where the instruction set has it, always twice where not. Written out, and
// contraction is switched off for these files: the compiler would fuse one instance of a loop and not the
// next, and a row's bits would depend on how many rows stand beside it.
TAMIS_INLINE Vec madd(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

// Lane i of the result is lane which[i] of a, or lane which[i] - W of b.
TAMIS_INLINE UintVec shuffle(UintVec a, UintVec b, UintVec which) {
#if defined(__AVX512F__)
  return reinterpret_cast<UintVec>(_mm512_permutex2var_epi32(
      reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(which), reinterpret_cast<__m512i>(b)));
#elif defined(__clang__)
  UintVec out;
  for (int i = 0; i < W; ++i) out[i] = which[i] < W ? a[which[i]] : b[which[i] - W];
  return out;
#else
  return __builtin_shuffle(a, b, which);
#endif
}

// Halves joined until four lanes are left.
template <class Join>
TAMIS_INLINE Vec4 fold_with(Vec v, const Join& join) {
#if defined(__AVX512F__)
  typedef float Half __attribute__((vector_size(32)));
  const Half h = join(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7),
                      __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
  return join(__builtin_shufflevector(h, h, 0, 1, 2, 3), __builtin_shufflevector(h, h, 4, 5, 6, 7));
#elif defined(__AVX2__)
  return join(__builtin_shufflevector(v, v, 0, 1, 2, 3), __builtin_shufflevector(v, v, 4, 5, 6, 7));
#else
  (void)join;
  return v;
#endif
}

TAMIS_INLINE Vec4 fold(Vec v) {
  return fold_with(v, [](auto a, auto b) { return a + b; });
}

TAMIS_INLINE Vec4 fold_max(Vec v) {
  return fold_with(v, [](auto a, auto b) { return a > b ? a : b; });
}

// The sums of four vectors.
TAMIS_INLINE Vec4 sums(Vec a, Vec b, Vec c, Vec d) {
  const Vec4 x = fold(a), y = fold(b), z = fold(c), w = fold(d);
  const Vec4 xy = __builtin_shufflevector(x, y, 0, 4, 1, 5) + __builtin_shufflevector(x, y, 2, 6, 3, 7);
  const Vec4 zw = __builtin_shufflevector(z, w, 0, 4, 1, 5) + __builtin_shufflevector(z, w, 2, 6, 3, 7);
  return __builtin_shufflevector(xy, zw, 0, 1, 4, 5) + __builtin_shufflevector(xy, zw, 2, 3, 6, 7);
}

TAMIS_INLINE float sum(Vec v) {
  const Vec4 s = fold(v);
  return (s[0] + s[2]) + (s[1] + s[3]);
}

TAMIS_INLINE float max_of(Vec v) {
  const Vec4 m = fold_max(v);
  const float a = m[0] > m[2] ? m[0] : m[2], b = m[1] > m[3] ? m[1] : m[3];
  return a > b ? a : b;
}

// A square of 32-bit units across its diagonal, by exchanging halves of ever smaller squares.
TAMIS_INLINE void transpose_square(UintVec* x) {
#pragma GCC unroll 4
  for (int half = W / 2; half > 0; half /= 2) {
    UintVec low, high;  // lanes of the two outputs: from the first operand below W, from the second above
    for (int i = 0; i < W; ++i) {
      const bool upper = (i & half) != 0;
      low[i] = static_cast<uint32_t>(upper ? W + i - half : i);
      high[i] = static_cast<uint32_t>(upper ? W + i : i + half);
    }
#pragma GCC unroll 16
    for (int i = 0; i < W; ++i) {
      if ((i & half) != 0) continue;
      const UintVec a = x[i], b = x[i + half];
      x[i] = shuffle(a, b, low);
      x[i + half] = shuffle(a, b, high);
    }
  }
}

// Bits 0 .. W-1 as a lane mask.
TAMIS_INLINE IntVec lanes(uint32_t bits) {
  IntVec place;
  for (int i = 0; i < W; ++i) place[i] = 1 << i;
  return (place & static_cast<int32_t>(bits)) != 0;
}

// e^x for x <= 0, within 2 ulp; exactly 0 below -87.3, -inf included, and NaN for NaN.
// Range reduction by ln 2 in two parts (Cody and Waite), then the degree-6 polynomial of Cephes' expf.
TAMIS_INLINE Vec exp_negative(Vec x) {
  const Vec magic = splat(12582912.f);  // 1.5 * 2^23: adding it rounds to an integer
  const Vec clamped = x < splat(-88.f) ? splat(-88.f) : x;
  const Vec shifted = madd(clamped, splat(1.44269504088896341f), magic);
  const Vec n = shifted - magic;
  const Vec r = madd(n, splat(2.12194440e-4f), madd(n, splat(-0.693359375f), clamped));
  Vec p = splat(1.9875691500e-4f);
  p = madd(p, r, splat(1.3981999507e-3f));
  p = madd(p, r, splat(8.3334519073e-3f));
  p = madd(p, r, splat(4.1665795894e-2f));
  p = madd(p, r, splat(1.6666665459e-1f));
  p = madd(p, r, splat(5.0000001201e-1f));
  p = madd(p, r * r, r) + 1.f;
  const IntVec exponent = (reinterpret_cast<IntVec>(shifted) - 0x4B400000) << 23;
  const Vec value = reinterpret_cast<Vec>(reinterpret_cast<IntVec>(p) + exponent);
  return x < splat(-87.3f) ? Vec{} : x == x ? value : x;
}

// tanh within a few ulp: Cephes' odd polynomial near 0, 1 - 2 / (e^2|x| + 1) elsewhere.
TAMIS_INLINE Vec tanh(Vec x) {
  const Vec a = x < 0.f ? -x : x, e = exp_negative(a * -2.f);  // in (0, 1]
  const Vec far = (1.f - e) / (1.f + e);
  const Vec z = x * x;
  Vec p = splat(-5.70498872745e-3f);
  p = madd(p, z, splat(2.06390887954e-2f));
  p = madd(p, z, splat(-5.37397155531e-2f));
  p = madd(p, z, splat(1.33314422036e-1f));
  p = madd(p, z, splat(-3.33332819422e-1f));
  const Vec near = madd(p * z, x, x);
  return a < splat(0.625f) ? near : x < 0.f ? -far : far;
}

// The bits of `word` at the places set in `mask`, packed to the low end.
TAMIS_INLINE uint64_t pack_bits(uint64_t word, uint64_t mask) {
#if defined(__BMI2__)
  return _pext_u64(word, mask);
#else
  uint64_t packed = 0;
  for (int place = 0; mask != 0; mask &= mask - 1, ++place)
    packed |= (word >> __builtin_ctzll(mask) & 1) << place;
  return packed;
#endif
}

}  // namespace tamis::cpu::TAMIS_ISA
