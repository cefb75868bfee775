#include "device_prefill.h"

#include <algorithm>

#include "core/checks.h"
#include "device_check.h"

namespace tamis::bench {
namespace {

constexpr double kGuessRate = 6e8;    // FLOPs a us: only chooses how many steps make a graph
constexpr double kLongStepUs = 5000;  // steps that are not also enqueued without a graph
constexpr int64_t kTile = 128;        // query rows of a CTA; `tiles` count 64 columns of them

// Contenders have memories of their own: what one leaves there is not what another may read.
class PrefillBench {
 public:
  PrefillBench(Session& session, const std::string& name, bool parts)
      : session_(session), lab_(*session.device), name_(name), with_parts_(parts) {}

  Result<Readings> run(const PrefillWork& work) {
    session_.say(name_ + ": making the problem");
    Result<std::unique_ptr<PrefillSet>> set = PrefillSet::make(lab_, work, session_.trace);
    if (!set.ok()) return set.status();
    set_ = std::move(*set);
    for (auto* memory : {&attend_, &whole_, &normalize_, &schedule_}) {
      if (!with_parts_ && memory != &attend_) continue;
      if (Status s = prepare(memory); !s.ok()) return s;
    }
    session_.say(name_ + ": measuring");
    const auto series = measure_device(lab_, contenders(), session_.protocol);
    if (!series.ok()) return series.status();
    session_.say(name_ + ": checking");
    return fill_in(*series);
  }

 private:
  std::string whole_name() const { return name_ + ".index_attend"; }
  std::string part_name(const char* part) const { return name_ + ".step_parts." + part; }

  // A memory that holds a whole step, judged good.
  Status prepare(std::optional<StepMemory>* memory) {
    Result<StepMemory> made = StepMemory::make(set_->plan(), lab_.stream);
    if (!made.ok()) return made.status();
    *memory = std::move(*made);
    TAMIS_RETURN_IF_ERROR(step(**memory));
    return cuda::poll(set_->plan(), (*memory)->view, lab_.stream.handle(), &stats_);
  }

  Status step(const StepMemory& memory) {
    return cuda::step(set_->plan(), set_->problem(), set_->out(), memory.view, lab_.stream.handle());
  }
  Status attend(cuda::StepCounters* counters = nullptr) {
    return cuda::run(set_->plan(), set_->problem(), set_->out(), attend_->view, lab_.stream.handle(),
                     counters);
  }

  double guess_us() const { return static_cast<double>(set_->flops()) / kGuessRate + 5; }

  static DeviceContender contender(std::string name, std::function<Status(int64_t)> enqueue, double guess) {
    return {.name = std::move(name),
            .enqueue = std::move(enqueue),
            .turns = 1,
            .nodes = nodes_of_graph(1, guess),
            .direct = guess < kLongStepUs};
  }

  std::vector<DeviceContender> contenders() {
    std::vector<DeviceContender> out{contender(
        name_, [this](int64_t) { return attend(); }, guess_us())};
    if (!with_parts_) return out;
    out.push_back(contender(
        whole_name(), [this](int64_t) { return step(*whole_); }, guess_us() + 20));
    out.push_back(contender(
        part_name("normalize"),
        [this](int64_t) {
          return cuda::normalize(set_->plan(), set_->problem(), normalize_->view, lab_.stream.handle());
        },
        10));
    out.push_back(contender(
        part_name("schedule"),
        [this](int64_t) { return cuda::schedule(set_->plan(), schedule_->view, lab_.stream.handle()); }, 5));
    return out;
  }

  Result<Readings> fill_in(const std::vector<DeviceSeries>& series) {
    Readings readings;
    for (const DeviceSeries& d : series) {
      Reading r = reading_of(d);
      r.description = describe_prefill(set_->work());
      readings.push_back(std::move(r));
    }
    const auto find = [&](const std::string& name) {
      return std::find_if(readings.begin(), readings.end(), [&](const Reading& r) { return r.name == name; });
    };
    for (const std::string& name : {name_, whole_name()})
      if (const auto r = find(name); r != readings.end()) r->bytes = set_->bytes(), r->flops = set_->flops();
    if (Status s = check(&*find(name_), [this] { return attend(); }); !s.ok()) return s;
    if (Status s = describe_plan(&*find(name_)); !s.ok()) return s;
    if (!with_parts_) return readings;
    if (Status s = check(&*find(whole_name()), [this] { return step(*whole_); }); !s.ok()) return s;
    Reading sum = sum_of_parts(
        name_ + ".step_parts", series,
        {{"normalize", part_name("normalize")}, {"schedule", part_name("schedule")}, {"attend", name_}},
        find(whole_name())->time.median);
    sum.description = describe_prefill(set_->work());
    const Json& us = sum.more["parts_us"];
    sum.more["index_share"] =
        (us["normalize"].get<double>() + us["schedule"].get<double>()) / us["attend"].get<double>();
    readings.push_back(std::move(sum));
    return readings;
  }

  Status check(Reading* reading, const std::function<Status()>& run) {
    TAMIS_RETURN_IF_ERROR(set_->poison());
    TAMIS_RETURN_IF_ERROR(run());
    TAMIS_RETURN_IF_ERROR(lab_.stream.synchronize());
    const Result<Judged> judged = set_->judge_result();
    if (!judged.ok()) return judged.status();
    reading->max_error = judged->max_error;
    reading->checked_rows = judged->rows;
    return {};
  }

