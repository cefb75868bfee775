// docs/semantics.md sections 5 and 6: softmax and value, one (query, head) at a time.
#include <algorithm>
#include <cmath>

#include "core/checks.h"
#include "kernels/reference/edges.h"

namespace tamis::reference {
namespace {

// Of a row's scores: the largest, and the sum of exp(s - top). Their LSE would lose the sum beside a large
// top.
struct Norm {
  double top, sum;
};

Norm norm_of(const std::vector<double>& s) {
  Norm n{*std::max_element(s.begin(), s.end()), 0};
  for (const double x : s) n.sum += std::exp(x - n.top);
  return n;
}

Result<Output> attend_unguarded(const Problem& problem, const Sets& sets) {
  const Result<Reader> reader = open(problem, sets);
  if (!reader.ok()) return reader.status();
  const Shape& shape = reader->shape;
  const int64_t heads = shape.q_heads, dim = shape.v_head_dim;
  if (shape.total_q * heads > kMostNumbers / dim)
    return Status(Code::kCapacityExceeded, text("q: the reference holds at most ", kMostNumbers, " outputs"));

  Output result{.out = std::vector<double>(shape.total_q * heads * dim, 0.0),
                .lse = std::vector<double>(shape.total_q * heads, -INFINITY)};
  for_each_row(*reader, [&](const Row& row) {
    const std::vector<double> s = scores_of(*reader, row).value;
    const Norm norm = norm_of(s);
    result.lse[row.query * heads + row.head] = norm.top + std::log(norm.sum);
    double* out = &result.out[(row.query * heads + row.head) * dim];
    for (size_t j = 0; j < s.size(); ++j) {
      const Edge& e = row.edges[j];
      if (e.keep == 0) continue;  // a dropped edge is in the sum of weights, not in the numerator
      const double weight = std::exp(s[j] - norm.top) / norm.sum * e.keep;
      for (int64_t d = 0; d < dim; ++d) out[d] += weight * reader->v.at(e.v, d);
    }
  });
  return result;
}

}  // namespace

Result<Output> attend(const Problem& problem, const Sets& sets) {
  return guarded([&] { return attend_unguarded(problem, sets); });
}

Result<Answer> forward(const Problem& problem) {
  const Result<Shape> shape = describe(problem);
  if (!shape.ok()) return shape.status();
  if (shape->index_only) return invalid("q", "tensor is missing, an index-only problem has no values");
  TAMIS_RETURN_IF_ERROR(check_arrays(problem, *shape));
  Result<Sets> sets = build_sets(problem);
  if (!sets.ok()) return sets.status();
  Result<Output> output = attend(problem, *sets);
  if (!output.ok()) return output.status();
  return Answer{std::move(*sets), std::move(*output)};
}

}  // namespace tamis::reference
