// Running a step under guard: outputs poisoned and fenced, a workspace of the exact size full of garbage, and
// the float64 reference as judge.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "attention/plain.h"
#include "core/float_formats.h"
#include "support/expect.h"
#include "support/problems.h"
#include "tamis/attention.h"

namespace tamis::testing {

#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;
#elif defined(__has_feature)
inline constexpr bool kSanitized = __has_feature(address_sanitizer);
#else
inline constexpr bool kSanitized = false;
#endif

// The instruction sets a test goes through. Sanitized code is slow, and all are one source: there the widest
// and the plain one stand for the others.
inline std::vector<std::string> tested_isas() {
  const std::vector<std::string> all = cpu_isas();
  if (!kSanitized || all.size() < 3) return all;
  return {all.front(), all.back()};
}

// What an output array is full of before it is written: NaN between canaries, or -0.0 everywhere, which shows
// an addition of +0.0 too.
enum class Before { kPoison, kMinusZero };

// An output array, canaries before it, behind it and in the gaps of its strides.
class Guarded {
 public:
  Guarded(DType dtype, const std::vector<int64_t>& shape, Placement how = Placement::kDense,
          Before before = Before::kPoison) {
    view_.dtype = dtype;
    view_.rank = static_cast<int>(shape.size());
    const bool gaps = how == Placement::kGaps || how == Placement::kSpread;
    int64_t step = how == Placement::kSpread ? 2 : 1;
    for (int axis = view_.rank - 1; axis >= 0; --axis) {
      view_.shape[axis] = shape[axis];
      view_.stride[axis] = step;
      step = step * shape[axis] + (gaps ? 3 : 0);
    }
    const int64_t size = dtype_bytes(dtype);
    bytes_.assign(2 * kFence + step * size, kCanary);
    if (before == Before::kMinusZero)
      for (int64_t at = 0; at < static_cast<int64_t>(bytes_.size()); ++at)
        bytes_[at] = at % size == size - 1 ? 0x80 : 0;
    int64_t origin = kFence;
    if (how == Placement::kReversed)
      for (int axis = 0; axis < view_.rank; ++axis) {
        origin += std::max<int64_t>(0, shape[axis] - 1) * view_.stride[axis] * size;
        view_.stride[axis] *= -1;
      }
    view_.data = bytes_.data() + origin;
    if (before == Before::kPoison) for_each([&](unsigned char* at) { std::memset(at, 0xFF, size); });
    made_ = bytes_;
  }
  Guarded(const Guarded&) = delete;

  const MutableTensorView& view() const { return view_; }
  bool untouched() const { return bytes_ == made_; }

  // False when a byte that belongs to no element has changed.
  bool fences_stand() const {
    std::vector<unsigned char> now = bytes_;
    const size_t size = static_cast<size_t>(dtype_bytes(view_.dtype));
    for_each(
        [&](unsigned char* at) { std::memcpy(&now[at - bytes_.data()], &made_[at - bytes_.data()], size); });
    return now == made_;
  }

  std::vector<double> values() const {
    std::vector<double> x;
    for_each([&](const unsigned char* at) {
      float f;
      uint16_t h;
      std::memcpy(&h, at, sizeof h);
      if (view_.dtype == DType::kF32)
        std::memcpy(&f, at, sizeof f);
      else
        f = view_.dtype == DType::kF16 ? f16_to_float(h) : bf16_to_float(h);
      x.push_back(f);
    });
    return x;
  }

 private:
  static constexpr int64_t kFence = 128;
  static constexpr unsigned char kCanary = 0xA5;

  template <class F>
  void for_each(const F& f) const {
    if (view_.elements() == 0) return;
    const int64_t size = dtype_bytes(view_.dtype);
    const int last = view_.rank - 1;
    unsigned char* at = static_cast<unsigned char*>(view_.data);
    for (std::array<int64_t, kMaxRank> place{};;) {
      for (int64_t i = 0; i < view_.shape[last]; ++i) f(at + i * view_.stride[last] * size);
      int axis = last - 1;
      for (; axis >= 0; --axis) {
        at += view_.stride[axis] * size;
        if (++place[axis] < view_.shape[axis]) break;
        at -= view_.shape[axis] * view_.stride[axis] * size;
        place[axis] = 0;
      }
      if (axis < 0) return;
    }
  }

