// The same computation done plainly in the dtype of q: dequantized numbers, scores and sums in float32,
// weights and outputs rounded to the dtype. The yardstick of tolerances (tests/cases/README.md).
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "core/float_formats.h"
#include "kernels/reference/dropout.h"
#include "support/numbers.h"
#include "tamis/problem.h"
#include "tamis/reference.h"

namespace tamis::testing {

// `x` as the dtype holds it.
inline float rounded(float x, DType dtype) {
  return dtype == DType::kBF16  ? bf16_to_float(float_to_bf16(x))
         : dtype == DType::kF16 ? f16_to_float(float_to_f16(x))
                                : x;
}

class Plain {
 public:
  Plain(const Problem& p, const reference::Sets& sets)
      : p_(p), s_(*describe(p)), sets_(sets), slots_(reference::physical_slots(p, sets)), used_(slots_) {
    std::sort(used_.begin(), used_.end());
    used_.erase(std::unique(used_.begin(), used_.end()), used_.end());
    for (const int64_t slot : slots_)
      nth_.push_back(std::lower_bound(used_.begin(), used_.end(), slot) - used_.begin());
    k_ = decoded(p.cache.k, p.cache.k_quant, s_.head_dim);
    v_ = decoded(p.cache.v, p.cache.v_quant, s_.v_head_dim);
    for (int64_t i = 0; i < s_.total_q; ++i)
      for (int64_t h = 0; h < s_.q_heads; ++h)
        for (int64_t d = 0; d < s_.head_dim; ++d) q_.push_back(number(p.query.q, i, h, d));
  }

  const Shape& shape() const { return s_; }

  // One query and head: its tokens, and their scores after everything section 5 does to them.
  struct Row {
    int64_t query, head, kv_head, request, position, begin, count;
    std::vector<float> score, slope, cap;  // derivatives: of the score by the dot product, of the soft cap
    std::vector<float> keep;               // 0 or 1 / (1 - p)
  };

  // Rows that hold tokens; of all rows, those without too, one in `every`.
  template <class F>
  void for_each_row(const F& f, int64_t every = 1) const {
    int64_t b = 0;
    for (int64_t i = 0; i < s_.total_q; ++i) {
      while (p_.query.cu_q.at<int32_t>({b + 1}) <= i) ++b;
      const int64_t pos = p_.query.q_pos.present()
                              ? p_.query.q_pos.at<int32_t>({i})
                              : p_.cache.kv_len.at<int32_t>({b}) - p_.query.cu_q.at<int32_t>({b + 1}) + i;
      for (int64_t h = 0; h < s_.q_heads; ++h) {
        if ((i * s_.q_heads + h) % every != 0) continue;
        const int64_t set = i * s_.index_heads + h / (s_.q_heads / s_.index_heads);
        Row row{.query = i,
                .head = h,
                .kv_head = h / s_.group,
                .request = b,
                .position = pos,
                .begin = sets_.indptr[set],
                .count = sets_.indptr[set + 1] - sets_.indptr[set],
                .score = {},
                .slope = {},
                .cap = {},
                .keep = {}};
        if (row.count == 0) continue;
        score(&row);
        f(row);
      }
    }
  }

  int64_t slot(const Row& row, int64_t j) const { return slots_[row.begin + j]; }
  float q(const Row& row, int64_t d) const {
    return q_[(row.query * s_.q_heads + row.head) * s_.head_dim + d];
  }
  float d_out(const Row& row, int64_t d) const { return number(p_.gradients.d_out, row.query, row.head, d); }
  float d_lse(const Row& row) const {
    return p_.gradients.d_lse.present() ? p_.gradients.d_lse.at<float>({row.query, row.head}) : 0;
  }
  float k(const Row& row, int64_t j, int64_t d) const {
    return k_[(nth_[row.begin + j] * s_.kv_heads + row.kv_head) * s_.head_dim + d];
  }
  float v(const Row& row, int64_t j, int64_t d) const {
    return v_[(nth_[row.begin + j] * s_.kv_heads + row.kv_head) * s_.v_head_dim + d];
  }

  // Of (slot, head, dim) in a dense gradient with the axes of k or v.
  size_t place(int64_t slot, int64_t head, int64_t d, int64_t dim) const {
    const int64_t tokens = s_.page_size > 0 ? s_.page_size : s_.kv_rows;
    const int64_t page = slot / tokens, token = slot % tokens;
    const int64_t row = p_.cache.layout == Layout::kNHD ? token * s_.kv_heads + head : head * tokens + token;
    return static_cast<size_t>((page * tokens * s_.kv_heads + row) * dim + d);
  }
  size_t cache_numbers(int64_t dim) const {
    return static_cast<size_t>((s_.page_size > 0 ? s_.pages * s_.page_size : s_.kv_rows) * s_.kv_heads * dim);
  }

