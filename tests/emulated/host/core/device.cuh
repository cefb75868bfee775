// Stands in for src/core/device.cuh where device code is compiled for the host: one thread a CTA, so every
// barrier is passed at once and a CTA's work is done in one order. What it cannot show are races.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#define __device__

using std::max;
using std::min;

struct EmulatedIndex {
  unsigned x = 0;
};
inline EmulatedIndex blockIdx, threadIdx;
inline constexpr EmulatedIndex blockDim{1};

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline void __syncthreads() {}
inline void __threadfence_block() {}
inline int __reduce_add_sync(unsigned, int x) { return x; }
inline int __reduce_min_sync(unsigned, int x) { return x; }
inline int __reduce_max_sync(unsigned, int x) { return x; }
template <class T>
T __ldcg(const T* p) {
  return *p;
}
inline unsigned atomicOr(unsigned* p, unsigned x) {
  const unsigned old = *p;
  *p |= x;
  return old;
}
inline int atomicAdd(int* p, int x) {
  const int old = *p;
  *p += x;
  return old;
}
inline int atomicCAS(int* p, int expected, int x) {
  const int old = *p;
  if (old == expected) *p = x;
  return old;
}
inline int atomicMin(int* p, int x) {
  const int old = *p;
  if (x < old) *p = x;
  return old;
}
inline int atomicMax(int* p, int x) {
  const int old = *p;
  if (x > old) *p = x;
  return old;
}
inline unsigned long long atomicMin(unsigned long long* p, unsigned long long x) {
  const unsigned long long old = *p;
  if (x < old) *p = x;
  return old;
}
inline int atomicExch(int* p, int x) {
  const int old = *p;
  *p = x;
  return old;
}

namespace tamis::device {

inline void copy_word(void* to, const void* from) { std::memcpy(to, from, 4); }
inline void copies_done() {}
inline int64_t block_sum(int64_t x, int64_t*) { return x; }
template <class T>
T block_prefix(T x, T*, T* total) {
  *total = x;
  return 0;
}

}  // namespace tamis::device
