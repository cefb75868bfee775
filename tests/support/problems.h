// Problems for tests: states sizes, fills arrays, owns them and hands out a tamis::Problem.
//
//   TestProblem t({.kv_len = {8}});                     // one request, one query, paged, K = 0, V[t] = t
//   t.csr({{3, 8, -2}}).problem.candidates.invalid = OnInvalid::kDrop;
//   const auto answer = reference::forward(t.problem);
//   t.d_out(q_noise(1)).quantize_k(Format::kInt8, ScaleKind::kPage);
//
// Everything that no good reader may look at is hostile from the start: slots of K and V that hold no
// committed token and the gaps between strides are NaN (where codes hold none: the largest code), and so are
// scales of nothing; table entries of pages that do not exist are garbage. poison_outside() extends that to
// every slot outside the sets. Physical page order has nothing to do with
// logical order. Options are plain fields of `problem`; set them directly.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <numeric>
#include <stdexcept>
#include <utility>
#include <vector>

#include "support/buffers.h"
#include "support/numbers.h"
#include "support/spec.h"
#include "tamis/problem.h"
#include "tamis/reference.h"

namespace tamis::testing {

using Rows = std::vector<std::vector<int32_t>>;

class TestProblem {
 public:
  explicit TestProblem(Spec s) : spec_(std::move(s)) {
    if (spec_.q_len.empty()) spec_.q_len.assign(spec_.kv_len.size(), 1);
    cu_q_ = {0};
    for (const int32_t n : spec_.q_len) cu_q_.push_back(cu_q_.back() + n);
    const int64_t requests = static_cast<int64_t>(spec_.kv_len.size());
    problem.query.cu_q = dense_view(cu_q_.data(), DType::kI32, {requests + 1});
    problem.cache.kv_len = dense_view(spec_.kv_len.data(), DType::kI32, {requests});
    problem.cache.layout = spec_.layout;
    spec_.page_size > 0 ? make_table() : make_rows();
    place();
    fill();
  }
  TestProblem(const TestProblem&) = delete;  // the views point into the vectors, which may move but not copy
  TestProblem(TestProblem&&) = default;

  Problem problem;

  // Candidate rows. `csr` has i32 offsets, `csr64` i64 ones.
  TestProblem& csr(const Rows& rows) {
    list(rows, CandidateForm::kCsr);
    indptr32_ = {0};
    for (const auto& row : rows) indptr32_.push_back(indptr32_.back() + static_cast<int32_t>(row.size()));
    problem.candidates.indptr = dense_view(indptr32_.data(), DType::kI32, {count_of(indptr32_)});
    return *this;
  }
  TestProblem& csr64(const Rows& rows) {
    list(rows, CandidateForm::kCsr);
    indptr64_ = {0};
    for (const auto& row : rows) indptr64_.push_back(indptr64_.back() + static_cast<int64_t>(row.size()));
    problem.candidates.indptr = dense_view(indptr64_.data(), DType::kI64, {count_of(indptr64_)});
    return *this;
  }
  // Fixed width: all rows are equally long; `counts` may be empty.
  TestProblem& fixed(const Rows& rows, std::vector<int32_t> counts = {}) {
    const int64_t width = rows.empty() ? 0 : count_of(rows.front());
    for (const auto& row : rows)
      if (count_of(row) != width) throw std::logic_error("rows of one width");
    list(rows, CandidateForm::kFixedWidth);
    problem.candidates.indices = dense_view(entries_.data(), DType::kI32, {count_of(rows), width});
    counts_ = std::move(counts);
    if (!counts_.empty())
      problem.candidates.count = dense_view(counts_.data(), DType::kI32, {count_of(counts_)});
    return *this;
  }
  TestProblem& all() {
    problem.candidates.form = CandidateForm::kAll;
    return *this;
  }