  // How the step was planned, what one run counted, and the rate of whole tiles: what masks and rows that do
  // not fill a tile cost is the distance to the rate of the selected keys.
  Status describe_plan(Reading* reading) {
    Result<DeviceBuffer> counters = DeviceBuffer::make(sizeof(cuda::StepCounters));
    if (!counters.ok()) return counters.status();
    TAMIS_RETURN_IF_ERROR(counters->fill(0));
    TAMIS_RETURN_IF_ERROR(attend(static_cast<cuda::StepCounters*>(counters->data())));
    TAMIS_RETURN_IF_ERROR(lab_.stream.synchronize());
    cuda::StepCounters c{};
    TAMIS_RETURN_IF_ERROR(counters->download(&c, sizeof c));
    const cuda::StepPlan& plan = set_->plan();
    reading->more["plan"] = {{"kernel", plan.kernel},           {"load", cuda::load_name(plan.load)},
                             {"block", plan.plan.block},        {"row_tiles", plan.column_tiles},
                             {"tasks", stats_.tasks},           {"parts", stats_.parts},
                             {"index_bytes", plan.bytes.index}, {"scratch_bytes", plan.bytes.scratch}};
    reading->more["counters"] = {{"items", c.tasks},
                                 {"tiles", c.tiles},
                                 {"tokens_loaded", c.tokens_loaded},
                                 {"rows_redone", c.rows_redone},
                                 {"empty_rows", c.empty_rows}};
    reading->more["tile_tflop_s"] =
        static_cast<double>(c.tiles) * 4 * 64 * kTile * PrefillWork::kDim / reading->time.median * 1e-6;
    return {};
  }

  Session& session_;
  DeviceLab& lab_;
  const std::string name_;
  const bool with_parts_;
  std::unique_ptr<PrefillSet> set_;
  std::optional<StepMemory> attend_, whole_, normalize_, schedule_;
  cuda::StepStats stats_;
};

// Rows whose bundle holds other tokens than its list says.
Result<JudgedSets> judge_lists(const PrefillSet& set, const StepMemory& memory, const DeviceStream& stream) {
  const Result<cuda::FetchedStep> fetched = cuda::fetch(set.plan(), memory.view, stream.handle());
  if (!fetched.ok()) return fetched.status();
  const int64_t unit = set.work().unit();
  JudgedSets judged{.wrong = 0, .sets = set.work().rows()};
  for (int64_t r = 0; r < judged.sets; ++r) {
    std::vector<int32_t> want;
    for (const int64_t e : set.lists().row(r))
      for (int64_t j = 0; j < unit; ++j) want.push_back(static_cast<int32_t>(e * unit + j));
    judged.wrong += r >= static_cast<int64_t>(fetched->bundles.size()) ||
                    tokens_of(fetched->bundles[r], set.plan().plan.block) != want;
  }
  return judged;
}

}  // namespace

Result<Readings> prefill_readings(Session& session, const std::string& name, const PrefillWork& work,
                                  bool parts) {
  return PrefillBench(session, name, parts).run(work);
}

Result<Readings> prefill_index_readings(Session& session, const std::string& rest, const PrefillWork& work) {
  DeviceLab& lab = *session.device;
  const std::string normalize = "prefill.normalize." + rest, plan = "prefill.plan." + rest;
  session.say(normalize + ": making the lists");
  const Result<std::unique_ptr<PrefillSet>> made = PrefillSet::make(lab, work, session.trace);
  if (!made.ok()) return made.status();
  const PrefillSet& set = **made;
  const Result<StepMemory> memory = StepMemory::make(set.plan(), lab.stream);
  if (!memory.ok()) return memory.status();
  const auto index = [&](int64_t) {
    return cuda::normalize(set.plan(), set.problem(), memory->view, lab.stream.handle());
  };
  const auto schedule = [&](int64_t) {
    return cuda::schedule(set.plan(), memory->view, lab.stream.handle());
  };
  cuda::StepStats stats;
  for (const Status& s :
       {index(0), schedule(0), cuda::poll(set.plan(), memory->view, lab.stream.handle(), &stats)})
    if (!s.ok()) return s;
  session.say(normalize + ": measuring");
  const auto contender = [](const std::string& name, std::function<Status(int64_t)> enqueue, double guess) {
    return DeviceContender{.name = name,
                           .enqueue = std::move(enqueue),
                           .turns = 1,
                           .nodes = nodes_of_graph(1, guess),
                           .direct = true};
  };
  const auto series =
      measure_device(lab, {contender(normalize, index, 10), contender(plan, schedule, 5)}, session.protocol);
  if (!series.ok()) return series.status();
  Readings readings{reading_of((*series)[0]), reading_of((*series)[1])};
  for (Reading& r : readings) r.description = describe_prefill(work);
  // The index that the loop left, scheduled, is the one that is judged.
  for (const Status& s : {index(0), schedule(0)})
    if (!s.ok()) return s;
  const Result<JudgedSets> judged = judge_lists(set, *memory, lab.stream);
  if (!judged.ok()) return judged.status();
  readings[0].max_error = static_cast<double>(judged->wrong);
  readings[0].checked_rows = judged->sets;
  readings[0].more["error_counts"] = "sets that differ";
  readings[0].more["raw_entries"] = stats.raw;
  readings[1].more["schedule"] = {{"tasks", stats.tasks}, {"parts", stats.parts}};
  return readings;
}

}  // namespace tamis::bench
