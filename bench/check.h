// Errors of a run, judged by the float64 reference on some of its queries.
#pragma once

#include <cstdint>
#include <vector>

#include "tamis/attention.h"
#include "tamis/problem.h"

namespace tamis::bench {

struct Judged {
  double max_error = 0;  // largest |O - reference|; infinite where one of the two alone is not finite
  int64_t rows = 0;      // (query, query head)
};

// Compares out [total_q, Hq, Dv] with the reference at these queries. For problems as the benches make them:
// plain K and V, candidates CSR with i32 offsets, none or all.
Result<Judged> judge(const Problem& problem, const MutableTensorView& out,
                     const std::vector<int64_t>& queries);

}  // namespace tamis::bench
