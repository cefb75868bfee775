// Partial softmax states over disjoint keys: m = max of s, l = sum of exp(s - m), o = sum of exp(s - m) v,
// natural logarithm. They form a commutative monoid with identity (-inf, 0, 0); docs/semantics.md section 5.
//
// A state is empty exactly when l is 0. What else an empty state holds is never read, so scratch that nobody
// wrote is fine. A state that is not empty has a finite m; NaN or +inf in one shows up as NaN in the result.
// Source: FlashAttention-2 (arXiv 2307.08691), section 3.1.1, where o stays undivided until the end.
#pragma once

#include <cmath>

#include "core/hd.h"

namespace tamis {

// What each side's numerator is to be multiplied by, with weigh().
struct Weights {
  float a, b;
};

// Joins (m_b, l_b) into (m, l) and returns the weights of the two numerators: o = a * o + b * o_b.
//
// An empty side is told by its l and left out before the maximum is taken: joining two empty states by the
// formula would need exp(-inf - -inf), which is NaN, and a maximum of unwritten scratch could be anything.
TAMIS_HD inline Weights join(float& m, float& l, float m_b, float l_b) {
  if (l_b == 0.f) return {1.f, 0.f};
  if (l == 0.f) {
    m = m_b;
    l = l_b;
    return {0.f, 1.f};
  }
  const float top = fmaxf(m, m_b);
  const Weights w{expf(m - top), expf(m_b - top)};
  m = top;
  l = w.a * l + w.b * l_b;
  return w;
}

// weight * o, where weight 0 means "skip": the o of an empty state may be NaN, and 0 * NaN is NaN.
TAMIS_HD inline float weigh(float weight, float o) { return weight == 0.f ? 0.f : weight * o; }

// O of one element of the numerator. Divides, so that equal values come out as themselves; a kernel that
// multiplies by 1 / l instead is within tolerance, but must make the same exception.
TAMIS_HD inline float finish_out(float o, float l) { return l == 0.f ? 0.f : o / l; }

// ln of the sum of exp(s) over all keys; -inf when there are none, whatever m holds.
TAMIS_HD inline float finish_lse(float m, float l) { return l == 0.f ? -INFINITY : m + logf(l); }

}  // namespace tamis
