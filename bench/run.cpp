#include "run.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "check.h"
#include "core/checks.h"
#include "data.h"

namespace tamis::bench {
namespace {

using Clock = std::chrono::steady_clock;

double microseconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::micro>(to - from).count();
}

// Names the series of one case; the order is that of the record.
struct Names {
  std::string attend, reader, normalize, plan, whole;
  explicit Names(const std::string& name)
      : attend(name),
        reader(name + ".reader"),
        normalize(name + ".normalize"),
        plan(name + ".plan"),
        whole(name + ".whole") {}
};

class AttentionBench {
 public:
  AttentionBench(Session& session, const std::string& name, const Work& work, Path path)
      : session_(session), names_(name), work_(work), path_(path), steps_(work.turns.size()) {}

  Result<Readings> run() {
    if (Status s = prepare(); !s.ok()) return s;
    std::vector<Contender> contenders{attend(), normalize(), plan(), whole()};
    if (!work_.reads.empty()) {
      session_.say(names_.attend + ": prefetch distance of the reader");
      const Result<int64_t> distance = best_distance(work_, session_.context);
      if (!distance.ok()) return distance.status();
      distance_ = *distance;
      contenders.push_back(reader(work_, names_.reader, distance_, session_.context));
    }
    session_.say(names_.attend + ": measuring");
    const Result<std::vector<Series>> series = measure(contenders, session_.protocol);
    if (!series.ok()) return series.status();
    session_.say(names_.attend + ": checking");
    return fill_in(*series);
  }

 private:
  const Problem& problem(int64_t turn) const { return work_.turns[place(turn)]; }
  size_t place(int64_t turn) const { return static_cast<size_t>(turn) % work_.turns.size(); }

  // Every turn's step, made once; the outputs and the workspace are shared, one event uses them at a time.
  Status prepare() {
    int64_t workspace = 64;
    for (size_t t = 0; t < steps_.size(); ++t) {
      TAMIS_RETURN_IF_ERROR(normalize_step(work_.turns[t], path_, &steps_[t]));
      TAMIS_RETURN_IF_ERROR(plan_step(work_.turns[t], path_, &steps_[t]));
      workspace = std::max(workspace, partial_bytes(steps_[t].plan, steps_[t].schedule));
    }
    const TensorView& q = work_.turns[0].query.q;
    for (const auto& [buffer, bytes] : {std::pair{&workspace_, workspace},
                                        {&out_, q.elements() * dtype_bytes(q.dtype)},
                                        {&lse_, q.shape[0] * q.shape[1] * int64_t{4}}}) {
      Result<Buffer> made = Buffer::make(bytes);
      if (!made.ok()) return made.status();
      buffer->push_back(std::move(*made));
    }
    // The result has q's dtype, as other libraries give it.
    view_ = {.out = mutable_view(out_[0].data(), q.dtype, {q.shape[0], q.shape[1], q.shape[2]}),
             .lse = mutable_view(lse_[0].data(), DType::kF32, {q.shape[0], q.shape[1]})};
    return {};
  }

  Status run_step(int64_t turn, const Step& step, RunCounters* counters) {
    return tamis::run(step.plan, problem(turn), step.bundles.view(), step.schedule, view_,
                      {workspace_[0].data(), static_cast<size_t>(workspace_[0].bytes())}, session_.context,
                      counters);
  }

  Contender attend() {
    return {.name = names_.attend, .call = [this](int64_t turn, Parts* parts) {
              RunCounters counters;
              TAMIS_RETURN_IF_ERROR(run_step(turn, steps_[place(turn)], &counters));
              *parts = {{"attention", counters.attention_us}, {"merge", counters.merge_us}};
              return Status();
            }};
  }

  Contender normalize() {
    return {.name = names_.normalize,
            .call = [this](int64_t turn, Parts*) { return normalize_step(problem(turn), path_, &own_); },
            .takes_turn = false};
  }

  Contender plan() {
    return {
        .name = names_.plan,
        .call = [this](int64_t turn,
                       Parts* parts) { return plan_step(problem(turn), path_, &steps_[place(turn)], parts); },
        .takes_turn = false};
  }

  Contender whole() {
    return {.name = names_.whole, .call = [this](int64_t turn, Parts*) {
              TAMIS_RETURN_IF_ERROR(normalize_step(problem(turn), path_, &entire_));
              TAMIS_RETURN_IF_ERROR(plan_step(problem(turn), path_, &entire_));
              return run_step(turn, entire_, nullptr);
            }};
  }

