#include "device_decode.h"

#include <algorithm>

#include "core/checks.h"
#include "device_check.h"

namespace tamis::bench {
namespace {

// Sets of buffers, one a turn. Contenders have their own: what one leaves there is not what another may read.
using Memories = std::vector<StepMemory>;

class StepBench {
 public:
  StepBench(Session& session, const std::string& name, bool parts)
      : session_(session), lab_(*session.device), name_(name), with_parts_(parts) {}

  Result<Readings> run(const StepWork& work) {
    session_.say(name_ + ": making the pools");
    Result<std::unique_ptr<StepSets>> sets = StepSets::make(lab_, work, session_.trace);
    if (!sets.ok()) return sets.status();
    sets_ = std::move(*sets);
    if (Status s = prepare(); !s.ok()) return s;
    session_.say(name_ + ": measuring");
    Result<std::vector<DeviceContender>> contenders = make_contenders();
    if (!contenders.ok()) return contenders.status();
    const auto series = measure_device(lab_, *contenders, session_.protocol);
    if (!series.ok()) return series.status();
    session_.say(name_ + ": checking");
    return fill_in(*series);
  }

 private:
  bool dense() const { return sets_->work().dense; }
  std::string attend_name() const { return dense() ? name_ : name_ + ".attend"; }
  std::string whole_name() const { return name_ + ".index_attend"; }
  std::string reader_name() const { return name_ + ".reader"; }
  std::string part_name(const char* part) const { return name_ + ".step_parts." + part; }

  // Every memory holds a whole step, judged good.
  Status prepare() {
    std::vector<Memories*> all{&attend_};
    if (!dense()) all.push_back(&whole_);
    if (with_parts_) all.insert(all.end(), {&normalize_, &schedule_});
    for (Memories* memories : all)
      for (int64_t t = 0; t < sets_->count(); ++t) {
        Result<StepMemory> made = StepMemory::make(sets_->plan(), lab_.stream);
        if (!made.ok()) return made.status();
        memories->push_back(std::move(*made));
        TAMIS_RETURN_IF_ERROR(step(*memories, t));
        TAMIS_RETURN_IF_ERROR(
            cuda::poll(sets_->plan(), memories->back().view, lab_.stream.handle(), &stats_));
      }
    return {};
  }

  const cuda::StepBuffers& at(const Memories& memories, int64_t turn) const {
    return memories[static_cast<size_t>(turn)].view;
  }
  Status step(const Memories& memories, int64_t t) {
    const StepTurn& turn = sets_->turn(t);
    return cuda::step(sets_->plan(), turn.problem, turn.out, at(memories, t), lab_.stream.handle());
  }
  Status attend(int64_t t, cuda::StepCounters* counters = nullptr) {
    const StepTurn& turn = sets_->turn(t);
    return cuda::run(sets_->plan(), turn.problem, turn.out, at(attend_, t), lab_.stream.handle(), counters);
  }

  // Bytes at 4 TB/s and some time to start: only chooses how many steps make a graph.
  double guess_us() const { return static_cast<double>(sets_->bytes()) * 0.25e-6 + 3; }

  DeviceContender contender(std::string name, std::function<Status(int64_t)> enqueue, double guess) const {
    return {.name = std::move(name),
            .enqueue = std::move(enqueue),
            .turns = sets_->count(),
            .nodes = nodes_of_graph(sets_->count(), guess),
            .direct = true};
  }

  Result<std::vector<DeviceContender>> make_contenders() {
    std::vector<DeviceContender> out;
    out.push_back(contender(
        attend_name(), [this](int64_t t) { return attend(t); }, guess_us()));
    if (!dense())
      out.push_back(contender(
          whole_name(), [this](int64_t t) { return step(whole_, t); }, guess_us() + 4));
    if (with_parts_) {
      out.push_back(contender(
          part_name("normalize"),
          [this](int64_t t) {
            return cuda::normalize(sets_->plan(), sets_->turn(t).problem, at(normalize_, t),
                                   lab_.stream.handle());
          },
          3));
      out.push_back(contender(
          part_name("schedule"),
          [this](int64_t t) { return cuda::schedule(sets_->plan(), at(schedule_, t), lab_.stream.handle()); },
          2));
    }
    Result<DeviceContender> read = make_reader();
    if (!read.ok()) return read.status();
    out.push_back(std::move(*read));
    return out;
  }

  // The ceiling: the same bytes in chunks of the same size. A dense step's lie one after the other.
  Result<DeviceContender> make_reader() {
    const int64_t nodes = nodes_of_graph(sets_->count(), guess_us());
    if (dense())
      return DeviceContender{
          .name = reader_name(),
          .enqueue =
              [this](int64_t t) {
                const CacheView& c = sets_->turn(t).problem.cache;
                const int64_t half = sets_->bytes() / 2;
                TAMIS_RETURN_IF_ERROR(
                    read_range(c.k.data, half, lab_.facts.multiprocessors, lab_.sink.data(), lab_.stream));
                return read_range(c.v.data, half, lab_.facts.multiprocessors, lab_.sink.data(), lab_.stream);
              },
          .turns = sets_->count(),
          .nodes = nodes};
    std::vector<DevicePieces> turns;
    for (int64_t t = 0; t < sets_->count(); ++t) turns.push_back(sets_->turn(t).reads);
    const Result<ReaderShape> shape = best_shape(lab_, turns);
    if (!shape.ok()) return shape.status();
    shape_ = *shape;
    return reader(lab_, reader_name(), std::move(turns), *shape, nodes);
  }

