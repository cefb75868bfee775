// Partial states and finished results for the merge tests, computed in float64 by the definition.
#pragma once

#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace tamis::testing {

inline constexpr float kFloatInf = std::numeric_limits<float>::infinity();
inline constexpr float kFloatNaN = std::numeric_limits<float>::quiet_NaN();

// A key as the softmax sees it.
struct Key {
  double score, value;
};

struct State {
  float m = -kFloatInf, l = 0.f, o = 0.f;
};

struct Finished {
  double out, lse;
};

struct Sums {
  double m = -std::numeric_limits<double>::infinity(), l = 0, o = 0;
};

inline Sums sums_of(const std::vector<Key>& keys) {
  Sums sums;
  for (const Key& key : keys) sums.m = std::max(sums.m, key.score);
  for (const Key& key : keys) {
    sums.l += std::exp(key.score - sums.m);
    sums.o += std::exp(key.score - sums.m) * key.value;
  }
  return sums;
}

inline State state_of(const std::vector<Key>& keys) {
  const Sums sums = sums_of(keys);
  return {static_cast<float>(sums.m), static_cast<float>(sums.l), static_cast<float>(sums.o)};
}

inline Finished attention(const std::vector<Key>& keys) {
  if (keys.empty()) return {0, -std::numeric_limits<double>::infinity()};
  const Sums sums = sums_of(keys);
  return {sums.o / sums.l, sums.m + std::log(sums.l)};
}

// Scores in [-40, 40] and values in [-8, 8], multiples of 1/16: exact in float32.
inline std::vector<Key> any_keys() {
  std::vector<Key> keys(*rc::gen::inRange(0, 24));
  for (Key& key : keys) key = {*rc::gen::inRange(-640, 641) / 16.0, *rc::gen::inRange(-128, 129) / 16.0};
  return keys;
}

// The keys cut into 1 to 6 pieces in order, some of them empty.
inline std::vector<std::vector<Key>> any_split(const std::vector<Key>& keys) {
  std::vector<int> cuts(*rc::gen::inRange(0, 6));
  for (int& cut : cuts) cut = *rc::gen::inRange(0, static_cast<int>(keys.size()) + 1);
  std::sort(cuts.begin(), cuts.end());
  cuts.push_back(static_cast<int>(keys.size()));
  std::vector<std::vector<Key>> pieces;
  int from = 0;
  for (const int cut : cuts) {
    pieces.emplace_back(keys.begin() + from, keys.begin() + cut);
    from = cut;
  }
  return pieces;
}

// Equal, infinities included, or within `tolerance`.
inline bool near(double a, double b, double tolerance) { return a == b || std::fabs(a - b) <= tolerance; }

// Rounding: an LSE of 44 stored as float32 is off by up to 2e-6, and so is every weight made of it; values
// differ by up to 16.
inline constexpr double kOutTolerance = 5e-5, kLseTolerance = 2e-5;

}  // namespace tamis::testing
