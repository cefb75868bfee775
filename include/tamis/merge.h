// Joining attention over disjoint keys (docs/semantics.md section 5).
//
// A partial state is (m, l, o): running maximum, sum of exp(s - m), and the numerator, not divided by l.
// States form a monoid with identity (-inf, 0, 0); natural logarithm throughout.
#pragma once

#include <cstdint>
#include <span>

#include "tamis/status.h"

namespace tamis {

// Merges normalized results of disjoint key sets, in the order given. outs[s] is [rows, dim], lses[s] is
// [rows], both dense f32. Empty states (LSE -inf) weigh nothing and may hold anything, NaN included; all
// empty gives (0, -inf).
Status merge_states(std::span<const float* const> outs, std::span<const float* const> lses, int64_t rows,
                    int64_t dim, float* out, float* lse);

// Joins branches that carry gates: sum over s of gates[s][row] * outs[s][row]. Not a softmax over the union:
// each branch keeps its own. A gate of 0 skips its branch, NaN included.
Status gated_sum(std::span<const float* const> outs, std::span<const float* const> gates, int64_t rows,
                 int64_t dim, float* out);

// LSE in base 2 to natural and back; other libraries keep base 2.
float lse_from_base2(float lse);
float lse_to_base2(float lse);

}  // namespace tamis