  TestProblem& q_pos(std::vector<int32_t> positions) {
    q_pos_ = std::move(positions);
    problem.query.q_pos = dense_view(q_pos_.data(), DType::kI32, {count_of(q_pos_)});
    return *this;
  }
  TestProblem& alibi(std::vector<float> slopes) {
    slopes_ = std::move(slopes);
    problem.score.alibi_slopes = dense_view(slopes_.data(), DType::kF32, {count_of(slopes_)});
    return *this;
  }
  // Gradients of the output; in the placement of q.
  TestProblem& d_out(const QFill& fill, DType dtype = DType::kF32) {
    TensorView& t = problem.gradients.d_out;
    t = lay({cu_q_.back(), spec_.q_heads, spec_.v_head_dim}, dtype, apart());
    put_rows(t, fill);
    return *this;
  }
  TestProblem& d_lse(const RowFill& fill) {
    TensorView& t = problem.gradients.d_lse;
    t = lay({cu_q_.back(), spec_.q_heads}, DType::kF32, apart());
    for (int64_t i = 0; i < t.shape[0]; ++i)
      for (int64_t h = 0; h < t.shape[1]; ++h)
        store(writable(t), t.dtype, i * t.stride[0] + h * t.stride[1], fill(i, h));
    return *this;
  }

  // Stores K (V) anew as codes: what the fill says, to the nearest code, under scales that are powers of two,
  // so that k_at() fits an f32. Each scale of the given kind is the same at every call.
  TestProblem& quantize_k(Format format, ScaleKind kind) { return quantize(k(), format, kind); }
  TestProblem& quantize_v(Format format, ScaleKind kind) { return quantize(v(), format, kind); }
  // The scale that a number uses, and its code alone.
  float& k_scale(int64_t at, int64_t head, int64_t dim) { return scale(k(), at, head, dim); }
  float& v_scale(int64_t at, int64_t head, int64_t dim) { return scale(v(), at, head, dim); }
  void put_k_code(int64_t at, int64_t head, int64_t dim, int code) { put_code(k(), at, head, dim, code); }
  void put_v_code(int64_t at, int64_t head, int64_t dim, int code) { put_code(v(), at, head, dim, code); }

  // Stamps of the physical pages; each table entry that names a page gets that page's stamp.
  TestProblem& stamps(std::vector<uint64_t> pages) {
    page_stamps_ = std::move(pages);
    table_stamps_.clear();
    for (const int32_t page : table_)
      table_stamps_.push_back(page >= 0 && page < count_of(page_stamps_) ? page_stamps_[page] : 0xBAD);
    problem.cache.page_stamps = dense_view(page_stamps_.data(), DType::kU64, {count_of(page_stamps_)});
    problem.cache.table_stamps =
        dense_view(table_stamps_.data(), DType::kU64, {count_of(spec_.kv_len), max_pages_});
    return *this;
  }

  // The arrays themselves, for tests that bend them.
  std::vector<int32_t>& cu_q() { return cu_q_; }
  std::vector<int32_t>& kv_len() { return spec_.kv_len; }
  std::vector<int32_t>& cu_kv() { return cu_kv_; }
  std::vector<int32_t>& indptr32() { return indptr32_; }
  std::vector<int64_t>& indptr64() { return indptr64_; }
  int32_t& table(int64_t request, int64_t page) { return table_[request * max_pages_ + page]; }
  uint64_t& table_stamp(int64_t request, int64_t page) { return table_stamps_[request * max_pages_ + page]; }

  // Where token t of a request is: page * P + offset, or the row of a contiguous cache.
  int64_t slot(int64_t request, int64_t t) {
    if (spec_.page_size == 0) return cu_kv_[request] + t;
    return table(request, t / spec_.page_size) * spec_.page_size + t % spec_.page_size;
  }
  int64_t slots() const { return slots_; }

