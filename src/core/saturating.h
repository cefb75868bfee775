// Arithmetic for sizes of at least 0 that stays at the largest number instead of wrapping.
#pragma once

#include <cstdint>
#include <limits>

namespace tamis {

inline constexpr int64_t kMostSize = std::numeric_limits<int64_t>::max();

inline int64_t times(int64_t a, int64_t b) {
  int64_t out;
  return __builtin_mul_overflow(a, b, &out) ? kMostSize : out;
}
inline int64_t plus(int64_t a, int64_t b) { return a > kMostSize - b ? kMostSize : a + b; }
inline int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

// The next multiple of 256: where a part of a caller's device memory may begin.
inline int64_t to_line(int64_t bytes) { return ceil_div(bytes, 256) * 256; }

}  // namespace tamis
