// CUDA's words, types and functions that are not about other threads, for device code on the host.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "emulated/hopper/meetings.h"
#include "emulated/hopper/scheduler.h"
#include "emulated/hopper/threads.h"
#include "emulated/hopper/warps.h"

#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))

using std::max;
using std::min;

// clang-format off
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
// clang-format on
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }

inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return std::countl_zero(static_cast<unsigned long long>(x)); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(uint64_t{a} * b >> 32); }
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((uint64_t{high} << 32 | low) << (shift & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((uint64_t{high} << 32 | low) >> (shift & 31));
}

inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.f / x; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float rsqrtf(float x) { return 1.f / std::sqrt(x); }

// ---- Memory. Device code that waits for a word in a loop must ask for it by one of these: others go on
// then.

template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldcg(const T* p) {
  tamis::emulated::pause();
  return *p;
}
template <class T>
T __ldcs(const T* p) {
  return *p;
}
template <class T>
void __stcg(T* p, T x) {
  *p = x;
}
template <class T>
void __stcs(T* p, T x) {
  *p = x;
}

// Threads change at calls only, so an atomic is a plain access.
template <class T, class F>
T emulated_atomic(T* p, F change) {
  tamis::emulated::pause();
  const T old = *p;
  *p = change(old);
  tamis::emulated::pause();
  return old;
}
template <class T>
using EmulatedSame = std::type_identity_t<T>;
template <class T>
T atomicAdd(T* p, EmulatedSame<T> x) {
  return emulated_atomic(p, [x](T old) {
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(std::make_unsigned_t<T>(old) + std::make_unsigned_t<T>(x));
    else
      return old + x;
  });
}
template <class T>
T atomicOr(T* p, EmulatedSame<T> x) {
  return emulated_atomic(p, [x](T old) { return old | x; });
}
template <class T>
T atomicAnd(T* p, EmulatedSame<T> x) {
  return emulated_atomic(p, [x](T old) { return old & x; });
}
template <class T>
T atomicMin(T* p, EmulatedSame<T> x) {
  return emulated_atomic(p, [x](T old) { return x < old ? x : old; });
}
template <class T>
T atomicMax(T* p, EmulatedSame<T> x) {
  return emulated_atomic(p, [x](T old) { return old < x ? x : old; });
}
template <class T>
T atomicExch(T* p, EmulatedSame<T> x) {
  return emulated_atomic(p, [x](T) { return x; });
}
template <class T>
T atomicCAS(T* p, EmulatedSame<T> expected, EmulatedSame<T> x) {
  return emulated_atomic(p, [=](T old) { return old == expected ? x : old; });
}
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __nanosleep(unsigned) { tamis::emulated::yield(); }

// ---- The CTA.

inline void __syncthreads() { tamis::emulated::sync_threads(tamis::emulated::Vote::kNone, 0); }
inline int __syncthreads_or(int predicate) {
  return tamis::emulated::sync_threads(tamis::emulated::Vote::kAny, predicate);
}
inline int __syncthreads_and(int predicate) {
  return tamis::emulated::sync_threads(tamis::emulated::Vote::kAll, predicate);
}
[[noreturn]] inline void __trap() { tamis::emulated::fail("__trap()"); }