  // The number itself: for codes the one nearest to x under the scale there.
  void put_k(int64_t at, int64_t head, int64_t dim, double x) { put(k(), at, head, dim, x); }
  void put_v(int64_t at, int64_t head, int64_t dim, double x) { put(v(), at, head, dim, x); }
  // The same value in every head and dimension of a slot.
  void put_k(int64_t at, double x) { put_all(k(), at, x); }
  void put_v(int64_t at, double x) { put_all(v(), at, x); }
  // What is stored: for codes, code * scale.
  double k_at(int64_t at, int64_t head, int64_t dim) { return get(k(), at, head, dim); }
  double v_at(int64_t at, int64_t head, int64_t dim) { return get(v(), at, head, dim); }
  void put_q(int64_t query, int64_t head, int64_t dim, double x) {
    const TensorView& q = problem.query.q;
    store(writable(q), q.dtype, query * q.stride[0] + head * q.stride[1] + dim * q.stride[2], x);
  }

  // Where a gradient of K (V) is in a dense array with the axes of k (v) and the last extent D (Dv).
  size_t in_d_k(int64_t at, int64_t head, int64_t dim) { return in_gradient(k(), at, head, dim); }
  size_t in_d_v(int64_t at, int64_t head, int64_t dim) { return in_gradient(v(), at, head, dim); }

  // Fills K and V with `value` in every slot that no set uses, and every scale that only such slots use.
  void poison_outside(const reference::Sets& sets, double value = kNaN) {
    std::vector<bool> used(slots_, false);
    for (const int64_t at : reference::physical_slots(problem, sets)) used[at] = true;
    for (int64_t at = 0; at < slots_; ++at) {
      if (used[at]) continue;
      put_k(at, value);
      put_v(at, value);
      const int64_t page = spec_.page_size > 0 ? at / spec_.page_size * spec_.page_size : 0;
      const bool page_used =
          spec_.page_size == 0 ||
          std::any_of(used.begin() + page, used.begin() + page + spec_.page_size, [](bool x) { return x; });
      for (const Kv& kv : {k(), v()}) poison_scales(kv, at, page_used, value);
    }
  }

  // Every buffer that q, k, v, scales and gradients point into: what a test on another memory has to copy.
  const Buffers& buffers() const { return buffers_; }

 private:
  template <class T>
  static int64_t count_of(const std::vector<T>& x) {
    return static_cast<int64_t>(x.size());
  }

  void list(const Rows& rows, CandidateForm form) {
    entries_.clear();
    for (const auto& row : rows) entries_.insert(entries_.end(), row.begin(), row.end());
    problem.candidates.form = form;
    problem.candidates.indptr = problem.candidates.count = {};
    problem.candidates.indices = dense_view(entries_.data(), DType::kI32, {count_of(entries_)});
  }

  void make_table() {
    const int64_t page = spec_.page_size;
    const auto pages_of = [&](int32_t n) { return (n + page - 1) / page; };
    int64_t needed = 0;
    for (const int32_t n : spec_.kv_len) {
      needed += pages_of(n);
      max_pages_ = std::max(max_pages_, pages_of(n));
    }
    if (spec_.table.empty()) {
      ++max_pages_;  // a column that belongs to nobody
      pages_ = std::max(spec_.pages, needed + 1);
      int64_t step = pages_ / 2 + 1;  // a walk over all pages that is no walk in order
      while (std::gcd(step, pages_) != 1) ++step;
      int64_t next = 0;
      for (const int32_t n : spec_.kv_len)
        for (int64_t i = 0; i < max_pages_; ++i)
          table_.push_back(i < pages_of(n) ? static_cast<int32_t>(++next * step % pages_)
                           : i % 2         ? 99999
                                           : -7);
    } else {
      max_pages_ = count_of(spec_.table.front());
      pages_ = spec_.pages;
      for (const auto& row : spec_.table) table_.insert(table_.end(), row.begin(), row.end());
      if (spec_.pages == 0)
        for (const int32_t entry : table_) pages_ = std::max<int64_t>(pages_, int64_t{entry} + 1);
    }
    slots_ = pages_ * page;
    problem.cache.page_table = dense_view(table_.data(), DType::kI32, {count_of(spec_.kv_len), max_pages_});
  }

