// normalize and schedule on the device, alone.
#include <chrono>

#include "core/checks.h"
#include "device_check.h"
#include "device_decode.h"

namespace tamis::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kGuessUs = 3;  // of a step; only chooses how many make a graph

// A set of buffers for every turn, each with one whole index and schedule in it.
Result<std::vector<StepMemory>> memories_of(DeviceLab& lab, const StepSets& sets, cuda::StepStats* stats) {
  std::vector<StepMemory> out;
  for (int64_t t = 0; t < sets.count(); ++t) {
    Result<StepMemory> made = StepMemory::make(sets.plan(), lab.stream);
    if (!made.ok()) return made.status();
    for (const Status& s :
         {cuda::normalize(sets.plan(), sets.turn(t).problem, made->view, lab.stream.handle()),
          cuda::schedule(sets.plan(), made->view, lab.stream.handle()),
          cuda::poll(sets.plan(), made->view, lab.stream.handle(), stats)})
      if (!s.ok()) return s;
    out.push_back(std::move(*made));
  }
  return out;
}

Json stats_of(const cuda::StepStats& s) {
  return {{"raw", s.raw},       {"unique", s.unique},     {"duplicates", s.duplicates},
          {"blocks", s.blocks}, {"selected", s.selected}, {"touched_pages", s.touched_pages}};
}

Json with_memory(const StepSets& sets) {
  Json out = sets.description();
  const StepWork& w = sets.work();
  // Lists, page table and its stamps, and the index set that is written.
  const int64_t turn =
      8 * w.requests * w.most_listed() * 4 + 12 * w.requests * w.pages() + sets.plan().bytes.index;
  out["working_set_bytes"] = turn * sets.count();
  return out;
}

}  // namespace

Result<Readings> device_normalize_reading(Session& session, const std::string& name, const StepWork& work) {
  DeviceLab& lab = *session.device;
  session.say(name + ": making the lists");
  const Result<std::unique_ptr<StepSets>> sets = StepSets::make(lab, work, session.trace);
  if (!sets.ok()) return sets.status();
  cuda::StepStats stats;
  const Result<std::vector<StepMemory>> memories = memories_of(lab, **sets, &stats);
  if (!memories.ok()) return memories.status();
  const auto enqueue = [&](int64_t t) {
    return cuda::normalize((*sets)->plan(), (*sets)->turn(t).problem,
                           (*memories)[static_cast<size_t>(t)].view, lab.stream.handle());
  };
  const int64_t turns = (*sets)->count();
  session.say(name + ": measuring");
  const auto series = measure_device(lab,
                                     {{.name = name,
                                       .enqueue = enqueue,
                                       .turns = turns,
                                       .nodes = nodes_of_graph(turns, kGuessUs),
                                       .direct = true}},
                                     session.protocol);
  if (!series.ok()) return series.status();
  Reading r = reading_of(series->front());
  r.description = with_memory(**sets);
  // The last index of a turn, made whole again, is the one that is judged.
  if (Status s = cuda::schedule((*sets)->plan(), memories->front().view, lab.stream.handle()); !s.ok())
    return s;
  const Result<JudgedSets> judged = judge_sets(**sets, 0, memories->front(), lab.stream);
  if (!judged.ok()) return judged.status();
  r.max_error = static_cast<double>(judged->wrong);
  r.checked_rows = judged->sets;
  r.more["error_counts"] = "sets that differ";
  r.more["raw_entries"] = stats.raw;
  r.more["statistics"] = stats_of(stats);
  return Readings{std::move(r)};
}

Result<Readings> device_plan_reading(Session& session, const std::string& name, const StepWork& work) {
  DeviceLab& lab = *session.device;
  session.say(name + ": making the lists");
  const Result<std::unique_ptr<StepSets>> sets = StepSets::make(lab, work, session.trace);
  if (!sets.ok()) return sets.status();
  cuda::StepStats stats;
  const Result<std::vector<StepMemory>> memories = memories_of(lab, **sets, &stats);
  if (!memories.ok()) return memories.status();
  const auto enqueue = [&](int64_t t) {
    return cuda::schedule((*sets)->plan(), (*memories)[static_cast<size_t>(t)].view, lab.stream.handle());
  };
  const int64_t turns = (*sets)->count();
  session.say(name + ": measuring");
  const auto graph = measure_device(lab,
                                    {{.name = name + ".graph",
                                      .enqueue = enqueue,
                                      .turns = turns,
                                      .nodes = nodes_of_graph(turns, kGuessUs),
                                      .direct = true}},
                                    session.protocol);
  if (!graph.ok()) return graph.status();
  // On the host: extents to plan, plan to launch. The device keeps up, so the launch never waits for it.
  const auto host = [&](int64_t turn, Parts* parts) {
    const auto begun = Clock::now();
    const int64_t t = turn % turns;
    const Result<cuda::StepPlan> plan = cuda::plan_step((*sets)->turn(t).problem);
    if (!plan.ok()) return plan.status();
    const auto planned = Clock::now();
    TAMIS_RETURN_IF_ERROR(
        cuda::schedule(*plan, (*memories)[static_cast<size_t>(t)].view, lab.stream.handle()));
    const auto us = [](auto from, auto to) {
      return std::chrono::duration<double, std::micro>(to - from).count();
    };
    *parts = {{"plan_step", us(begun, planned)}, {"launch", us(planned, Clock::now())}};
    return Status();
  };
  const auto timed = measure({{.name = name + ".host", .call = host}}, session.protocol);
  if (!timed.ok()) return timed.status();
  if (Status s = lab.stream.synchronize(); !s.ok()) return s;
  Readings readings{reading_of(graph->front())};
  for (const Series& s : *timed) readings.push_back(reading_of(s));
  for (Reading& r : readings) r.description = with_memory(**sets);
  readings.front().more["schedule"] = {{"tasks", stats.tasks}, {"parts", stats.parts}};
  return readings;
}

}  // namespace tamis::bench
