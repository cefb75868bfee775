#include "kernels/reference/edges.h"

#include <cmath>

#include "core/checks.h"

namespace tamis::reference {

Result<Reader> open(const Problem& problem, const Sets& sets) {
  const Result<Shape> shape = describe(problem);
  if (!shape.ok()) return shape.status();
  if (shape->index_only) return invalid("q", "tensor is missing, an index-only problem has no values");
  TAMIS_RETURN_IF_ERROR(check_values(problem));
  TAMIS_RETURN_IF_ERROR(check_pages(problem, sets));
  const CacheView& c = problem.cache;
  return Reader{problem,
                sets,
                *shape,
                physical_slots(problem, sets),
                {c.k, c.k_quant, c.layout, shape->page_size},
                {c.v, c.v_quant, c.layout, shape->page_size}};
}

Row read_row(const Reader& r, int64_t request, int64_t query, int64_t head) {
  const Problem& p = r.problem;
  const Shape& s = r.shape;
  const int64_t set = query * s.index_heads + head / (s.q_heads / s.index_heads);
  const int64_t begin = r.sets.indptr[set], end = r.sets.indptr[set + 1];
  Row row{query, head, head / s.group, position_of(p, request, query), {}, {}};
  if (begin == end) return row;
  const TensorView& q = p.query.q;
  for (int64_t d = 0; d < s.head_dim; ++d)
    row.q.push_back(load_float(q, query * q.stride[0] + head * q.stride[1] + d * q.stride[2]));
  for (int64_t at = begin; at < end; ++at) {
    const int64_t t = r.sets.tokens[at], slot = r.slots[at];
    const bool kept = keeps(p.dropout, request, head, row.position, t);
    row.edges.push_back(
        {t, r.k.place(slot, row.kv_head), r.v.place(slot, row.kv_head), kept ? 1 / (1 - p.dropout.p) : 0});
  }
  return row;
}

Scores scores_of(const Reader& r, const Row& row) {
  const ScoreRule& rule = r.problem.score;
  const double slope =
      rule.alibi_slopes.present() ? static_cast<double>(rule.alibi_slopes.at<float>({row.head})) : 0;
  Scores result;
  for (const Edge& e : row.edges) {
    double dot = 0;
    for (int64_t d = 0; d < r.shape.head_dim; ++d) dot += row.q[d] * r.k.at(e.k, d);
    double x = r.shape.scale * dot, by_dot = r.shape.scale;
    if (rule.softcap > 0) {
      const double t = std::tanh(x / rule.softcap);
      x = rule.softcap * t;
      by_dot *= (1 - t) * (1 + t);
    }
    const double distance = std::abs(static_cast<double>(row.position - e.token));
    result.value.push_back(slope == 0 ? x : x - slope * distance);
    result.slope.push_back(by_dot);
  }
  return result;
}

}  // namespace tamis::reference
