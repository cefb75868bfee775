#include "tamis/accuracy.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/elements.h"
#include "core/tensor_checks.h"
#include "tamis/reference.h"

namespace tamis {
namespace {

class ErrorSum {
 public:
  void add(double a, double b) {
    if (a == b || (std::isnan(a) && std::isnan(b))) {  // also equal infinities
      if (std::isfinite(b)) square_b_ += b * b;
      return;
    }
    const double difference = std::fabs(a - b);
    if (!std::isfinite(difference)) {
      largest_ = INFINITY;
      return;
    }
    largest_ = std::max(largest_, difference);
    square_ += difference * difference;
    square_b_ += b * b;
  }
  ErrorMeasure measure() const {
    if (square_ == 0) return {largest_, 0};
    return {largest_, square_b_ > 0 ? std::sqrt(square_ / square_b_) : INFINITY};
  }

 private:
  double largest_ = 0, square_ = 0, square_b_ = 0;
};

Status check_values(const char* name, const TensorView& t) {
  if (!t.present()) return invalid(name, "tensor is missing");
  if (!is_plain_float(t.dtype))
    return invalid(name, "dtype ", dtype_name(t.dtype), " is not one of F32 F16 BF16");
  return need_memory(name, t);
}

// Calls f(offset) for every element, the last axis fastest.
template <class F>
void for_each_offset(const TensorView& t, const F& f) {
  for (int64_t i = 0, n = t.elements(); i < n; ++i) {
    int64_t rest = i, at = 0;
    for (int axis = t.rank - 1; axis >= 0; rest /= t.shape[axis--])
      at += rest % t.shape[axis] * t.stride[axis];
    f(at);
  }
}

std::vector<double> widened(const TensorView& t) {
  std::vector<double> values;
  values.reserve(t.elements());
  for_each_offset(t, [&](int64_t at) { values.push_back(load_float(t, at)); });
  return values;
}

ErrorMeasure compare(const std::vector<double>& a, const std::vector<double>& b) {
  ErrorSum sum;
  for (size_t i = 0; i < b.size(); ++i) sum.add(a[i], b[i]);
  return sum.measure();
}

bool same_numbers(const TensorView& a, const TensorView& b) {
  if (a.present() != b.present()) return false;
  if (!a.present()) return true;
  const std::vector<double> x = widened(a), y = widened(b);
  return x.size() == y.size() && std::equal(x.begin(), x.end(), y.begin(), [](double s, double t) {
           return s == t || (std::isnan(s) && std::isnan(t));
         });
}

// Everything but K and V that makes up an output.
bool same_scores(const Problem& a, const Shape& of_a, const Problem& b, const Shape& of_b) {
  return of_a.scale == of_b.scale && a.score.softcap == b.score.softcap && a.dropout.p == b.dropout.p &&
         a.dropout.seed == b.dropout.seed && same_numbers(a.query.q, b.query.q) &&
         same_numbers(a.score.alibi_slopes, b.score.alibi_slopes);
}

Status check_alike(const Problem& original, const Problem& quantized, const TensorView& out) {
  const Result<Shape> a = describe(original), b = describe(quantized);
  if (!a.ok()) return a.status();
  if (!b.ok()) return b.status();
  if (a->total_q != b->total_q || a->q_heads != b->q_heads || a->kv_heads != b->kv_heads ||
      a->index_heads != b->index_heads || a->head_dim != b->head_dim || a->v_head_dim != b->v_head_dim)
    return invalid("original", "has other sizes than the quantized problem");
  if (original.cache.k_quant.format != Format::kPlain || original.cache.v_quant.format != Format::kPlain)
    return invalid("original", "is quantized itself");
  if (!same_scores(original, *a, quantized, *b))
    return invalid("original",
                   "has other queries or scores (q, scale, softcap, alibi_slopes, dropout) than the "
                   "quantized problem");
  TAMIS_RETURN_IF_ERROR(check_values("out", out));
  if (out.rank != 3 || out.shape[0] != a->total_q || out.shape[1] != a->q_heads ||
      out.shape[2] != a->v_head_dim)
    return invalid("out", "shape is not [", a->total_q, ",", a->q_heads, ",", a->v_head_dim, "]");
  return {};
}

Result<AccuracySplit> split(const Problem& original, const Problem& quantized, const TensorView& out) {
  TAMIS_RETURN_IF_ERROR(check_alike(original, quantized, out));
  const Result<reference::Answer> wanted = reference::forward(original);
  if (!wanted.ok()) return wanted.status();
  const Result<reference::Answer> exact = reference::forward(quantized);
  if (!exact.ok()) return exact.status();
  if (wanted->sets.indptr != exact->sets.indptr || wanted->sets.tokens != exact->sets.tokens)
    return invalid("original", "selects other tokens than the quantized problem");
  return AccuracySplit{.kernel = compare(widened(out), exact->output.out),
                       .quantization = compare(exact->output.out, wanted->output.out)};
}

}  // namespace

Result<ErrorMeasure> measure_error(const TensorView& a, const TensorView& b) {
  return guarded([&]() -> Result<ErrorMeasure> {
    TAMIS_RETURN_IF_ERROR(check_values("a", a));
    TAMIS_RETURN_IF_ERROR(check_values("b", b));
    if (a.rank != b.rank || !std::equal(a.shape.begin(), a.shape.begin() + a.rank, b.shape.begin()))
      return invalid("a", "has another shape than b");
    return compare(widened(a), widened(b));
  });
}

Result<AccuracySplit> accuracy_split(const Problem& original, const Problem& quantized,
                                     const TensorView& out) {
  return guarded([&] { return split(original, quantized, out); });
}

}  // namespace tamis
