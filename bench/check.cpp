#include "check.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/elements.h"
#include "tamis/reference.h"

namespace tamis::bench {
namespace {

const int32_t* ints(const TensorView& t) { return static_cast<const int32_t*>(t.data); }

double element(const MutableTensorView& t, int64_t query, int64_t head, int64_t d) {
  const int64_t at = query * t.stride[0] + head * t.stride[1] + d * t.stride[2];
  return load_float(t, at);
}

// One query as a problem of its own: the same keys, its own candidate row, its position stated.
struct OneQuery {
  Problem problem;
  std::vector<int32_t> cu_q{0, 1}, position, indptr{0}, indices;

  OneQuery(const Problem& whole, const Shape& s, int64_t query) : problem(whole) {
    const int32_t* starts = ints(whole.query.cu_q);
    int64_t request = 0;
    while (starts[request + 1] <= query) ++request;
    const int32_t length = ints(whole.cache.kv_len)[request], first = starts[request];
    position = {static_cast<int32_t>(length - starts[request + 1] + query)};
    TensorView& q = problem.query.q;
    q.data = static_cast<const std::byte*>(q.data) + query * q.stride[0] * dtype_bytes(q.dtype);
    q.shape[0] = 1;
    problem.query.cu_q = dense_view(cu_q.data(), DType::kI32, {2});
    problem.query.q_pos = dense_view(position.data(), DType::kI32, {1});
    problem.cache.kv_len = dense_view(ints(whole.cache.kv_len) + request, DType::kI32, {1});
    if (whole.cache.page_table.present())
      problem.cache.page_table =
          dense_view(ints(whole.cache.page_table) + request * s.max_pages, DType::kI32, {1, s.max_pages});
    take_candidates(whole, s, starts, request, query - first);
  }
  OneQuery(const OneQuery&) = delete;  // the problem points into this

 private:
  void take_candidates(const Problem& whole, const Shape& s, const int32_t* starts, int64_t request,
                       int64_t local_query) {
    if (whole.candidates.form != CandidateForm::kCsr) return;
    const int64_t block = whole.candidates.query_block;
    int64_t row = local_query / block;
    for (int64_t b = 0; b < request; ++b) row += (starts[b + 1] - starts[b] + block - 1) / block;
    const int32_t *from = ints(whole.candidates.indptr), *entries = ints(whole.candidates.indices);
    for (int64_t g = 0; g < s.index_heads; ++g) {
      const int64_t r = row * s.index_heads + g;
      indices.insert(indices.end(), entries + from[r], entries + from[r + 1]);
      indptr.push_back(static_cast<int32_t>(indices.size()));
    }
    problem.candidates.query_block = 1;
    problem.candidates.indptr = dense_view(indptr.data(), DType::kI32, {static_cast<int64_t>(indptr.size())});
    problem.candidates.indices =
        dense_view(indices.data(), DType::kI32, {static_cast<int64_t>(indices.size())});
  }
};

double difference(double got, double want) {
  if (got == want || (std::isnan(got) && std::isnan(want))) return 0;
  const double d = std::fabs(got - want);
  return std::isfinite(d) ? d : std::numeric_limits<double>::infinity();
}

}  // namespace

Result<Judged> judge(const Problem& problem, const MutableTensorView& out,
                     const std::vector<int64_t>& queries) {
  const Result<Shape> shape = describe(problem);
  if (!shape.ok()) return shape.status();
  Judged judged;
  for (const int64_t query : queries) {
    const OneQuery one(problem, *shape, query);
    const Result<reference::Answer> answer = reference::forward(one.problem);
    if (!answer.ok()) return answer.status();
    for (int64_t h = 0; h < shape->q_heads; ++h)
      for (int64_t d = 0; d < shape->v_head_dim; ++d)
        judged.max_error =
            std::max(judged.max_error,
                     difference(element(out, query, h, d), answer->output.out[h * shape->v_head_dim + d]));
    judged.rows += shape->q_heads;
  }
  return judged;
}

}  // namespace tamis::bench