  void make_rows() {
    cu_kv_ = {static_cast<int32_t>(spec_.slack)};
    for (const int32_t n : spec_.kv_len)
      cu_kv_.push_back(cu_kv_.back() + n + static_cast<int32_t>(spec_.slack));
    slots_ = cu_kv_.back() + spec_.slack;
    problem.cache.cu_kv = dense_view(cu_kv_.data(), DType::kI32, {count_of(cu_kv_)});
  }

  TensorView lay(std::initializer_list<int64_t> shape, DType dtype, Placement how, int64_t row_elements = 0,
                 int64_t shift = 0) {
    return testing::lay(buffers_, shape, dtype, how, row_elements, shift);
  }

  // For what has a buffer of its own.
  Placement apart() const {
    return spec_.placement == Placement::kInterleaved ? Placement::kGaps : spec_.placement;
  }

  TensorView lay_kv(int64_t last, DType dtype, Placement how, int64_t row = 0, int64_t shift = 0) {
    const bool hnd = spec_.layout == Layout::kHND;
    const int64_t tokens = spec_.page_size > 0 ? spec_.page_size : slots_;
    const int64_t a = hnd ? spec_.kv_heads : tokens, b = hnd ? tokens : spec_.kv_heads;
    return spec_.page_size > 0 ? lay({pages_, a, b, last}, dtype, how, row, shift)
                               : lay({a, b, last}, dtype, how, row, shift);
  }

  void place() {
    const bool together = spec_.placement == Placement::kInterleaved;
    const int64_t row = spec_.head_dim + spec_.v_head_dim;
    problem.query.q = lay({cu_q_.back(), spec_.q_heads, spec_.head_dim}, spec_.dtype, apart());
    problem.cache.k = lay_kv(spec_.head_dim, spec_.dtype, spec_.placement, row);
    problem.cache.v =
        lay_kv(spec_.v_head_dim, spec_.dtype, spec_.placement, row, together ? spec_.head_dim : 0);
  }

  void put_rows(const TensorView& t, const QFill& fill) {
    for (int64_t i = 0; i < t.shape[0]; ++i)
      for (int64_t h = 0; h < t.shape[1]; ++h)
        for (int64_t d = 0; d < t.shape[2]; ++d)
          store(writable(t), t.dtype, i * t.stride[0] + h * t.stride[1] + d * t.stride[2], fill(i, h, d));
  }

  // K or V.
  struct Kv {
    TensorView* stored;
    Quantization* quant;
    const KvFill* fill;
    int64_t dim;
  };
  Kv k() { return {&problem.cache.k, &problem.cache.k_quant, &spec_.k, spec_.head_dim}; }
  Kv v() { return {&problem.cache.v, &problem.cache.v_quant, &spec_.v, spec_.v_head_dim}; }

  // Calls f(request, token, slot, head, dim) for every committed number.
  template <class F>
  void for_each_number(const Kv& kv, const F& f) {
    for (int64_t b = 0; b < count_of(spec_.kv_len); ++b)
      for (int64_t t = 0; t < spec_.kv_len[b]; ++t) {
        const int64_t at = slot(b, t);
        if (at < 0 || at >= slots_) continue;  // a page that the test left out
        for (int64_t h = 0; h < spec_.kv_heads; ++h)
          for (int64_t d = 0; d < kv.dim; ++d) f(b, t, at, h, d);
      }
  }

  void fill() {
    put_rows(problem.query.q, spec_.q);
    for (const Kv& kv : {k(), v()}) fill(kv);
  }
  void fill(const Kv& kv) {
    for_each_number(kv, [&](int64_t b, int64_t t, int64_t at, int64_t h, int64_t d) {
      put(kv, at, h, d, (*kv.fill)(b, t, h, d));
    });
  }

