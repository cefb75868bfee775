// Random problems for the device. A problem follows from its number alone, so that one that fails can be run
// again by itself (TAMIS_CUDA_FIRST).
#pragma once

#include <random>

#include "cuda/steps.h"

namespace tamis::testing {

class Dice {
 public:
  explicit Dice(int64_t number) : engine_(static_cast<uint64_t>(number) * 0x9E3779B97F4A7C15u + 1) {}

  int64_t from(int64_t first, int64_t last) {
    return first + static_cast<int64_t>(engine_() % static_cast<uint64_t>(last - first + 1));
  }
  int32_t i32(int64_t first, int64_t last) { return static_cast<int32_t>(from(first, last)); }
  bool one_in(int64_t n) { return from(1, n) == 1; }
  template <class T>
  T of(std::initializer_list<T> values) {
    return values.begin()[from(0, static_cast<int64_t>(values.size()) - 1)];
  }

 private:
  std::mt19937_64 engine_;
};

// Not drawn: two query heads a KV head, pages of 16.
inline Spec small_spec(int64_t dim, std::vector<int32_t> kv_len = {300, 130},
                       std::vector<int32_t> q_len = {40, 3}) {
  return {.kv_len = std::move(kv_len),
          .q_len = std::move(q_len),
          .q_heads = 4,
          .kv_heads = 2,
          .head_dim = dim,
          .v_head_dim = dim,
          .dtype = DType::kBF16,
          .page_size = 16,
          .q = q_noise(4),
          .k = kv_noise(5),
          .v = kv_noise(6)};
}

// In f16: every value is the largest there is, and one key outweighs all others of its row, by what differs
// from row to row.
inline Spec largest_values() {
  Spec s = small_spec(64);
  s.dtype = DType::kF16;
  s.q = [](int64_t i, int64_t h, int64_t d) { return d == 0 ? 2 + 0.2 * noise(1, i, h, d) : 0; };
  s.k = [](int64_t, int64_t t, int64_t, int64_t d) { return d > 0 ? 0 : t == 5 ? 16 : -40; };
  s.v = [](int64_t, int64_t, int64_t, int64_t d) { return d % 2 == 0 ? 65504 : -65504; };
  return s;
}

inline int64_t first_problem() { return number_from("TAMIS_CUDA_FIRST", 0); }

// Sizes over the whole grid of support. `values`: K and V matter, else only where they lie.
inline Spec draw_sizes(Dice& d, bool values) {
  Spec s{.kv_len = {}, .q_len = {}, .q = q_noise(1), .k = kv_noise(2), .v = kv_noise(3)};
  for (int64_t b = d.from(1, 4); b > 0; --b) {
    s.kv_len.push_back(d.one_in(3) ? d.i32(0, 20)
                                   : d.of({63, 64, 65, 127, 128, 129, d.i32(0, 400), d.i32(0, 1100)}));
    s.q_len.push_back(d.one_in(2) ? 1 : d.i32(0, 6));
  }
  if (d.one_in(12)) s.q_len.back() = d.i32(30, 70);
  s.kv_heads = d.of<int64_t>({1, 1, 2, 3});
  s.q_heads = s.kv_heads * d.of<int64_t>({1, 2, 3, 4, 5, 7, 8, 12, 16, 24});
  if (values) {
    s.head_dim = d.of<int64_t>({64, 80, 96, 128, 256, 8 * d.from(1, 32)});
    s.v_head_dim = d.one_in(2) ? s.head_dim : d.of<int64_t>({64, 128, 256, 8 * d.from(1, 32)});
  } else {
    s.head_dim = s.v_head_dim = 64;
  }
  s.dtype = d.of({DType::kF16, DType::kBF16});
  s.page_size = d.of<int64_t>({0, 1, 2, 8, 16, 16, 24, 48, 61, 64, 64, 128, 256, 576});
  s.layout = d.of({Layout::kNHD, Layout::kHND});
  return s;
}

// Padding, duplicates, entries out of range (to be dropped), tokens of the future, runs, in any order.
inline std::vector<int32_t> draw_row(Dice& d, int32_t kv_len, int64_t unit) {
  const int32_t good = kv_len == 0 ? 0 : static_cast<int32_t>((kv_len - 1) / unit);
  std::vector<int32_t> row(d.one_in(5) ? 0 : d.from(0, 40));
  for (int32_t& e : row)
    e = d.one_in(10) ? d.of<int32_t>({-1, -1, -2, INT32_MIN, good + 1, INT32_MAX}) : d.i32(0, good);
  if (d.one_in(2))
    for (int64_t e = d.from(0, good), n = d.from(0, 150); n > 0 && e <= good; --n)
      row.push_back(static_cast<int32_t>(e++));
  for (size_t i = row.size(); i > 1; --i) std::swap(row[i - 1], row[d.from(0, static_cast<int64_t>(i) - 1)]);
  return row;
}

inline void draw_candidates(Dice& d, const Spec& s, TestProblem* t) {
  CandidateView c;
  c.unit = d.of<int64_t>({1, 1, 1, 3, 16, 48, 64, 128});
  c.query_block = d.of<int64_t>({1, 1, 2, 16, 32});
  c.index_heads = d.of<int64_t>({1, s.kv_heads, s.q_heads});
  c.invalid = OnInvalid::kDrop;
  t->problem.candidates = c;
  Rows rows;
  for (size_t b = 0; b < s.q_len.size(); ++b)
    for (int64_t r = (s.q_len[b] + c.query_block - 1) / c.query_block * c.index_heads; r > 0; --r)
      rows.push_back(draw_row(d, s.kv_len[b], c.unit));
  switch (d.from(0, 8)) {
    case 0:
      t->all();
      return;
    case 1:
      t->problem.candidates.form = CandidateForm::kNone;
      return;
    case 2:
    case 3:
    case 4: {
      size_t width = 0;
      for (const auto& row : rows) width = std::max(width, row.size());
      std::vector<int32_t> counts;
      for (auto& row : rows) {
        counts.push_back(static_cast<int32_t>(row.size()));
        row.resize(width, d.one_in(2) ? -77 : 0);  // past the count: whatever
      }
      const bool counted = d.one_in(2);
      if (!counted)
        for (size_t r = 0; r < rows.size(); ++r) std::fill(rows[r].begin() + counts[r], rows[r].end(), -1);
      t->fixed(rows, counted ? counts : std::vector<int32_t>{});
      return;
    }
    case 5:
      t->csr64(rows);
      return;
    default:
      t->csr(rows);
  }
}

inline TestProblem draw_problem(Dice& d, const Spec& s, bool values) {
  TestProblem t(s);
  draw_candidates(d, s, &t);
  t.problem.mask = {.causal = !d.one_in(3),
                    .window = d.one_in(2) ? d.of<int64_t>({1, 3, d.from(0, 200), int64_t{1} << 40}) : 0,
                    .sink = d.one_in(2) ? d.of<int64_t>({1, 4, d.from(0, 100)}) : 0};
  int64_t queries = 0;
  for (const int32_t n : s.q_len) queries += n;
  if (d.one_in(3) && queries > 0) {
    std::vector<int32_t> positions(queries);
    for (int32_t& p : positions) p = d.one_in(6) ? d.i32(-3, 0) : d.i32(0, 420);
    t.q_pos(positions);
  }
  if (s.page_size > 0 && d.one_in(3)) {
    std::vector<uint64_t> stamps(t.slots() / s.page_size);
    for (uint64_t& x : stamps) x = static_cast<uint64_t>(d.from(0, int64_t{1} << 62));
    t.stamps(stamps);
  }
  if (!values) return t;
  if (d.one_in(4)) t.problem.score.softcap = d.of({0.5, 5.0, 50.0});
  if (d.one_in(4)) t.problem.score.scale = d.of({0.0, 0.01, 0.5, -0.125});
  if (d.one_in(4)) {
    std::vector<float> slopes(s.q_heads);
    for (float& x : slopes) x = d.of({0.f, 0.5f, 0.0625f, -0.03125f});
    t.alibi(slopes);
  }
  return t;
}

inline TestProblem draw_problem(Dice& d, bool values) {
  return draw_problem(d, draw_sizes(d, values), values);
}

// More queries; half of them of sizes for which the prefill kernel has boxes.
inline Spec draw_prefill_sizes(Dice& d) {
  Spec s = draw_sizes(d, true);
  if (d.one_in(2)) {
    s.head_dim = d.of<int64_t>({64, 64, 128, 128, 256, 192});
    s.v_head_dim = d.one_in(2) ? s.head_dim : d.of<int64_t>({64, 128});
    s.page_size = d.of<int64_t>({0, 0, 16, 16, 48, 64, 128, 256});
  }
  for (int32_t& n : s.q_len)
    if (d.one_in(2)) n = d.i32(1, 50);
  return s;
}

inline cuda::StepOptions draw_options(Dice& d) {
  cuda::StepOptions o;
  o.block = d.of({0, 0, 16, 32, 64});
  o.plan.path = d.of({Path::kAuto, Path::kDirect, Path::kDirect, Path::kDense});
  o.plan.splits = d.of({0, 0, 1, 2, 3, 8});
  o.plan.batch_invariant = d.one_in(4);
  o.plan.shares = d.of({0, 0, 1, 3, 17});
  o.plan.min_tiles = d.of({0, 1, 2, 8});
  return o;
}

// q, k and v once more, in strides that a kernel of 16-byte loads can follow: the gaps hold NaN.
enum class Strides { kDense, kGaps, kOneTensor };  // kOneTensor: K and V in one, a K row, then a V row

inline Problem arranged(const Problem& p, Strides how, Buffers* keep) {
  Problem out = p;
  const int64_t gap = how == Strides::kDense ? 0 : 8, d = p.cache.k.shape[p.cache.k.rank - 1],
                dv = p.cache.v.shape[p.cache.v.rank - 1];
  const auto lay_out = [&](const TensorView& t, int64_t row, int64_t shift) {
    TensorView to = t;
    int64_t step = row + gap;
    to.stride[t.rank - 1] = 1;
    for (int axis = t.rank - 2; axis >= 0; --axis) {
      to.stride[axis] = step;
      step = step * t.shape[axis] + gap;
    }
    const int64_t size = dtype_bytes(t.dtype), last = t.shape[t.rank - 1];
    if (shift == 0) keep->emplace_back(std::max<int64_t>(1, step) * size, 0xFF);  // NaN
    unsigned char* data = keep->back().data() + shift * size;
    to.data = data;
    const int64_t rows = last == 0 ? 0 : t.elements() / last;
    for (int64_t i = 0; i < rows; ++i) {
      int64_t rest = i, from_at = 0, to_at = 0;
      for (int axis = t.rank - 2; axis >= 0; rest /= t.shape[axis--]) {
        from_at += rest % t.shape[axis] * t.stride[axis];
        to_at += rest % t.shape[axis] * to.stride[axis];
      }
      std::memcpy(data + to_at * size, static_cast<const unsigned char*>(t.data) + from_at * size,
                  last * size);
    }
    return to;
  };
  out.query.q = lay_out(p.query.q, d, 0);
  const bool together = how == Strides::kOneTensor;
  out.cache.k = lay_out(p.cache.k, together ? d + dv : d, 0);
  out.cache.v = lay_out(p.cache.v, together ? d + dv : dv, together ? d : 0);
  return out;
}

}  // namespace tamis::testing
