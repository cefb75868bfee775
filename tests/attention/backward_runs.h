// Running a backward under guard, as runs.h does a forward.
#pragma once

#include "attention/runs.h"
#include "tamis/backward.h"

namespace tamis::testing {

// What a forward saved, in any dtype and placement.
class Saved {
 public:
  Saved(const Problem& p, const reference::Output& o, DType out_dtype = DType::kF32,
        Placement how = Placement::kDense) {
    const Shape s = *describe(p);
    view_.lse = lay(buffers_, {s.total_q, s.q_heads}, DType::kF32, how, 0, 0);
    view_.out = lay(buffers_, {s.total_q, s.q_heads, s.v_head_dim}, out_dtype, how, 0, 0);
    fill(view_.lse, o.lse);
    fill(view_.out, o.out);
  }
  Saved(const Saved&) = delete;

  const SavedForward& view() const { return view_; }
  SavedForward without_out() const { return {.lse = view_.lse}; }

 private:
  static void fill(const TensorView& t, const std::vector<double>& from) {
    for (int64_t i = 0; i < static_cast<int64_t>(from.size()); ++i) {
      int64_t rest = i, at = 0;
      for (int axis = t.rank - 1; axis >= 0; rest /= t.shape[axis--])
        at += rest % t.shape[axis] * t.stride[axis];
      store(const_cast<void*>(t.data), t.dtype, at, from[i]);
    }
  }

  Buffers buffers_;
  SavedForward view_;
};

struct PlannedBackward {
  IndexSet index;
  BackwardPlan plan;
};

inline Result<PlannedBackward> plan_gradients(const Problem& p, const BackwardOptions& options = {},
                                              const NormalizeOptions& normalize_options = {}) {
  PlannedBackward made;
  const Status status = normalize_into(p, normalize_options, &made.index);
  if (!status.ok()) return status;
  Result<BackwardPlan> plan = plan_backward(p, made.index, options);
  if (!plan.ok()) return plan.status();
  made.plan = std::move(*plan);
  return made;
}

// How gradients are to be stored.
struct Store {
  DType d_q = DType::kF32, d_k = DType::kF32, d_v = DType::kF32;
  Placement how = Placement::kDense;
  Before before = Before::kPoison;
};

struct RanBackward {
  Status status;
  reference::Gradients got;
  BackwardCounters counters;
  std::string damage;
};

// Arrays of a problem's gradients.
struct GradientArrays {
  GradientArrays(const Problem& p, const Store& store)
      : d_q(store.d_q, extents(p.query.q, p), store.how, store.before),
        d_k(store.d_k, extents(p.cache.k, p), store.how, store.before),
        d_v(store.d_v, extents(p.cache.v, p), store.how, store.before) {}

  GradientView view() const { return {d_q.view(), d_k.view(), d_v.view()}; }
  bool untouched() const { return d_q.untouched() && d_k.untouched() && d_v.untouched(); }

  Guarded d_q, d_k, d_v;

 private:
  static std::vector<int64_t> extents(const TensorView& t, const Problem& p) {
    std::vector<int64_t> shape(t.shape.begin(), t.shape.begin() + t.rank);
    const Shape s = *describe(p);
    shape.back() = &t == &p.cache.v ? s.v_head_dim : s.head_dim;
    return shape;
  }
};

inline RanBackward run_gradients(const Problem& p, const BackwardPlan& plan, const SavedForward& saved,
                                 Context& context, const Store& store = {}) {
  GradientArrays arrays(p, store);
  GuardedWorkspace workspace(plan.workspace_bytes(arrays.view()));
  RanBackward r;
  r.status = run_backward(plan, p, saved, arrays.view(), workspace.span(), context, &r.counters);
  r.got = {arrays.d_q.values(), arrays.d_k.values(), arrays.d_v.values()};
  if (!arrays.d_q.fences_stand()) r.damage += "d_q's fence fell; ";
  if (!arrays.d_k.fences_stand()) r.damage += "d_k's fence fell; ";
  if (!arrays.d_v.fences_stand()) r.damage += "d_v's fence fell; ";
  if (!workspace.fences_stand()) r.damage += "the workspace's fence fell; ";
  if (!r.status.ok() && !(arrays.untouched() && workspace.untouched()))
    r.damage += "refused, but something was written; ";
  return r;
}

inline RanBackward all_gradients(const Problem& p, const SavedForward& saved, Context& context,
                                 const BackwardOptions& options = {}, const Store& store = {},
                                 const NormalizeOptions& normalize_options = {}) {
  const Result<PlannedBackward> made = plan_gradients(p, options, normalize_options);
  if (!made.ok()) return RanBackward{made.status(), {}, {}, {}};
  return run_gradients(p, made->plan, saved, context, store);
}

// Everything a judge needs. The gradients are the reference's, over its own forward.
struct Judge {
  explicit Judge(const Problem& problem, DType out_type = DType::kF32)
      : p(problem), out_dtype(out_type), answer(testing::answer(problem)) {
    const Result<reference::Gradients> made = reference::backward(p, answer.sets, answer.output);
    EXPECT_TRUE(made.ok()) << made.status().message();
    if (made.ok()) want = *made;
    tolerance = measure();
    find_used();
  }

