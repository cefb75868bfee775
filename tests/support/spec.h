// What a test states of a problem: sizes, where things lie, and the numbers that go in.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <vector>

#include "tamis/cache.h"

namespace tamis::testing {

// How q, k and v lie in memory.
enum class Placement {
  kDense,
  kGaps,         // unused elements after every row, head and page
  kSpread,       // the same, and every other element along the head size
  kReversed,     // all strides negative
  kInterleaved,  // k and v in one buffer, head by head: k's row, then v's; q as kGaps
};

using KvFill = std::function<double(int64_t request, int64_t token, int64_t head, int64_t dim)>;
using QFill = std::function<double(int64_t query, int64_t head, int64_t dim)>;
using RowFill = std::function<double(int64_t query, int64_t head)>;

// A value in [-1, 1), a multiple of 1/64: the same in f32, f16 and bf16.
inline double noise(uint64_t seed, int64_t a, int64_t b, int64_t c, int64_t d = 0) {
  uint64_t x = seed * 0x9E3779B97F4A7C15u;
  for (const int64_t part : {a, b, c, d}) {
    x = (x ^ static_cast<uint64_t>(part)) * 0xBF58476D1CE4E5B9u;
    x ^= x >> 29;
  }
  return static_cast<double>(static_cast<int64_t>(x >> 32 & 127) - 64) / 64;
}

inline KvFill kv_noise(uint64_t seed) {
  return [seed](int64_t b, int64_t t, int64_t h, int64_t d) { return noise(seed, b, t, h, d); };
}
inline QFill q_noise(uint64_t seed) {
  return [seed](int64_t i, int64_t h, int64_t d) { return noise(seed, i, h, d); };
}

struct Spec {
  std::vector<int32_t> kv_len{8};
  std::vector<int32_t> q_len{};  // one query a request when empty
  int64_t q_heads = 1, kv_heads = 1, head_dim = 4, v_head_dim = 4;
  DType dtype = DType::kF32;
  int64_t page_size = 4;                      // 0: contiguous
  std::vector<std::vector<int32_t>> table{};  // as given; else pages dealt in an order of its own
  int64_t pages = 0;                          // at least so many; grows to what the table needs
  int64_t slack = 1;                          // unused rows around each request of a contiguous cache
  Layout layout = Layout::kNHD;
  Placement placement = Placement::kDense;
  QFill q = [](int64_t, int64_t, int64_t) { return 1.0; };
  KvFill k = [](int64_t, int64_t, int64_t, int64_t) { return 0.0; };
  KvFill v = [](int64_t, int64_t t, int64_t, int64_t) { return static_cast<double>(t); };
};

}  // namespace tamis::testing