  MutableTensorView view_;
  std::vector<unsigned char> bytes_, made_;
};

// A workspace of exactly `bytes` between canaries, full of 0xFF: as float32 that is NaN, as an index -1.
class GuardedWorkspace {
 public:
  explicit GuardedWorkspace(int64_t bytes, unsigned char fill = 0xFF, int64_t shift = 0)
      : room_(bytes + 4 * kFence, kCanary), bytes_(bytes) {
    const uintptr_t at = reinterpret_cast<uintptr_t>(room_.data()) + kFence;
    begin_ = room_.data() + kFence + (64 - at % 64) % 64 + shift;
    std::fill_n(begin_, bytes, fill);
    made_ = room_;
  }
  GuardedWorkspace(const GuardedWorkspace&) = delete;

  std::span<std::byte> span() { return {reinterpret_cast<std::byte*>(begin_), static_cast<size_t>(bytes_)}; }
  bool untouched() const { return room_ == made_; }
  bool fences_stand() const {
    const unsigned char *first = room_.data(), *last = first + room_.size();
    return std::all_of(first, const_cast<const unsigned char*>(begin_),
                       [](auto x) { return x == kCanary; }) &&
           std::all_of(const_cast<const unsigned char*>(begin_) + bytes_, last,
                       [](auto x) { return x == kCanary; });
  }

 private:
  static constexpr int64_t kFence = 128;
  static constexpr unsigned char kCanary = 0xA5;
  std::vector<unsigned char> room_, made_;
  unsigned char* begin_;
  int64_t bytes_;
};

// The left half of the line, stage by stage as a caller of run() goes through it.
struct Steps {
  IndexSet index;
  Bundles bundles;
  Plan plan;
  Schedule schedule;
};

inline Result<Steps> prepare(const Problem& p, const ForwardOptions& options) {
  Steps s;
  NormalizeOptions normalize_options = options.normalize;
  normalize_options.all_blocks |= options.plan.path == Path::kDense;
  Status status = normalize_into(p, normalize_options, &s.index);
  if (!status.ok()) return status;
  Result<Bundles> bundles = bundle(p, s.index, options.bundle);
  if (!bundles.ok()) return bundles.status();
  s.bundles = std::move(*bundles);
  Result<Plan> plan = make_plan(p, capacities_of(p, s.bundles.view()), s.index.view().block, options.plan);
  if (!plan.ok()) return plan.status();
  s.plan = std::move(*plan);
  Result<Schedule> made = schedule(s.plan, s.bundles.view());
  if (!made.ok()) return made.status();
  s.schedule = std::move(*made);
  return s;
}

// Any order of tasks is as good as the first; merges too.
inline Schedule shuffled(Schedule s, uint64_t seed) {
  const auto shuffle = [&seed](auto& x) {
    for (size_t i = x.size(); i > 1; --i) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      std::swap(x[i - 1], x[(seed >> 33) % i]);
    }
  };
  shuffle(s.tasks);
  shuffle(s.merges);
  return s;
}

struct Ran {
  Status status;
  std::vector<double> out, lse;
  RunCounters counters;
  std::string damage;  // what was written that should not have been; empty when all is well
};

inline Ran run_step(const Problem& p, const Steps& s, const Schedule& schedule, Context& context,
                    DType dtype = DType::kF32, Placement how = Placement::kDense) {
  const Result<Shape> shape = describe(p);
  Guarded out(dtype, {shape->total_q, shape->q_heads, shape->v_head_dim}, how);
  Guarded lse(DType::kF32, {shape->total_q, shape->q_heads}, how);
  GuardedWorkspace workspace(partial_bytes(s.plan, schedule));
  Ran r;
  r.status = run(s.plan, p, s.bundles.view(), schedule, {out.view(), lse.view()}, workspace.span(), context,
                 &r.counters);
  r.out = out.values();
  r.lse = lse.values();
  if (!out.fences_stand()) r.damage += "out's fence fell; ";
  if (!lse.fences_stand()) r.damage += "lse's fence fell; ";
  if (!workspace.fences_stand()) r.damage += "the workspace's fence fell; ";
  if (!r.status.ok() && !(out.untouched() && lse.untouched() && workspace.untouched()))
    r.damage += "refused, but something was written; ";
  return r;
}