 private:
  static float load(const TensorView& t, int64_t at) {
    return static_cast<float>(testing::load(t.data, t.dtype, at));
  }
  static float number(const TensorView& t, int64_t query, int64_t head, int64_t d) {
    return load(t, query * t.stride[0] + head * t.stride[1] + d * t.stride[2]);
  }

  // The slots that sets use, head by head: each number is decoded once, however many rows read it.
  std::vector<float> decoded(const TensorView& t, const Quantization& quant, int64_t dim) const {
    const KvStrides stride = kv_strides(t, p_.cache.layout);
    const bool halves = quant.format == Format::kInt4;
    std::vector<float> numbers;
    numbers.reserve(used_.size() * static_cast<size_t>(s_.kv_heads * dim));
    for (const int64_t slot : used_) {
      const int64_t page = s_.page_size == 0 ? 0 : slot / s_.page_size, token = slot - page * s_.page_size;
      for (int64_t head = 0; head < s_.kv_heads; ++head)
        for (int64_t d = 0; d < dim; ++d) {
          const int64_t at = page * stride.page + token * stride.token + head * stride.head +
                             (halves ? d / 2 : d) * stride.dim;
          if (quant.format == Format::kPlain) {
            numbers.push_back(load(t, at));
            continue;
          }
          int code = static_cast<const unsigned char*>(t.data)[at];
          if (halves) code = d % 2 ? code >> 4 : code & 15;
          numbers.push_back(static_cast<float>(code_values(quant.format)[code]) *
                            scale_of(quant, page, token, head, d));
        }
    }
    return numbers;
  }

  float scale_of(const Quantization& quant, int64_t page, int64_t token, int64_t head, int64_t d) const {
    const TensorView& s = quant.scale;
    const bool hnd = p_.cache.layout == Layout::kHND;
    switch (quant.kind) {
      case ScaleKind::kTensor:
        return s.at<float>({});
      case ScaleKind::kHead:
        return s.at<float>({head});
      case ScaleKind::kPage:
        return s.at<float>({page, head});
      case ScaleKind::kChannel:
        return s.at<float>({head, d});
      case ScaleKind::kPageChannel:
        return s.at<float>({page, head, d});
      case ScaleKind::kToken:
        break;
    }
    const int64_t first = hnd ? head : token, second = hnd ? token : head;
    return s_.page_size == 0 ? s.at<float>({first, second}) : s.at<float>({page, first, second});
  }

  void score(Row* row) const {
    const float scale = static_cast<float>(s_.scale), cap = static_cast<float>(p_.score.softcap);
    for (int64_t j = 0; j < row->count; ++j) {
      const int64_t token = sets_.tokens[row->begin + j];
      float x = 0, slope = scale, of_cap = 1;
      for (int64_t d = 0; d < s_.head_dim; ++d) x += q(*row, d) * k(*row, j, d);
      x *= scale;
      if (cap > 0) {
        const float t = std::tanh(x / cap);
        x = cap * t;
        of_cap = 1 - t * t;
        slope *= of_cap;
      }
      if (p_.score.alibi_slopes.present())
        x -= p_.score.alibi_slopes.at<float>({row->head}) *
             std::fabs(static_cast<float>(row->position - token));
      const Dropout& dropout = p_.dropout;
      const bool kept =
          dropout.p == 0 || reference::keeps(dropout, row->request, row->head, row->position, token);
      row->score.push_back(x);
      row->slope.push_back(slope);
      row->cap.push_back(of_cap);
      row->keep.push_back(kept ? static_cast<float>(1 / (1 - dropout.p)) : 0);
    }
  }

