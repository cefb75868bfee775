// Problems for tests: states sizes, fills arrays, owns them and hands out a tamis::Problem.
//
//   TestProblem t({.kv_len = {8}});                     // one request, one query, paged, K = 0, V[t] = t
//   t.csr({{3, 8, -2}}).problem.candidates.invalid = OnInvalid::kDrop;
//   const auto answer = reference::forward(t.problem);
//
// Everything that no good reader may look at is hostile from the start: slots of K and V that hold no
// committed token and the gaps between strides are NaN, table entries of pages that do not exist are garbage.
// poison_outside() extends that to every slot outside the sets. Physical page order has nothing to do with
// logical order. Options are plain fields of `problem`; set them directly.
#pragma once

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <numeric>
#include <stdexcept>
#include <utility>
#include <vector>

#include "support/numbers.h"
#include "tamis/problem.h"
#include "tamis/reference.h"

namespace tamis::testing {

// How q, k and v lie in memory.
enum class Placement {
  kDense,
  kGaps,         // unused elements after every row, head and page
  kSpread,       // the same, and every other element along the head size
  kReversed,     // all strides negative
  kInterleaved,  // k and v in one buffer, head by head: k's row, then v's; q as kGaps
};

using KvFill = std::function<double(int64_t request, int64_t token, int64_t head, int64_t dim)>;
using QFill = std::function<double(int64_t query, int64_t head, int64_t dim)>;

// A value in [-1, 1), a multiple of 1/64: the same in f32, f16 and bf16.
inline double noise(uint64_t seed, int64_t a, int64_t b, int64_t c, int64_t d = 0) {
  uint64_t x = seed * 0x9E3779B97F4A7C15u;
  for (const int64_t part : {a, b, c, d}) {
    x = (x ^ static_cast<uint64_t>(part)) * 0xBF58476D1CE4E5B9u;
    x ^= x >> 29;
  }
  return static_cast<double>(static_cast<int64_t>(x >> 32 & 127) - 64) / 64;
}

inline KvFill kv_noise(uint64_t seed) {
  return [seed](int64_t b, int64_t t, int64_t h, int64_t d) { return noise(seed, b, t, h, d); };
}
inline QFill q_noise(uint64_t seed) {
  return [seed](int64_t i, int64_t h, int64_t d) { return noise(seed, i, h, d); };
}

struct Spec {
  std::vector<int32_t> kv_len{8};
  std::vector<int32_t> q_len{};  // one query a request when empty
  int64_t q_heads = 1, kv_heads = 1, head_dim = 4, v_head_dim = 4;
  DType dtype = DType::kF32;
  int64_t page_size = 4;                      // 0: contiguous
  std::vector<std::vector<int32_t>> table{};  // as given; else pages dealt in an order of its own
  int64_t pages = 0;                          // at least so many; grows to what the table needs
  int64_t slack = 1;                          // unused rows around each request of a contiguous cache
  Layout layout = Layout::kNHD;
  Placement placement = Placement::kDense;
  QFill q = [](int64_t, int64_t, int64_t) { return 1.0; };
  KvFill k = [](int64_t, int64_t, int64_t, int64_t) { return 0.0; };
  KvFill v = [](int64_t, int64_t t, int64_t, int64_t) { return static_cast<double>(t); };
};

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

  void put_k(int64_t at, int64_t head, int64_t dim, double x) { put(problem.cache.k, at, head, dim, x); }
  void put_v(int64_t at, int64_t head, int64_t dim, double x) { put(problem.cache.v, at, head, dim, x); }
  // The same value in every head and dimension of a slot.
  void put_k(int64_t at, double x) { put_all(problem.cache.k, at, x); }
  void put_v(int64_t at, double x) { put_all(problem.cache.v, at, x); }

  // Fills K and V with `value` in every slot that no set uses.
  void poison_outside(const reference::Sets& sets, double value = kNaN) {
    std::vector<bool> used(slots_, false);
    for (const int64_t at : reference::physical_slots(problem, sets)) used[at] = true;
    for (int64_t at = 0; at < slots_; ++at) {
      if (used[at]) continue;
      put_k(at, value);
      put_v(at, value);
    }
  }

  // Every buffer that q, k and v point into: what a test on another memory has to copy.
  const std::vector<std::vector<unsigned char>>& buffers() const { return buffers_; }

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