// All stages. A refusal of an early stage is in `status`.
inline Ran run_all(const Problem& p, const ForwardOptions& options, Context& context,
                   DType dtype = DType::kF32, Placement how = Placement::kDense) {
  const Result<Steps> steps = prepare(p, options);
  if (!steps.ok()) return Ran{steps.status(), {}, {}, {}, {}};
  return run_step(p, *steps, steps->schedule, context, dtype, how);
}

struct Tolerance {
  double out, lse;
};

inline double largest(const std::vector<double>& x) {
  double top = 0;
  for (const double y : x)
    if (std::isfinite(y)) top = std::max(top, std::fabs(y));
  return top;
}

// tests/cases/README.md: twice the plain computation's error, plus 1e-5 of the largest magnitude. Of large
// problems one row in `every` is the yardstick.
inline Tolerance tolerance_of(const Problem& p, const reference::Answer& a, int64_t every = 1) {
  double error = 0;
  const int64_t dim = std::max<int64_t>(1, describe(p)->v_head_dim);
  for (const reference::Output& plain : plain_attention(p, a.sets, every))
    for (size_t i = 0; i < plain.out.size(); ++i)
      if (static_cast<int64_t>(i) / dim % every == 0 && std::isfinite(a.output.out[i]))
        error = std::max(error, std::fabs(plain.out[i] - a.output.out[i]));
  return {2 * error + 1e-5 * largest(a.output.out), 1e-5 * std::max(1.0, largest(a.output.lse))};
}

// The rounding of an output dtype, relative.
inline double rounding_of(DType dtype) {
  return dtype == DType::kF16 ? 0x1p-11 : dtype == DType::kBF16 ? 0x1p-8 : 0;
}

// The first element that is not what it should be; empty when there is none. Infinities must agree, and
// nothing may be NaN that is not in `want`.
inline std::string differs(const std::vector<double>& got, const std::vector<double>& want, double tolerance,
                           double relative = 0) {
  if (got.size() != want.size()) return "other sizes";
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == want[i] || (std::isnan(got[i]) && std::isnan(want[i]))) continue;
    if (std::fabs(got[i] - want[i]) <= tolerance + relative * (std::fabs(want[i]) + 0x1p-14)) continue;
    std::ostringstream text;
    text.precision(9);
    text << "element " << i << " is " << got[i] << ", not " << want[i] << " within " << tolerance;
    return text.str();
  }
  return {};
}

// What is wrong with a run; empty when nothing is.
inline std::string complaint(const Ran& r, const reference::Answer& want, const Tolerance& tolerance,
                             DType dtype = DType::kF32) {
  if (!r.status.ok()) return std::string(code_name(r.status.code())) + ": " + r.status.message();
  if (!r.damage.empty()) return r.damage;
  std::string text = differs(r.out, want.output.out, tolerance.out, rounding_of(dtype));
  if (!text.empty()) return "out: " + text;
  text = differs(r.lse, want.output.lse, tolerance.lse);
  return text.empty() ? text : "lse: " + text;
}

inline std::string unlike(const Ran& a, const Ran& b) {
  if (!a.status.ok() || !b.status.ok()) return "refused: " + a.status.message() + b.status.message();
  if (!same_bits(a.out, b.out)) return std::string("out: ") + same_bits(a.out, b.out).message();
  if (!same_bits(a.lse, b.lse)) return std::string("lse: ") + same_bits(a.lse, b.lse).message();
  return a.damage + b.damage;
}

}  // namespace tamis::testing
