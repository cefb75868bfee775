// Stands in for src/kernels/cuda/device/ptx.cuh: the same functions where device code runs on the host thread
// by thread.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/device.cuh"  // the one of this folder
#include "core/float_formats.h"
#include "emulated/hopper/matrices.h"

namespace tamis::device {

inline uint32_t shared_address(const void* p) { return emulated::shared_address(p); }

inline void copy_async(uint32_t to, const void* from, uint32_t bytes) {
  emulated::copy_async(to, from, bytes, 16);
}
inline void copy_async(uint32_t to, const void* from) { emulated::copy_async(to, from, 16, 16); }
inline void copy_commit() { emulated::copy_commit(); }
template <int kPending>
inline void copy_wait() {
  emulated::copy_wait(kPending);
}

inline void load_matrix(uint32_t (&r)[4], uint32_t from) { emulated::load_matrix(r, from, false); }
inline void load_matrix_transposed(uint32_t (&r)[4], uint32_t from) { emulated::load_matrix(r, from, true); }
inline uint32_t transpose_matrix(uint32_t a) { return emulated::transpose_matrix(a); }

inline uint32_t moved(uint32_t x) { return x; }

// Subnormal numbers count as 0, before and after.
inline float exp2_fast(float x) {
  const float y = std::exp2(x);
  return y < 0x1p-126f ? 0.f : y;
}

// Of each half: the same, or no number where one of them is none or infinite. exponent: all its bits.
inline uint32_t add_nought_of(uint32_t exponent, uint32_t sum, uint32_t pair) {
  for (int i = 0; i < 32; i += 16)
    if ((pair >> i & exponent) == exponent || (sum >> i & exponent) == exponent) sum |= 0x7FFFu << i;
  return sum;
}

struct BF16 {
  static constexpr float kLift = 0;
  static constexpr emulated::Format kFormat = emulated::Format::kBF16;
  static void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    emulated::multiply_warp(kFormat, c, a, b0, b1);
  }
  static uint32_t pair(float low, float high) {
    return uint32_t{float_to_bf16(low)} | uint32_t{float_to_bf16(high)} << 16;
  }
  static uint32_t add_nought(uint32_t sum, uint32_t pair) { return add_nought_of(0x7F80, sum, pair); }
};
struct F16 {
  static constexpr float kLift = 7;
  static constexpr emulated::Format kFormat = emulated::Format::kF16;
  static void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    emulated::multiply_warp(kFormat, c, a, b0, b1);
  }
  static uint32_t pair(float low, float high) {
    return uint32_t{float_to_f16(low)} | uint32_t{float_to_f16(high)} << 16;
  }
  static uint32_t add_nought(uint32_t sum, uint32_t pair) { return add_nought_of(0x7C00, sum, pair); }
};

inline void store_piece(uint32_t to, const uint4& x) { emulated::store_piece(to, &x); }

inline int64_t load_here(const int64_t* from) { return *from; }

inline uint32_t load_acquire(const uint32_t* from) {
  return emulated_atomic(const_cast<uint32_t*>(from), [](uint32_t old) { return old; });
}

inline uint32_t arrive(uint32_t* counter, uint32_t limit) {
  return emulated_atomic(counter, [limit](uint32_t old) { return old >= limit ? 0 : old + 1; });
}

}  // namespace tamis::device