  TestProblem& quantize(const Kv& kv, Format format, ScaleKind kind) {
    const bool halves = format == Format::kInt4;
    if (halves && kv.dim % 2) throw std::logic_error("int4 needs an even head size");
    const DType dtype = format == Format::kInt8      ? DType::kI8
                        : format == Format::kFp8E4M3 ? DType::kF8E4M3
                        : format == Format::kFp8E5M2 ? DType::kF8E5M2
                                                     : DType::kU8;
    *kv.stored = lay_kv(halves ? kv.dim / 2 : kv.dim, dtype, apart());
    const int hostile = nearest_code(format, kNaN);
    std::fill(buffers_.back().begin(), buffers_.back().end(),
              static_cast<unsigned char>(halves ? hostile * 17 : hostile));
    *kv.quant = {format, kind, lay_scale(*kv.stored, kv.dim, kind)};
    const double unit = format == Format::kInt8 ? 0x1p-6 : halves ? 0x1p-2 : 1;
    for_each_number(kv, [&](int64_t b, int64_t t, int64_t at, int64_t h, int64_t d) {
      const bool page = kind == ScaleKind::kPage || kind == ScaleKind::kPageChannel,
                 channel = kind == ScaleKind::kChannel || kind == ScaleKind::kPageChannel;
      int64_t which = kind == ScaleKind::kTensor ? 0 : h;  // the indices that the kind has, and no others
      if (page) which += 2 * page_of(at);
      if (channel) which += d;
      if (kind == ScaleKind::kToken) which += b + t;
      scale(kv, at, h, d) = static_cast<float>(std::ldexp(unit, -static_cast<int>(which % 3)));
    });
    fill(kv);
    return *this;
  }

  TensorView lay_scale(const TensorView& codes, int64_t dim, ScaleKind kind) {
    const int64_t heads = spec_.kv_heads;
    const auto new_scale = [&](std::initializer_list<int64_t> shape) {
      return lay(shape, DType::kF32, apart());
    };
    switch (kind) {
      case ScaleKind::kTensor:
        return new_scale({});
      case ScaleKind::kHead:
        return new_scale({heads});
      case ScaleKind::kPage:
        return new_scale({pages_, heads});
      case ScaleKind::kChannel:
        return new_scale({heads, dim});
      case ScaleKind::kPageChannel:
        return new_scale({pages_, heads, dim});
      case ScaleKind::kToken:
        break;
    }
    return codes.rank == 4 ? new_scale({codes.shape[0], codes.shape[1], codes.shape[2]})
                           : new_scale({codes.shape[0], codes.shape[1]});
  }

  float& scale(const Kv& kv, int64_t at, int64_t head, int64_t dim) {
    const TensorView& s = kv.quant->scale;
    const int64_t page = page_of(at), token = token_of(at);
    const bool hnd = spec_.layout == Layout::kHND, paged = spec_.page_size > 0;
    const int64_t first = hnd ? head : token, second = hnd ? token : head;
    const auto at_place = [&](std::initializer_list<int64_t> place) -> float& {
      return const_cast<float&>(s.at<float>(place));
    };
    switch (kv.quant->kind) {
      case ScaleKind::kTensor:
        return at_place({});
      case ScaleKind::kHead:
        return at_place({head});
      case ScaleKind::kPage:
        return at_place({page, head});
      case ScaleKind::kChannel:
        return at_place({head, dim});
      case ScaleKind::kPageChannel:
        return at_place({page, head, dim});
      case ScaleKind::kToken:
        break;
    }
    return paged ? at_place({page, first, second}) : at_place({first, second});
  }

