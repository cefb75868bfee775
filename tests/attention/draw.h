// Random attention problems, small and awkward, and random ways to run them.
#pragma once

#include <rapidcheck.h>

#include "attention/runs.h"

namespace tamis::testing {

inline int pick(int first, int last) { return *rc::gen::inRange(first, last + 1); }

// Lists with padding, duplicates and, where the policy drops them, entries out of range.
inline Rows draw_rows(const Spec& s, const CandidateView& c) {
  Rows rows;
  for (size_t b = 0; b < s.q_len.size(); ++b)
    for (int64_t r = (s.q_len[b] + c.query_block - 1) / c.query_block * c.index_heads; r > 0; --r) {
      const int good = s.kv_len[b] == 0 ? 0 : (s.kv_len[b] - 1) / static_cast<int>(c.unit);
      std::vector<int32_t> row(pick(0, 4) == 0 ? 0 : pick(0, 30));
      for (int32_t& e : row)
        e = pick(0, 9) == 0 ? *rc::gen::element(-1, -2, good + 1, INT32_MAX) : pick(0, good);
      // A run: neighbouring tokens are loaded together.
      if (pick(0, 2) == 0)
        for (int e = pick(0, good), n = pick(0, 100); n > 0 && e <= good; --n) row.push_back(e++);
      rows.push_back(row);
    }
  return rows;
}

inline Spec draw_sizes() {
  Spec s{.kv_len = {}, .q_len = {}, .q = q_noise(1), .k = kv_noise(2), .v = kv_noise(3)};
  for (int b = pick(1, 3); b > 0; --b) {
    s.kv_len.push_back(pick(0, 2) == 0 ? pick(0, 20) : *rc::gen::element(63, 64, 65, 128, 129, pick(0, 300)));
    s.q_len.push_back(pick(0, 5));
  }
  if (pick(0, 7) == 0) s.q_len.back() = pick(30, 60);  // many rows: panels
  s.kv_heads = *rc::gen::element<int64_t>(1, 1, 2, 3);
  s.q_heads = s.kv_heads * *rc::gen::element<int64_t>(1, 2, 3, 5, 8);
  s.head_dim = *rc::gen::element<int64_t>(1, 8, 16, 24, 33, 64, 72, 80, 128, 256);
  s.v_head_dim = pick(0, 1) == 1 ? s.head_dim : *rc::gen::element<int64_t>(1, 7, 8, 24, 40, 72, 128, 256);
  s.dtype = *rc::gen::element(DType::kF32, DType::kF16, DType::kBF16);
  s.page_size = *rc::gen::element<int64_t>(0, 1, 4, 16, 24, 64, 100, 256);
  s.layout = *rc::gen::element(Layout::kNHD, Layout::kHND);
  s.placement = *rc::gen::element(Placement::kDense, Placement::kDense, Placement::kGaps, Placement::kSpread,
                                  Placement::kReversed, Placement::kInterleaved);
  return s;
}

// K and V as codes, each with a format and scales of its own; sometimes only one of them.
inline void draw_formats(const Spec& s, TestProblem* t) {
  const auto draw = [&](int64_t dim, auto quantize) {
    if (pick(0, 3) == 0) return;
    const auto format = *rc::gen::element(Format::kInt8, Format::kFp8E4M3, Format::kFp8E5M2, Format::kInt4);
    const auto kind =
        s.page_size == 0
            ? *rc::gen::element(ScaleKind::kTensor, ScaleKind::kHead, ScaleKind::kChannel, ScaleKind::kToken)
            : *rc::gen::element(ScaleKind::kTensor, ScaleKind::kHead, ScaleKind::kPage, ScaleKind::kChannel,
                                ScaleKind::kPageChannel, ScaleKind::kToken);
    quantize(format == Format::kInt4 && dim % 2 != 0 ? Format::kInt8 : format, kind);
  };
  draw(s.head_dim, [&](Format format, ScaleKind kind) { t->quantize_k(format, kind); });
  draw(s.v_head_dim, [&](Format format, ScaleKind kind) { t->quantize_v(format, kind); });
}

// `plain`: K and V hold numbers that may be NaN, and every edge counts.
inline TestProblem draw_problem(bool plain = false) {
  const Spec s = draw_sizes();
  TestProblem t(s);
  if (!plain && pick(0, 2) == 0) draw_formats(s, &t);
  if (!plain && pick(0, 2) == 0)
    t.problem.dropout = {*rc::gen::element(0.1, 0.5, 0.9), *rc::gen::arbitrary<uint64_t>()};
  CandidateView c;
  c.unit = *rc::gen::element<int64_t>(1, 1, 1, 3, 16, 64);
  c.query_block = *rc::gen::element<int64_t>(1, 1, 2, 3, 64);
  c.index_heads = *rc::gen::element<int64_t>(1, s.kv_heads, s.q_heads);
  c.invalid = OnInvalid::kDrop;
  t.csr(draw_rows(s, c));
  c.form = t.problem.candidates.form;
  c.indptr = t.problem.candidates.indptr;
  c.indices = t.problem.candidates.indices;
  t.problem.candidates = c;
  if (pick(0, 7) == 0) {
    t.problem.candidates.form = *rc::gen::element(CandidateForm::kAll, CandidateForm::kNone);
    t.problem.candidates.indptr = t.problem.candidates.indices = {};
  }
  t.problem.mask = {.causal = pick(0, 2) != 0,
                    .window = pick(0, 1) * *rc::gen::element<int64_t>(1, 3, pick(0, 200), 1 << 30),
                    .sink = pick(0, 1) * *rc::gen::element<int64_t>(1, 4, pick(0, 100))};
  int queries = 0;
  for (const int32_t n : s.q_len) queries += n;
  if (pick(0, 2) == 0 && queries > 0) {
    std::vector<int32_t> positions(queries);
    for (int32_t& p : positions) p = pick(0, 5) == 0 ? pick(-3, 0) : pick(0, 310);
    t.q_pos(positions);
  }
  if (pick(0, 3) == 0) t.problem.score.softcap = *rc::gen::element(0.5, 5.0, 50.0);
  if (pick(0, 3) == 0) t.problem.score.scale = *rc::gen::element(0.0, 0.01, 0.5, -0.125);
  if (pick(0, 3) == 0) {
    std::vector<float> slopes(s.q_heads);
    for (float& x : slopes) x = *rc::gen::element(0.f, 0.5f, 0.0625f, -0.03125f);
    t.alibi(slopes);
  }
  return t;
}

inline ForwardOptions draw_options() {
  ForwardOptions o;
  o.normalize.block = *rc::gen::element(0, 16, 32, 64, 128);
  o.bundle.policy = *rc::gen::element(BundlePolicy::kAuto, BundlePolicy::kRows, BundlePolicy::kHeads,
                                      BundlePolicy::kNeighbours);
  o.bundle.neighbours = pick(1, 5);
  o.plan.path = *rc::gen::element(Path::kDirect, Path::kDirect, Path::kDense);
  o.plan.splits = *rc::gen::element(0, 0, 1, 2, 3, 8);
  o.plan.batch_invariant = pick(0, 3) == 0;
  o.plan.shares = *rc::gen::element(0, 1, 3, 17);
  o.plan.min_tiles = *rc::gen::element(1, 1, 2, 8);
  return o;
}

}  // namespace tamis::testing
