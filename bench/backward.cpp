#include "backward.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/checks.h"
#include "core/elements.h"
#include "data.h"
#include "tamis/backward.h"
#include "tamis/reference.h"

namespace tamis::bench {
namespace {

// A dense array of its own.
struct Array {
  std::vector<Buffer> memory{};  // one
  MutableTensorView view{};

  Status make(const TensorView& like, DType dtype) {
    Result<Buffer> made = Buffer::make(std::max<int64_t>(64, like.elements() * dtype_bytes(dtype)));
    if (!made.ok()) return made.status();
    memory.push_back(std::move(*made));
    view = mutable_like(like, like.shape[like.rank - 1], memory[0].data(), dtype);
    return {};
  }
  double at(int64_t i) const { return load_float(view, i); }
};

// What a forward of one turn left.
struct Turn {
  IndexSet index;
  BackwardPlan plan;
  Array out, lse;
};

double largest_difference(const Array& got, const std::vector<double>& want) {
  double largest = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double d = std::fabs(got.at(static_cast<int64_t>(i)) - want[i]);
    largest = std::isfinite(d) ? std::max(largest, d) : INFINITY;
  }
  return largest;
}

class BackwardBench {
 public:
  BackwardBench(Session& session, const std::string& name, const Work& work)
      : session_(session), name_(name), work_(work), turns_(work.turns.size()) {}

  Result<Readings> run() {
    TAMIS_RETURN_IF_ERROR(prepare());
    session_.say(name_ + ": measuring");
    const Contender gradients{
        .name = name_, .call = [this](int64_t turn, Parts* parts) {
          BackwardCounters c;
          TAMIS_RETURN_IF_ERROR(differentiate(place(turn), &c));
          *parts = {
              {"clear", c.clear_us}, {"query", c.query_us}, {"transpose", c.transpose_us}, {"key", c.key_us}};
          return Status();
        }};
    const Contender plan{
        .name = name_ + ".plan",
        .call =
            [this](int64_t turn, Parts*) {
              return plan_backward(work_.turns[place(turn)], turns_[place(turn)].index).status();
            },
        .takes_turn = false};
    const Result<std::vector<Series>> series = measure({gradients, plan}, session_.protocol);
    if (!series.ok()) return series.status();
    Readings readings;
    for (const Series& s : *series) readings.push_back(reading_of(s));
    for (Reading& r : readings) r.description = described(session_, work_);
    Reading& all =
        *std::find_if(readings.begin(), readings.end(), [&](const Reading& r) { return r.name == name_; });
    all.flops = work_.flops / 2 * 5;
    all.ceiling = "gemm_f32";
    all.ceiling_us = static_cast<double>(all.flops) / session_.ceilings.gemm_f32_tflop_s * 1e-6;
    all.more["workspace_bytes"] = workspace_[0].bytes();
    session_.say(name_ + ": checking every gradient in float64");
    TAMIS_RETURN_IF_ERROR(check(&all));
    return readings;
  }

 private:
  size_t place(int64_t turn) const { return static_cast<size_t>(turn) % turns_.size(); }

  Status prepare() {
    int64_t workspace = 64;
    for (size_t t = 0; t < turns_.size(); ++t) {
      const Problem& p = work_.turns[t];
      TAMIS_RETURN_IF_ERROR(turns_[t].out.make(p.query.q, p.query.q.dtype));
      TensorView heads = p.query.q;
      heads.rank = 2;
      TAMIS_RETURN_IF_ERROR(turns_[t].lse.make(heads, DType::kF32));
      TAMIS_RETURN_IF_ERROR(forward(p, {}, {.out = turns_[t].out.view, .lse = turns_[t].lse.view},
                                    session_.context, nullptr, &turns_[t].index));
      if (t == 0) {  // gradients have the dtype of what they belong to, as other libraries give them
        TAMIS_RETURN_IF_ERROR(d_q_.make(p.query.q, p.query.q.dtype));
        TAMIS_RETURN_IF_ERROR(d_k_.make(p.cache.k, p.cache.k.dtype));
        TAMIS_RETURN_IF_ERROR(d_v_.make(p.cache.v, p.cache.v.dtype));
      }
      Result<BackwardPlan> plan = plan_backward(p, turns_[t].index);
      if (!plan.ok()) return plan.status();
      turns_[t].plan = std::move(*plan);
      workspace = std::max(workspace, turns_[t].plan.workspace_bytes(gradients()));
    }
    Result<Buffer> made = Buffer::make(workspace);
    if (!made.ok()) return made.status();
    workspace_.push_back(std::move(*made));
    return {};
  }

  GradientView gradients() const { return {.d_q = d_q_.view, .d_k = d_k_.view, .d_v = d_v_.view}; }

  Status differentiate(size_t turn, BackwardCounters* counters) {
    const Turn& t = turns_[turn];
    return run_backward(t.plan, work_.turns[turn], {.lse = t.lse.view, .out = t.out.view}, gradients(),
                        {workspace_[0].data(), static_cast<size_t>(workspace_[0].bytes())}, session_.context,
                        counters);
  }

  Status check(Reading* reading) {
    for (Array* a : {&d_q_, &d_k_, &d_v_})
      memset(a->view.data, 0xFF, static_cast<size_t>(a->view.elements() * dtype_bytes(a->view.dtype)));
    TAMIS_RETURN_IF_ERROR(differentiate(0, nullptr));
    const Problem& p = work_.turns[0];
    const Result<reference::Answer> answer = reference::forward(p);
    if (!answer.ok()) return answer.status();
    const Result<reference::Gradients> want = reference::backward(p, answer->sets, answer->output);
    if (!want.ok()) return want.status();
    reading->max_error = std::max({largest_difference(d_q_, want->d_q), largest_difference(d_k_, want->d_k),
                                   largest_difference(d_v_, want->d_v)});
    reading->checked_rows = p.query.q.shape[0] * p.query.q.shape[1];
    return {};
  }

  Session& session_;
  const std::string name_;
  const Work& work_;
  std::vector<Turn> turns_;
  Array d_q_, d_k_, d_v_;  // shared: one event uses them at a time
  std::vector<Buffer> workspace_;
};

}  // namespace

Result<Readings> backward_readings(Session& session, const std::string& name, const Work& work) {
  return BackwardBench(session, name, work).run();
}

}  // namespace tamis::bench