  void poison_scales(const Kv& kv, int64_t at, bool page_used, double value) {
    if (kv.quant->format == Format::kPlain) return;
    const ScaleKind kind = kv.quant->kind;
    const bool of_page = kind == ScaleKind::kPage || kind == ScaleKind::kPageChannel;
    if (kind != ScaleKind::kToken && (!of_page || page_used)) return;
    for (int64_t h = 0; h < spec_.kv_heads; ++h)
      for (int64_t d = 0; d < kv.dim; ++d) scale(kv, at, h, d) = static_cast<float>(value);
  }

  int64_t page_of(int64_t at) const { return spec_.page_size > 0 ? at / spec_.page_size : 0; }
  int64_t token_of(int64_t at) const { return spec_.page_size > 0 ? at % spec_.page_size : at; }

  // Of element `dim` of the stored tensor.
  int64_t offset(const Kv& kv, int64_t at, int64_t head, int64_t dim) const {
    const KvStrides stride = kv_strides(*kv.stored, spec_.layout);
    return page_of(at) * stride.page + token_of(at) * stride.token + head * stride.head + dim * stride.dim;
  }
  size_t in_gradient(const Kv& kv, int64_t at, int64_t head, int64_t dim) const {
    const int64_t tokens = spec_.page_size > 0 ? spec_.page_size : slots_, heads = spec_.kv_heads;
    const int64_t row =
        spec_.layout == Layout::kNHD ? token_of(at) * heads + head : head * tokens + token_of(at);
    return static_cast<size_t>((page_of(at) * tokens * heads + row) * kv.dim + dim);
  }

  // The byte that holds a code; int4 has two in one.
  unsigned char& code_byte(const Kv& kv, int64_t at, int64_t head, int64_t dim) const {
    const int64_t of_stored = kv.quant->format == Format::kInt4 ? dim / 2 : dim;
    return static_cast<unsigned char*>(writable(*kv.stored))[offset(kv, at, head, of_stored)];
  }
  void put_code(const Kv& kv, int64_t at, int64_t head, int64_t dim, int code) {
    unsigned char& byte = code_byte(kv, at, head, dim);
    if (kv.quant->format != Format::kInt4) {
      byte = static_cast<unsigned char>(code);
    } else {
      byte = static_cast<unsigned char>(dim % 2 ? (byte & 0x0F) | (code & 15) << 4
                                                : (byte & 0xF0) | (code & 15));
    }
  }

  void put(const Kv& kv, int64_t at, int64_t head, int64_t dim, double x) {
    if (kv.quant->format == Format::kPlain)
      return store(writable(*kv.stored), kv.stored->dtype, offset(kv, at, head, dim), x);
    const double by = static_cast<double>(scale(kv, at, head, dim));
    put_code(kv, at, head, dim, nearest_code(kv.quant->format, x / by));
  }
  double get(const Kv& kv, int64_t at, int64_t head, int64_t dim) {
    if (kv.quant->format == Format::kPlain)
      return load(kv.stored->data, kv.stored->dtype, offset(kv, at, head, dim));
    int code = code_byte(kv, at, head, dim);
    if (kv.quant->format == Format::kInt4) code = dim % 2 ? code >> 4 : code & 15;
    return code_values(kv.quant->format)[code] * static_cast<double>(scale(kv, at, head, dim));
  }
  void put_all(const Kv& kv, int64_t at, double x) {
    for (int64_t h = 0; h < spec_.kv_heads; ++h)
      for (int64_t d = 0; d < kv.dim; ++d) put(kv, at, h, d, x);
  }

  static void* writable(const TensorView& t) { return const_cast<void*>(t.data); }

  Spec spec_;
  int64_t max_pages_ = 0, pages_ = 0, slots_ = 0;
  std::vector<int32_t> cu_q_, cu_kv_, table_, entries_, counts_, indptr32_, q_pos_;
  std::vector<int64_t> indptr64_;
  std::vector<uint64_t> page_stamps_, table_stamps_;
  std::vector<float> slopes_;
  Buffers buffers_;  // of all that has strides
};

}  // namespace tamis::testing
