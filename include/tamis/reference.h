// The judge: docs/semantics.md in float64, one plain loop after another.
//
// It knows no instruction set, block, plan or path, and shares no arithmetic with the kernels it judges. Cost
// is O(total_q * Hi * kv_len) for the sets and O(selected * (D + Dv)) for values and gradients. Host memory
// only; single-threaded; allocates its results. Reads K and V only at slots of selected tokens, and nothing
// at all before every candidate and every touched page has been found good.
//
// It computes every problem that `describe` accepts and that has values.
#pragma once

#include <cstdint>
#include <vector>

#include "tamis/candidates.h"
#include "tamis/problem.h"
#include "tamis/status.h"

namespace tamis::reference {

// The set of section 4 for each query and index head, query-major: set (i, g) is
// tokens[indptr[i * Hi + g] .. indptr[i * Hi + g + 1]), ascending.
struct Sets {
  std::vector<int64_t> indptr;  // [total_q * Hi + 1]
  std::vector<int32_t> tokens;
  CandidateCounts counts;  // entries of the candidate rows
  int64_t empty_rows = 0;  // empty sets
};

// Sections 3 and 4. Fails with the first offence by row: index_out_of_range or duplicate_index.
Result<Sets> build_sets(const Problem& problem);

// Section 9: every page a set touches must be mapped, in range and, with stamps, this request's own.
// Fails with the first offence by (request, logical page). Always ok for a contiguous cache.
Status check_pages(const Problem& problem, const Sets& sets);

// The physical slot of each token of `sets`: page * P + offset, or the row of a contiguous cache. The pages
// must have been checked.
std::vector<int64_t> physical_slots(const Problem& problem, const Sets& sets);

struct Output {
  std::vector<double> out;  // [total_q, Hq, Dv]
  std::vector<double> lse;  // [total_q, Hq], natural logarithm; -inf for an empty set
};

// Sections 5, 6 and 8, over sets made by build_sets for the same problem; checks the pages first.
Result<Output> attend(const Problem& problem, const Sets& sets);

struct Answer {
  Sets sets;
  Output output;
};

struct Gradients {
  std::vector<double> d_q;       // [total_q, Hq, D]
  std::vector<double> d_k, d_v;  // dense, axes as in k and v, last extent D and Dv (also for int4)
};

// Section 7: gradients of <d_out, O> + <d_lse, LSE>, over the sets and the output of the forward pass of the
// same problem; selects nothing and checks the pages first. Needs problem.gradients.d_out; an absent d_lse is
// zero. For a quantized K or V the gradient is that of the dequantized numbers. Slots of no set get exactly
// 0.
Result<Gradients> backward(const Problem& problem, const Sets& sets, const Output& output);

// The forward pass, all of it: describe, check, build_sets, check_pages, attend.
Result<Answer> forward(const Problem& problem);

}  // namespace tamis::reference