  const Problem& p_;
  const Shape s_;
  const reference::Sets& sets_;
  const std::vector<int64_t> slots_;
  std::vector<int64_t> used_, nth_;  // the slots, each once; where in there the one of an edge is
  std::vector<float> q_, k_, v_;
};

// Weights are rounded after the division by their sum, and before it. Of large problems one row in `every`.
inline std::array<reference::Output, 2> plain_attention(const Problem& p, const reference::Sets& sets,
                                                        int64_t every = 1) {
  const Plain plain(p, sets);
  const Shape& s = plain.shape();
  const DType dtype = p.query.q.dtype;
  const reference::Output none{std::vector<double>(s.total_q * s.q_heads * s.v_head_dim, 0.0),
                               std::vector<double>(s.total_q * s.q_heads, -kInf)};
  std::array<reference::Output, 2> r{none, none};
  const auto compute = [&](const Plain::Row& row) {
    const float top = *std::max_element(row.score.begin(), row.score.end());
    std::vector<float> weight = row.score;
    float sum = 0;
    for (float& y : weight) sum += y = std::exp(y - top);
    const int64_t at = row.query * s.q_heads + row.head;
    for (const bool divide_first : {false, true}) {
      const float before = divide_first ? sum : 1, after = divide_first ? 1 : sum;
      std::vector<float> o(s.v_head_dim, 0.f);
      for (int64_t j = 0; j < row.count; ++j) {
        const float x = rounded(weight[j] * row.keep[j] / before, dtype);
        for (int64_t d = 0; x != 0 && d < s.v_head_dim; ++d) o[d] += x * plain.v(row, j, d);
      }
      r[divide_first].lse[at] = top + std::log(sum);
      for (int64_t d = 0; d < s.v_head_dim; ++d)
        r[divide_first].out[at * s.v_head_dim + d] = rounded(o[d] / after, dtype);
    }
  };
  plain.for_each_row(compute, every);
  return r;
}

// Of plain_gradients, where asked for: the sums of the magnitudes of all terms, each times 1 + |score|. By so
// much, times the rounding of float32, any way to compute them may be off: a weight inherits the absolute
// error of its score, and terms that cancel leave theirs.
struct Gross {
  std::vector<float> d_q, d_k, d_v;
};

// What of the score gradients is rounded to the dtype: nothing, the gradient of the dot product, or that of
// the score, which leaves the scale for later. A rounding can also undo an error, of a saved output that is
// not exact, say; so none of them alone is a yardstick.
enum class RoundScores { kNot, kWithScale, kWithoutScale };

// Gradients over what the forward saved. Weights are rounded to the dtype before they multiply; of the
// weights inside the score gradients, the rounded ones or the others.
inline reference::Gradients plain_gradients(const Problem& p, const reference::Sets& sets,
                                            const reference::Output& saved, DType out_dtype, bool round_first,
                                            RoundScores round_scores, Gross* gross = nullptr) {
  const Plain plain(p, sets);
  const Shape& s = plain.shape();
  const DType dtype = p.query.q.dtype;
  std::vector<float> d_q(s.total_q * s.q_heads * s.head_dim), d_k(plain.cache_numbers(s.head_dim)),
      d_v(plain.cache_numbers(s.v_head_dim));
  if (gross != nullptr) *gross = {d_q, d_k, d_v};
  plain.for_each_row([&](const Plain::Row& row) {
    const int64_t at = row.query * s.q_heads + row.head;
    float delta = -plain.d_lse(row), all_of_delta = std::fabs(delta);
    for (int64_t d = 0; d < s.v_head_dim; ++d) {
      const float term =
          plain.d_out(row, d) * rounded(static_cast<float>(saved.out[at * s.v_head_dim + d]), out_dtype);
      delta += term;
      all_of_delta += std::fabs(term);
    }
    for (int64_t j = 0; j < row.count; ++j) {
      const float exact = std::exp(row.score[j] - static_cast<float>(saved.lse[at]));
      const float weight = rounded(exact * row.keep[j], dtype);
      const size_t to_k = plain.place(plain.slot(row, j), row.kv_head, 0, s.head_dim),
                   to_v = plain.place(plain.slot(row, j), row.kv_head, 0, s.v_head_dim);
      float d_weight = 0, all_of_d_weight = 0;
      for (int64_t d = 0; d < s.v_head_dim && row.keep[j] != 0; ++d) {
        const float term = plain.d_out(row, d) * plain.v(row, j, d);
        d_weight += term;
        all_of_d_weight += std::fabs(term);
        d_v[to_v + d] += weight * plain.d_out(row, d);
      }
      const float p_of_ds = round_first ? rounded(exact, dtype) : exact;
      const float d_score = p_of_ds * (d_weight * row.keep[j] - delta), scale = static_cast<float>(s.scale);
      const float d_dot = round_scores == RoundScores::kNot ? d_score * row.slope[j]
                          : round_scores == RoundScores::kWithScale
                              ? rounded(d_score * row.slope[j], dtype)
                              : rounded(d_score * row.cap[j], dtype) * scale;
      for (int64_t d = 0; d < s.head_dim; ++d) {
        d_q[at * s.head_dim + d] += d_dot * plain.k(row, j, d);
        d_k[to_k + d] += d_dot * plain.q(row, d);
      }
      if (gross == nullptr) continue;
      const float most = exact * (1 + std::fabs(row.score[j]));
      const float d_most = most * (all_of_d_weight * row.keep[j] + all_of_delta) * std::fabs(row.slope[j]);
      for (int64_t d = 0; d < s.head_dim; ++d) {
        gross->d_q[at * s.head_dim + d] += d_most * std::fabs(plain.k(row, j, d));
        gross->d_k[to_k + d] += d_most * std::fabs(plain.q(row, d));
      }
      for (int64_t d = 0; d < s.v_head_dim; ++d)
        gross->d_v[to_v + d] += most * row.keep[j] * std::fabs(plain.d_out(row, d));
    }
  });
  return {{d_q.begin(), d_q.end()}, {d_k.begin(), d_k.end()}, {d_v.begin(), d_v.end()}};
}

}  // namespace tamis::testing