  // A view of the given extents over a new buffer, or over the last one at `shift` elements.
  TensorView lay(std::initializer_list<int64_t> shape, Placement how, int64_t row_elements, int64_t shift) {
    TensorView t = dense_view(nullptr, spec_.dtype, shape);
    const bool gaps = how != Placement::kDense && how != Placement::kReversed;
    int64_t step = how == Placement::kSpread ? 2 : 1;
    for (int axis = t.rank - 1; axis >= 0; --axis) {
      t.stride[axis] = step;
      step *= axis == t.rank - 1 && how == Placement::kInterleaved ? row_elements : t.shape[axis];
      if (gaps) step += 3 + axis;
    }
    const int64_t size = dtype_bytes(spec_.dtype);
    if (shift == 0) {
      buffers_.emplace_back(
          std::max<int64_t>(1, step * size));  // an empty vector has no address to count from
      for (int64_t i = 0; i < step; ++i) store(buffers_.back().data(), spec_.dtype, i, kNaN);
    }
    unsigned char* data = buffers_.back().data() + shift * size;
    for (int axis = 0; how == Placement::kReversed && axis < t.rank; ++axis) {
      if (t.shape[axis] > 0) data += (t.shape[axis] - 1) * t.stride[axis] * size;
      t.stride[axis] *= -1;
    }
    t.data = data;
    return t;
  }

  void place() {
    const Placement how = spec_.placement;
    const bool together = how == Placement::kInterleaved;
    problem.query.q =
        lay({cu_q_.back(), spec_.q_heads, spec_.head_dim}, together ? Placement::kGaps : how, 0, 0);
    const int64_t row = spec_.head_dim + spec_.v_head_dim;
    const auto kv = [&](int64_t dim, int64_t shift) {
      const bool hnd = spec_.layout == Layout::kHND;
      const int64_t tokens = spec_.page_size > 0 ? spec_.page_size : slots_;
      const int64_t a = hnd ? spec_.kv_heads : tokens, b = hnd ? tokens : spec_.kv_heads;
      return spec_.page_size > 0 ? lay({pages_, a, b, dim}, how, row, shift)
                                 : lay({a, b, dim}, how, row, shift);
    };
    problem.cache.k = kv(spec_.head_dim, 0);
    problem.cache.v = kv(spec_.v_head_dim, together ? spec_.head_dim : 0);
  }

  void fill() {
    const TensorView& q = problem.query.q;
    for (int64_t i = 0; i < q.shape[0]; ++i)
      for (int64_t h = 0; h < q.shape[1]; ++h)
        for (int64_t d = 0; d < q.shape[2]; ++d)
          store(writable(q), q.dtype, i * q.stride[0] + h * q.stride[1] + d * q.stride[2], spec_.q(i, h, d));
    for (int64_t b = 0; b < count_of(spec_.kv_len); ++b)
      for (int64_t t = 0; t < spec_.kv_len[b]; ++t) {
        const int64_t at = slot(b, t);
        if (at < 0 || at >= slots_) continue;  // a page that the test left out
        for (int64_t h = 0; h < spec_.kv_heads; ++h) {
          for (int64_t d = 0; d < spec_.head_dim; ++d) put_k(at, h, d, spec_.k(b, t, h, d));
          for (int64_t d = 0; d < spec_.v_head_dim; ++d) put_v(at, h, d, spec_.v(b, t, h, d));
        }
      }
  }

  static void* writable(const TensorView& t) { return const_cast<void*>(t.data); }

  void put(const TensorView& t, int64_t at, int64_t head, int64_t dim, double x) {
    const KvStrides stride = kv_strides(t, spec_.layout);
    const int64_t page = spec_.page_size > 0 ? at / spec_.page_size : 0;
    const int64_t token = spec_.page_size > 0 ? at % spec_.page_size : at;
    store(writable(t), t.dtype,
          page * stride.page + token * stride.token + head * stride.head + dim * stride.dim, x);
  }
  void put_all(const TensorView& t, int64_t at, double x) {
    for (int64_t h = 0; h < spec_.kv_heads; ++h)
      for (int64_t d = 0; d < t.shape[t.rank - 1]; ++d) put(t, at, h, d, x);
  }

  Spec spec_;
  int64_t max_pages_ = 0, pages_ = 0, slots_ = 0;
  std::vector<int32_t> cu_q_, cu_kv_, table_, entries_, counts_, indptr32_, q_pos_;
  std::vector<int64_t> indptr64_;
  std::vector<uint64_t> page_stamps_, table_stamps_;
  std::vector<float> slopes_;
  std::vector<std::vector<unsigned char>> buffers_;  // of q, k and v
};

}  // namespace tamis::testing