  Result<Readings> fill_in(const std::vector<DeviceSeries>& series) {
    Readings readings;
    for (const DeviceSeries& d : series) {
      Reading r = reading_of(d);
      r.description = sets_->description();
      readings.push_back(std::move(r));
    }
    const auto find = [&](const std::string& name) {
      return std::find_if(readings.begin(), readings.end(), [&](const Reading& r) { return r.name == name; });
    };
    const double read_us = find(reader_name())->time.median;
    for (const std::string& name : {attend_name(), whole_name()}) {
      const auto r = find(name);
      if (r == readings.end()) continue;
      r->bytes = sets_->bytes(), r->flops = sets_->flops();
      r->ceiling = reader_name(), r->ceiling_us = read_us;
    }
    Reading& read = *find(reader_name());
    read.bytes = sets_->bytes();
    read.ceiling = "read";
    read.ceiling_us = static_cast<double>(read.bytes) / session_.device_read_tb_s * 1e-6;
    if (!dense())
      read.more["reader_shape"] = {{"ctas_a_multiprocessor", shape_.ctas}, {"loads_in_flight", shape_.loads}};
    if (Status s = check(&*find(attend_name()), 0, 0, [this](int64_t t) { return attend(t); }); !s.ok())
      return s;
    if (!dense()) {
      const Status s = check(&*find(whole_name()), sets_->count() - 1, sets_->work().requests - 1,
                             [this](int64_t t) { return step(whole_, t); });
      if (!s.ok()) return s;
    }
    if (Status s = describe_plan(&*find(attend_name())); !s.ok()) return s;
    if (!with_parts_) return readings;
    readings.push_back(sum_of_parts(name_ + ".step_parts", series,
                                    {{"normalize", part_name("normalize")},
                                     {"schedule", part_name("schedule")},
                                     {"attend", attend_name()}},
                                    find(whole_name())->time.median));
    readings.back().description = sets_->description();
    return readings;
  }

  // Runs a step once more, on a poisoned result, and lets the reference judge one request of it.
  Status check(Reading* reading, int64_t turn, int64_t request, const std::function<Status(int64_t)>& run) {
    TAMIS_RETURN_IF_ERROR(sets_->poison(turn));
    TAMIS_RETURN_IF_ERROR(run(turn));
    TAMIS_RETURN_IF_ERROR(lab_.stream.synchronize());
    const Result<Judged> judged = judge_request(*sets_, turn, request);
    if (!judged.ok()) return judged.status();
    reading->max_error = judged->max_error;
    reading->checked_rows = judged->rows;
    return {};
  }

  // How the step was planned, and what one run counted.
  Status describe_plan(Reading* reading) {
    Result<DeviceBuffer> counters = DeviceBuffer::make(sizeof(cuda::StepCounters));
    if (!counters.ok()) return counters.status();
    TAMIS_RETURN_IF_ERROR(counters->fill(0));
    TAMIS_RETURN_IF_ERROR(attend(0, static_cast<cuda::StepCounters*>(counters->data())));
    TAMIS_RETURN_IF_ERROR(lab_.stream.synchronize());
    cuda::StepCounters c{};
    TAMIS_RETURN_IF_ERROR(counters->download(&c, sizeof c));
    const cuda::StepPlan& plan = sets_->plan();
    reading->more["plan"] = {{"kernel", plan.kernel},
                             {"load", cuda::load_name(plan.load)},
                             {"block", plan.plan.block},
                             {"tasks", stats_.tasks},
                             {"parts", stats_.parts},
                             {"index_bytes", plan.bytes.index},
                             {"scratch_bytes", plan.bytes.scratch}};
    reading->more["counters"] = {{"tokens_selected", sets_->turn(0).selected},
                                 {"tokens_loaded", c.tokens_loaded},
                                 {"rows_redone", c.rows_redone},
                                 {"stale_rows", c.stale_rows}};
    return {};
  }

  Session& session_;
  DeviceLab& lab_;
  const std::string name_;
  const bool with_parts_;
  std::unique_ptr<StepSets> sets_;
  Memories attend_, whole_, normalize_, schedule_;
  cuda::StepStats stats_;
  ReaderShape shape_;
};

}  // namespace

Result<Readings> step_readings(Session& session, const std::string& name, const StepWork& work, bool parts) {
  return StepBench(session, name, parts).run(work);
}

}  // namespace tamis::bench
