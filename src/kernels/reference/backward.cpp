// docs/semantics.md section 7: gradients over saved sets and LSE, one (query, head) at a time.
//
// With P = exp(s - LSE) and m what dropout makes of an edge's weight: dV gets m P dO, dP = m (dO . v), and
// ds = P (dP - dO . O + dLSE). The slope of the score carries ds on to q and k.
#include <cmath>

#include "core/checks.h"
#include "kernels/reference/edges.h"

namespace tamis::reference {
namespace {

// The gradient of K or V: dense in the layout of the stored tensor, the last extent in numbers, not in codes.
class KvGradient {
 public:
  KvGradient(const TensorView& stored, int64_t dim, Layout layout) {
    TensorView view = stored;
    view.shape[view.rank - 1] = dim;
    for (int axis = view.rank - 1; axis >= 0; --axis) {
      view.stride[axis] = count_;
      const int64_t extent = view.shape[axis];
      if (extent > 0 && count_ > kMostNumbers / extent) too_large_ = true;
      count_ = too_large_ ? 0 : count_ * extent;
    }
    stride_ = kv_strides(view, layout);
  }

  bool too_large() const { return too_large_; }
  void allocate() { numbers_.assign(static_cast<size_t>(count_), 0.0); }

  // Dimension 0 of a place; the others follow.
  double* at(const KvReader::Place& p) {
    return &numbers_[p.page * stride_.page + p.token * stride_.token + p.head * stride_.head];
  }
  std::vector<double> take() { return std::move(numbers_); }

 private:
  int64_t count_ = 1;
  bool too_large_ = false;
  KvStrides stride_{};
  std::vector<double> numbers_;
};

Status check_gradients(const Problem& p) {
  if (!p.gradients.d_out.present()) return invalid("d_out", "tensor is missing, gradients start from it");
  for (const auto& [name, t] : {std::pair{"d_out", &p.gradients.d_out}, {"d_lse", &p.gradients.d_lse}})
    if (t->data == nullptr && t->elements() > 0) return invalid(name, "has elements but no memory");
  return {};
}

Status check_output(const Output& output, const Shape& s) {
  const int64_t rows = s.total_q * s.q_heads, lse = static_cast<int64_t>(output.lse.size()),
                out = static_cast<int64_t>(output.out.size());
  if (lse != rows) return invalid("lse", lse, " numbers for ", rows, " rows");
  if (out != rows * s.v_head_dim) return invalid("out", out, " numbers for ", rows, " rows");
  return {};
}

// What a row's gradients start from.
struct RowGradient {
  std::vector<double> d_out;  // [Dv]
  double d_lse, d_out_out;    // dO . O
};

RowGradient row_gradient(const Reader& r, const Row& row, const double* out) {
  const TensorView &d_out = r.problem.gradients.d_out, &d_lse = r.problem.gradients.d_lse;
  RowGradient g{{}, d_lse.present() ? static_cast<double>(d_lse.at<float>({row.query, row.head})) : 0, 0};
  for (int64_t d = 0; d < r.shape.v_head_dim; ++d) {
    g.d_out.push_back(
        load_float(d_out, row.query * d_out.stride[0] + row.head * d_out.stride[1] + d * d_out.stride[2]));
    g.d_out_out += g.d_out[d] * out[d];
  }
  return g;
}

Result<Gradients> backward_unguarded(const Problem& problem, const Sets& sets, const Output& output) {
  const Result<Shape> shape = describe(problem);
  if (!shape.ok()) return shape.status();
  TAMIS_RETURN_IF_ERROR(check_gradients(problem));
  const Result<Reader> reader = open(problem, sets);
  if (!reader.ok()) return reader.status();
  TAMIS_RETURN_IF_ERROR(check_output(output, *shape));
  const int64_t dim = shape->head_dim, v_dim = shape->v_head_dim, heads = shape->q_heads;
  KvGradient d_k(problem.cache.k, dim, problem.cache.layout),
      d_v(problem.cache.v, v_dim, problem.cache.layout);
  if (d_k.too_large() || d_v.too_large() || shape->total_q * heads > kMostNumbers / dim)
    return Status(Code::kCapacityExceeded,
                  text("memory: the reference holds at most ", kMostNumbers, " numbers of one gradient"));
  d_k.allocate();
  d_v.allocate();
  std::vector<double> d_q(shape->total_q * heads * dim, 0.0);

  for_each_row(*reader, [&](const Row& row) {
    const int64_t at = row.query * heads + row.head;
    const Scores s = scores_of(*reader, row);
    const RowGradient g = row_gradient(*reader, row, &output.out[at * v_dim]);
    for (size_t j = 0; j < row.edges.size(); ++j) {
      const Edge& e = row.edges[j];
      const double weight = std::exp(s.value[j] - output.lse[at]);
      double d_weight = 0;
      if (e.keep != 0) {  // a dropped edge has no share in O, so its value is not looked at
        double* to = d_v.at(e.v);
        double dot = 0;
        for (int64_t d = 0; d < v_dim; ++d) {
          dot += g.d_out[d] * reader->v.at(e.v, d);
          to[d] += e.keep * weight * g.d_out[d];
        }
        d_weight = e.keep * dot;
      }
      const double d_dot = weight * (d_weight - g.d_out_out + g.d_lse) * s.slope[j];
      double* to = d_k.at(e.k);
      for (int64_t d = 0; d < dim; ++d) {
        d_q[at * dim + d] += d_dot * reader->k.at(e.k, d);
        to[d] += d_dot * row.q[d];
      }
    }
  });
  return Gradients{std::move(d_q), d_k.take(), d_v.take()};
}

}  // namespace

Result<Gradients> backward(const Problem& problem, const Sets& sets, const Output& output) {
  return guarded([&] { return backward_unguarded(problem, sets, output); });
}

}  // namespace tamis::reference