  // tests/cases/README.md: twice the plain computation's error, plus 1e-5 of the largest magnitude; and what
  // float32 loses where terms cancel, which may be all there is.
  std::array<double, 3> measure() const {
    std::array<double, 3> error{};
    Gross gross;
    for (const auto& [round_first, round_scores] : {std::pair{false, RoundScores::kNot},
                                                    {false, RoundScores::kWithScale},
                                                    {false, RoundScores::kWithoutScale},
                                                    {true, RoundScores::kWithScale},
                                                    {true, RoundScores::kWithoutScale}}) {
      const bool first = round_scores == RoundScores::kNot;
      const reference::Gradients plain = plain_gradients(p, answer.sets, answer.output, out_dtype,
                                                         round_first, round_scores, first ? &gross : nullptr);
      for (size_t part = 0; part < 3; ++part)
        for (size_t i = 0; i < (want.*kParts[part]).size(); ++i)
          if (std::isfinite((want.*kParts[part])[i]))
            error[part] =
                std::max(error[part], std::fabs((plain.*kParts[part])[i] - (want.*kParts[part])[i]));
    }
    const std::vector<float>* all[] = {&gross.d_q, &gross.d_k, &gross.d_v};
    for (size_t part = 0; part < 3; ++part)
      error[part] = 2 * error[part] + 1e-5 * largest(want.*kParts[part]) +
                    0x1p-22 * largest({all[part]->begin(), all[part]->end()});
    return error;
  }

  // What is wrong with a run; empty when nothing is.
  std::string complaint(const RanBackward& r, const Store& store = {}) const {
    if (!r.status.ok()) return std::string(code_name(r.status.code())) + ": " + r.status.message();
    if (!r.damage.empty()) return r.damage;
    const DType dtypes[] = {store.d_q, store.d_k, store.d_v};
    for (size_t part = 0; part < 3; ++part) {
      std::vector<double> expected = want.*kParts[part];
      for (double& x : expected)
        if (dtypes[part] == DType::kF16 && std::fabs(x) >= 65520) x = std::copysign(kInf, x);
      const std::string text =
          differs(r.got.*kParts[part], expected, tolerance[part], rounding_of(dtypes[part]));
      if (!text.empty()) return std::string(kNames[part]) + ": " + text;
    }
    return not_zero(r.got);
  }

  // Gradients of tokens in no set, for each KV head, and of empty rows are +0, not nearly and not -0.
  std::string not_zero(const reference::Gradients& got) const {
    for (size_t part = 0; part < 3; ++part)
      for (size_t i = 0; i < used[part].size(); ++i) {
        const double x = (got.*kParts[part])[i];
        if (used[part][i] || (x == 0 && !std::signbit(x))) continue;
        return std::string(kNames[part]) + ": element " + std::to_string(i) + " of no set is " +
               std::to_string(x);
      }
    return {};
  }

  // The elements of each gradient that some set reaches.
  void find_used() {
    const Plain plain(p, answer.sets);
    const Shape& s = plain.shape();
    for (size_t part = 0; part < 3; ++part) used[part].assign((want.*kParts[part]).size(), 0);
    const std::vector<int64_t> slots = reference::physical_slots(p, answer.sets);
    for (int64_t row = 0; row < s.total_q * s.q_heads; ++row) {
      const int64_t i = row / s.q_heads, h = row % s.q_heads;
      const int64_t set = i * s.index_heads + h / (s.q_heads / s.index_heads);
      const int64_t begin = answer.sets.indptr[set], end = answer.sets.indptr[set + 1];
      if (begin < end) std::fill_n(used[0].begin() + row * s.head_dim, s.head_dim, 1);
      for (int64_t at = begin; at < end; ++at) {
        std::fill_n(used[1].begin() + plain.place(slots[at], h / s.group, 0, s.head_dim), s.head_dim, 1);
        std::fill_n(used[2].begin() + plain.place(slots[at], h / s.group, 0, s.v_head_dim), s.v_head_dim, 1);
      }
    }
  }

  static constexpr std::vector<double> reference::Gradients::*kParts[] = {
      &reference::Gradients::d_q, &reference::Gradients::d_k, &reference::Gradients::d_v};
  static constexpr const char* kNames[] = {"d_q", "d_k", "d_v"};

  const Problem& p;
  DType out_dtype;  // of the saved output
  reference::Answer answer;
  reference::Gradients want;
  std::array<double, 3> tolerance{};
  std::array<std::vector<char>, 3> used;
};

inline std::string unlike(const RanBackward& a, const RanBackward& b) {
  if (!a.status.ok() || !b.status.ok()) return "refused: " + a.status.message() + b.status.message();
  for (size_t part = 0; part < 3; ++part) {
    const auto same = same_bits(a.got.*Judge::kParts[part], b.got.*Judge::kParts[part]);
    if (!same) return std::string(Judge::kNames[part]) + ": " + same.message();
  }
  return a.damage + b.damage;
}

}  // namespace tamis::testing