  // Runs `contender` once more, on poisoned outputs, and lets the reference judge it.
  Status check(const Contender& contender, int64_t turn, Reading* reading) {
    memset(out_[0].data(), 0xFF, out_[0].bytes());
    Parts parts;
    TAMIS_RETURN_IF_ERROR(contender.call(turn, &parts));
    const Result<Judged> judged = judge(problem(turn), view_.out, work_.judged);
    if (!judged.ok()) return judged.status();
    reading->max_error = judged->max_error;
    reading->checked_rows = judged->rows;
    return {};
  }

  Result<Readings> fill_in(const std::vector<Series>& series) {
    Readings readings;
    for (const Series& s : series) readings.push_back(reading_of(s));
    const auto at = [&](const std::string& name) {
      return std::find_if(readings.begin(), readings.end(), [&](const Reading& r) { return r.name == name; });
    };
    const auto median = [&](const std::string& name) { return at(name)->time.median; };
    for (Reading& r : readings) r.description = described(session_, work_);
    for (const std::string& name : {names_.attend, names_.attend + ".attention", names_.whole}) {
      Reading& r = *at(name);
      r.bytes = work_.bytes, r.flops = work_.flops;
      if (!work_.reads.empty()) {
        r.ceiling = names_.reader, r.ceiling_us = median(names_.reader);
      } else {
        r.ceiling = "gemm_f32";
        r.ceiling_us = static_cast<double>(work_.flops) / session_.ceilings.gemm_f32_tflop_s * 1e-6;
      }
    }
    if (!work_.reads.empty()) {
      Reading& r = *at(names_.reader);
      r.bytes = work_.reads[0].bytes();
      r.ceiling = "read";
      r.ceiling_us = static_cast<double>(r.bytes) / session_.ceilings.read_tb_s * 1e-6;
      r.more["prefetch_distance"] = distance_;
    }
    Reading &attended = *at(names_.attend), &entire = *at(names_.whole);
    entire.more["overlap_us"] = median(names_.normalize) + median(names_.plan) +
                                median(names_.attend + ".attention") + median(names_.attend + ".merge") -
                                entire.time.median;
    const Step& first = steps_[0];
    attended.more["plan"] = {{"path", path_name(first.plan.path)},
                             {"block", first.plan.block},
                             {"tile", first.plan.tile},
                             {"tasks", first.schedule.stats.tasks},
                             {"parts", first.schedule.stats.parts},
                             {"workspace_bytes", first.schedule.stats.workspace_bytes}};
    if (Status s = check(attend(), 0, &attended); !s.ok()) return s;
    if (Status s = check(whole(), static_cast<int64_t>(steps_.size()) - 1, &entire); !s.ok()) return s;
    return readings;
  }

  Session& session_;
  const Names names_;
  const Work& work_;
  const Path path_;
  std::vector<Step> steps_;
  Step own_, entire_;                          // of the contenders that make their own
  std::vector<Buffer> workspace_, out_, lse_;  // one each
  OutView view_;
  int64_t distance_ = 0;
};

}  // namespace

Status normalize_step(const Problem& problem, Path path, Step* step) {
  return normalize_into(problem, {.all_blocks = path == Path::kDense}, &step->index);
}

Status plan_step(const Problem& problem, Path path, Step* step, Parts* parts) {
  const auto start = Clock::now();
  Result<Bundles> bundles = bundle(problem, step->index);
  if (!bundles.ok()) return bundles.status();
  step->bundles = std::move(*bundles);
  const auto bundled = Clock::now();
  Result<Plan> plan = make_plan(problem, capacities_of(problem, step->bundles.view()),
                                step->index.view().block, {.path = path});
  if (!plan.ok()) return plan.status();
  step->plan = std::move(*plan);
  const auto planned = Clock::now();
  Result<Schedule> made = schedule(step->plan, step->bundles.view());
  if (!made.ok()) return made.status();
  step->schedule = std::move(*made);
  if (parts != nullptr)
    *parts = {{"bundle", microseconds(start, bundled)},
              {"make", microseconds(bundled, planned)},
              {"schedule", microseconds(planned, Clock::now())}};
  return {};
}

Json described(const Session& session, const Work& work) {
  Json out = work.description;
  out["threads"] = session.context.threads();
  out["isa"] = session.context.isa();
  return out;
}

Result<Readings> attention_readings(Session& session, const std::string& name, const Work& work, Path path) {
  return AttentionBench(session, name, work, path).run();
}

}  // namespace tamis::bench
