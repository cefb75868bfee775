// docs/semantics.md section 5: scores, softmax and value, one (query, head) at a time.
#include <algorithm>
#include <cmath>

#include "core/checks.h"
#include "kernels/reference/numbers.h"
#include "kernels/reference/rows.h"
#include "tamis/reference.h"

namespace tamis::reference {
namespace {

constexpr int64_t kMostOutputs = int64_t{1}
                                 << 30;  // a bound so that a small hostile file cannot ask for all memory

// What one query head reads: tokens of its set, where they are, and the query itself.
struct Edges {
  int64_t query, head, kv_head, position;
  const int32_t* tokens;
  const int64_t* slots;
  int64_t count;
};

int64_t address(const KvStrides& stride, int64_t page_size, int64_t slot, int64_t head) {
  const int64_t page = page_size == 0 ? 0 : slot / page_size,
                token = page_size == 0 ? slot : slot % page_size;
  return page * stride.page + token * stride.token + head * stride.head;
}

std::vector<double> scores(const Problem& p, const Shape& s, const Edges& e) {
  const TensorView& q = p.query.q;
  const TensorView& k = p.cache.k;
  const KvStrides stride = kv_strides(k, p.cache.layout);
  const double slope =
      p.score.alibi_slopes.present() ? static_cast<double>(p.score.alibi_slopes.at<float>({e.head})) : 0;
  std::vector<double> query(s.head_dim), result(e.count);
  for (int64_t d = 0; d < s.head_dim; ++d)
    query[d] = load_float(q, e.query * q.stride[0] + e.head * q.stride[1] + d * q.stride[2]);
  for (int64_t j = 0; j < e.count; ++j) {
    const int64_t from = address(stride, s.page_size, e.slots[j], e.kv_head);
    double dot = 0;
    for (int64_t d = 0; d < s.head_dim; ++d) dot += query[d] * load_float(k, from + d * stride.dim);
    double x = s.scale * dot;
    if (p.score.softcap > 0) x = p.score.softcap * std::tanh(x / p.score.softcap);
    const double distance = std::abs(static_cast<double>(e.position - e.tokens[j]));
    result[j] = slope == 0 ? x : x - slope * distance;
  }
  return result;
}

double log_sum_exp(const std::vector<double>& x) {
  const double top = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (const double y : x) sum += std::exp(y - top);
  return top + std::log(sum);
}

}  // namespace

Status supports(const Problem& p) {
  if (p.dropout.p > 0)
    return {Code::kUnsupported,
            "dropout_p: the reference does not compute dropout yet; nearest: dropout_p 0"};
  for (const auto& [name, quant] : {std::pair{"k_format", &p.cache.k_quant}, {"v_format", &p.cache.v_quant}})
    if (quant->format != Format::kPlain)
      return {Code::kUnsupported,
              text(name, ": the reference does not compute quantized caches yet; nearest: f32, f16 or bf16")};
  return {};
}

namespace {

Result<Output> attend_unguarded(const Problem& problem, const Sets& sets) {
  const Result<Shape> shape = describe(problem);
  if (!shape.ok()) return shape.status();
  if (shape->index_only) return invalid("q", "tensor is missing, an index-only problem has no values");
  TAMIS_RETURN_IF_ERROR(supports(problem));
  TAMIS_RETURN_IF_ERROR(check_values(problem));
  TAMIS_RETURN_IF_ERROR(check_pages(problem, sets));
  if (shape->total_q * shape->q_heads > kMostOutputs / shape->v_head_dim)
    return Status(Code::kCapacityExceeded, text("q: the reference holds at most ", kMostOutputs, " outputs"));

  const std::vector<int64_t> slots = physical_slots(problem, sets);
  const int64_t heads = shape->q_heads, dim = shape->v_head_dim, per_index_head = heads / shape->index_heads;
  const TensorView& v = problem.cache.v;
  const KvStrides stride = kv_strides(v, problem.cache.layout);
  Output result{.out = std::vector<double>(shape->total_q * heads * dim, 0.0),
                .lse = std::vector<double>(shape->total_q * heads, -INFINITY)};
  for_each_query(problem, [&](int64_t b, int64_t i) {
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t set = i * shape->index_heads + h / per_index_head;
      const int64_t at = sets.indptr[set], count = sets.indptr[set + 1] - at;
      if (count == 0) continue;
      const Edges e{i, h, h / shape->group, position_of(problem, b, i), &sets.tokens[at], &slots[at], count};
      const std::vector<double> s = scores(problem, *shape, e);
      const double lse = log_sum_exp(s);
      result.lse[i * heads + h] = lse;
      double* out = &result.out[(i * heads + h) * dim];
      for (int64_t j = 0; j < count; ++j) {
        const double weight = std::exp(s[j] - lse);
        const int64_t from = address(stride, shape->page_size, e.slots[j], e.kv_head);
        for (int64_t d = 0; d < dim; ++d) out[d] += weight * load_float(v, from + d * stride.dim);
      }
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
  TAMIS_RETURN_IF_ERROR(supports(problem));
  Result<Sets> sets = build_sets(problem);
  if (!sets.ok()) return sets.status();
  Result<Output> output = attend(problem, *sets);
  if (!output.ok()) return output.status();
  return Answer{std::move(*sets), std::move(*output)};
}

}  // namespace tamis::reference
