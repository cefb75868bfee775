// Shuffles and votes of a warp, by the names CUDA has for them.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "emulated/hopper/meetings.h"
#include "emulated/hopper/threads.h"

namespace tamis::emulated {

struct Shuffle {
  uint64_t value, result;
  unsigned source;  // lane
};

// Of a lane that takes no part, a value that shows.
inline void shuffle_lanes(void* const* lanes, uint32_t mask) {
  for (uint32_t i = 0; i < 32; ++i) {
    if (!(mask >> i & 1)) continue;
    Shuffle& mine = *static_cast<Shuffle*>(lanes[i]);
    mine.result = mask >> mine.source & 1 ? static_cast<Shuffle*>(lanes[mine.source])->value : ~uint64_t{0};
  }
}

template <class T>
T shuffle(const Rite& rite, uint32_t mask, T value, unsigned source) {
  static_assert(std::is_trivially_copyable_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  Shuffle mine{0, 0, source};
  std::memcpy(&mine.value, &value, sizeof value);
  meet(rite, mask, &mine);
  std::memcpy(&value, &mine.result, sizeof value);
  return value;
}

inline constexpr Rite kShuffle{"__shfl_sync()", shuffle_lanes}, kShuffleUp{"__shfl_up_sync()", shuffle_lanes},
    kShuffleDown{"__shfl_down_sync()", shuffle_lanes}, kShuffleXor{"__shfl_xor_sync()", shuffle_lanes},
    kSyncWarp{"__syncwarp()", nullptr};

// Every lane gets what the values of all make.
template <class T, T (*kOf)(T, T)>
void reduce_lanes(void* const* lanes, uint32_t mask) {
  const auto first = static_cast<uint32_t>(std::countr_zero(mask));
  T sum = *static_cast<T*>(lanes[first]);
  for (uint32_t i = first + 1; i < 32; ++i)
    if (mask >> i & 1) sum = kOf(sum, *static_cast<T*>(lanes[i]));
  for (uint32_t i = first; i < 32; ++i)
    if (mask >> i & 1) *static_cast<T*>(lanes[i]) = sum;
}

template <class T>
T plus(T a, T b) {
  return static_cast<T>(static_cast<unsigned>(a) + static_cast<unsigned>(b));
}
template <class T>
T least(T a, T b) {
  return b < a ? b : a;
}
template <class T>
T most(T a, T b) {
  return a < b ? b : a;
}
inline unsigned both(unsigned a, unsigned b) { return a & b; }
inline unsigned either(unsigned a, unsigned b) { return a | b; }
inline unsigned one_of(unsigned a, unsigned b) { return a ^ b; }

template <class T>
inline constexpr Rite kPlus{"__reduce_add_sync()", reduce_lanes<T, plus<T>>};
template <class T>
inline constexpr Rite kLeast{"__reduce_min_sync()", reduce_lanes<T, least<T>>};
template <class T>
inline constexpr Rite kMost{"__reduce_max_sync()", reduce_lanes<T, most<T>>};
inline constexpr Rite kBoth{"__reduce_and_sync()", reduce_lanes<unsigned, both>},
    kEither{"__reduce_or_sync()", reduce_lanes<unsigned, either>},
    kOneOf{"__reduce_xor_sync()", reduce_lanes<unsigned, one_of>},
    kBallot{"__ballot_sync()", reduce_lanes<unsigned, either>},
    kAny{"__any_sync()", reduce_lanes<unsigned, either>}, kAll{"__all_sync()", reduce_lanes<unsigned, both>};

template <class T>
T reduce(const Rite& rite, uint32_t mask, T value) {
  static_assert(std::is_same_v<T, int> || std::is_same_v<T, unsigned>);
  meet(rite, mask, &value);
  return value;
}

}  // namespace tamis::emulated

template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
  const unsigned w = static_cast<unsigned>(width), self = threadIdx.x % 32;
  return tamis::emulated::shuffle(tamis::emulated::kShuffle, mask, value,
                                  (self & ~(w - 1)) | (static_cast<unsigned>(lane) & (w - 1)));
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const unsigned w = static_cast<unsigned>(width), self = threadIdx.x % 32;
  return tamis::emulated::shuffle(tamis::emulated::kShuffleUp, mask, value,
                                  (self & (w - 1)) >= delta ? self - delta : self);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const unsigned w = static_cast<unsigned>(width), self = threadIdx.x % 32;
  return tamis::emulated::shuffle(tamis::emulated::kShuffleDown, mask, value,
                                  (self & (w - 1)) + delta < w ? self + delta : self);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
  const unsigned w = static_cast<unsigned>(width), self = threadIdx.x % 32,
                 other = self ^ static_cast<unsigned>(lanes);
  return tamis::emulated::shuffle(tamis::emulated::kShuffleXor, mask, value,
                                  other < (self & ~(w - 1)) + w ? other : self);
}

inline void __syncwarp(unsigned mask = ~0u) {
  tamis::emulated::meet(tamis::emulated::kSyncWarp, mask, nullptr);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return tamis::emulated::reduce<unsigned>(tamis::emulated::kBallot, mask,
                                           predicate != 0 ? 1u << threadIdx.x % 32 : 0u);
}
inline int __any_sync(unsigned mask, int predicate) {
  return static_cast<int>(tamis::emulated::reduce<unsigned>(tamis::emulated::kAny, mask, predicate != 0));
}
inline int __all_sync(unsigned mask, int predicate) {
  return static_cast<int>(tamis::emulated::reduce<unsigned>(tamis::emulated::kAll, mask, predicate != 0));
}
template <class T>
T __reduce_add_sync(unsigned mask, T value) {
  return tamis::emulated::reduce(tamis::emulated::kPlus<T>, mask, value);
}
template <class T>
T __reduce_min_sync(unsigned mask, T value) {
  return tamis::emulated::reduce(tamis::emulated::kLeast<T>, mask, value);
}
template <class T>
T __reduce_max_sync(unsigned mask, T value) {
  return tamis::emulated::reduce(tamis::emulated::kMost<T>, mask, value);
}
inline unsigned __reduce_and_sync(unsigned mask, unsigned value) {
  return tamis::emulated::reduce<unsigned>(tamis::emulated::kBoth, mask, value);
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned value) {
  return tamis::emulated::reduce<unsigned>(tamis::emulated::kEither, mask, value);
}
inline unsigned __reduce_xor_sync(unsigned mask, unsigned value) {
  return tamis::emulated::reduce<unsigned>(tamis::emulated::kOneOf, mask, value);
}
