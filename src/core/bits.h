// Member words: bit i of a word stands for token base + i. The one place where section 4 of docs/semantics.md
// becomes bits; every kernel but the reference goes through it.
#pragma once

#include <cstdint>

#include "core/hd.h"

namespace tamis {

inline constexpr int kWordBits = 64;

TAMIS_HD inline int64_t clamp64(int64_t x, int64_t low, int64_t high) {
  return x < low ? low : x > high ? high : x;
}

// The bits of tokens [first, last) in the word that starts at `base`; empty when last <= first.
TAMIS_HD inline uint64_t range_bits(int64_t first, int64_t last, int64_t base) {
  const int low = static_cast<int>(clamp64(first - base, 0, kWordBits));
  const int high = static_cast<int>(clamp64(last - base, 0, kWordBits));
  if (high <= low) return 0;
  return (~uint64_t{0} >> (kWordBits - (high - low))) << low;
}

// The bits a word uses when blocks hold `block` tokens.
TAMIS_HD inline uint64_t word_mask(int block) {
  return block >= kWordBits ? ~uint64_t{0} : (uint64_t{1} << block) - 1;
}

// What one query may see, as token ranges. `end` is the first token it cannot see.
struct Sight {
  int64_t end;           // 0: sees nothing
  int64_t sink_end;      // [0, sink_end)
  int64_t window_begin;  // [window_begin, end of the window), the window reaching to `pos`
  int64_t window_end;
};

TAMIS_HD inline Sight sight_of(int64_t pos, int64_t kv_len, bool causal, int64_t window, int64_t sink) {
  if (pos < 0) return {0, 0, 0, 0};
  const int64_t end = causal && pos + 1 < kv_len ? pos + 1 : kv_len;
  const int64_t reach = window < pos + 1 ? window : pos + 1;  // tokens of the window that exist
  return {end, sink < end ? sink : end, pos + 1 - reach,
          reach == 0 ? pos + 1 - reach : clamp64(pos + 1, 0, end)};
}

TAMIS_HD inline bool same_sight(const Sight& a, const Sight& b) {
  return a.end == b.end && a.sink_end == b.sink_end && a.window_begin == b.window_begin &&
         a.window_end == b.window_end;
}

// S of section 4 within one word: listed tokens, sink and window, cut at what the query may see.
TAMIS_HD inline uint64_t set_bits(uint64_t listed, const Sight& s, int64_t base) {
  return (listed & range_bits(0, s.end, base)) | range_bits(0, s.sink_end, base) |
         range_bits(s.window_begin, s.window_end, base);
}

}  // namespace tamis
