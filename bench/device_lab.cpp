#include "device_lab.h"

#include <algorithm>
#include <chrono>
#include <map>

#include "core/checks.h"

namespace tamis::bench {
namespace {

using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// One contender made ready: its graph, and how long the host took to launch it last.
class Runner {
 public:
  static Result<Runner> make(DeviceLab& lab, const DeviceContender& contender) {
    Result<DeviceGraph> graph = DeviceGraph::capture(lab.stream, [&] {
      for (int64_t i = 0; i < contender.nodes; ++i)
        TAMIS_RETURN_IF_ERROR(contender.enqueue(i % contender.turns));
      return Status();
    });
    if (!graph.ok())
      return Status(graph.status().code(), contender.name + ": " + graph.status().message(),
                    graph.status().where());
    return Runner(std::move(*graph));
  }

  // One event. The stream is held until the host has enqueued all of it.
  Status event(DeviceLab& lab, Parts* parts) {
    TAMIS_RETURN_IF_ERROR(hold(std::clamp(1.5 * launch_us_ + 10, 20.0, 2000.0), lab.stream));
    TAMIS_RETURN_IF_ERROR(lab.start.record(lab.stream));
    const auto launched = Clock::now();
    TAMIS_RETURN_IF_ERROR(graph_.launch(lab.stream));
    launch_us_ = microseconds_since(launched);
    TAMIS_RETURN_IF_ERROR(lab.stop.record(lab.stream));
    TAMIS_RETURN_IF_ERROR(lab.stream.synchronize());
    const Result<double> us = lab.stop.microseconds_since(lab.start);
    if (!us.ok()) return us.status();
    *parts = {{"device", *us}, {"launch", launch_us_}};
    return {};
  }

 private:
  explicit Runner(DeviceGraph graph) : graph_(std::move(graph)) {}
  DeviceGraph graph_;
  double launch_us_ = 100;
};

// Host time of enqueueing one step on an idle stream, launch by launch.
Result<double> enqueue_us(DeviceLab& lab, const DeviceContender& contender) {
  constexpr int64_t calls = 64;
  std::vector<double> us;
  for (int64_t i = 0; i < calls; ++i) {
    const auto begun = Clock::now();
    if (Status s = contender.enqueue(i % contender.turns); !s.ok()) return s;
    us.push_back(microseconds_since(begun));
    if (Status s = lab.stream.synchronize(); !s.ok()) return s;
  }
  return summarize(us).median;
}

}  // namespace

Result<std::unique_ptr<DeviceLab>> DeviceLab::make() {
  Result<DeviceFacts> facts = device_facts();
  if (!facts.ok()) return facts.status();
  Result<DeviceStream> stream = DeviceStream::make();
  if (!stream.ok()) return stream.status();
  Result<DeviceEvent> start = DeviceEvent::make(), stop = DeviceEvent::make();
  for (const Result<DeviceEvent>* made : {&start, &stop})
    if (!made->ok()) return made->status();
  Result<DeviceBuffer> sink = DeviceBuffer::make(256);
  if (!sink.ok()) return sink.status();
  return std::make_unique<DeviceLab>(DeviceLab{.facts = std::move(*facts),
                                               .stream = std::move(*stream),
                                               .start = std::move(*start),
                                               .stop = std::move(*stop),
                                               .sink = std::move(*sink)});
}

int64_t DeviceLab::turns(int64_t bytes_of_a_turn, int64_t least, int64_t most) const {
  return std::clamp(5 * l2() / std::max<int64_t>(1, bytes_of_a_turn) + 1, least, most);
}

int64_t nodes_of_graph(int64_t turns, double us_of_a_step) {
  constexpr double long_enough = 250;
  constexpr int64_t most = 128;
  const double cycle = static_cast<double>(turns) * std::max(us_of_a_step, 0.1);
  const auto cycles = static_cast<int64_t>(long_enough / cycle) + 1;
  return turns * std::clamp<int64_t>(cycles, 1, std::max<int64_t>(1, most / turns));
}

Result<std::vector<DeviceSeries>> measure_device(DeviceLab& lab,
                                                 const std::vector<DeviceContender>& contenders,
                                                 const Protocol& protocol) {
  std::vector<Runner> runners;
  std::vector<Contender> calls;
  for (const DeviceContender& c : contenders) {
    Result<Runner> made = Runner::make(lab, c);
    if (!made.ok()) return made.status();
    runners.push_back(std::move(*made));
  }
  for (size_t i = 0; i < contenders.size(); ++i)
    calls.push_back({.name = contenders[i].name, .call = [&lab, &runner = runners[i]](int64_t, Parts* parts) {
                       return runner.event(lab, parts);
                     }});
  Result<std::vector<Series>> all = measure(calls, protocol);
  if (!all.ok()) return all.status();
  std::map<std::string, Series*> by_name;
  for (Series& s : *all) by_name[s.name] = &s;
  std::vector<DeviceSeries> out;
  for (const DeviceContender& c : contenders) {
    const auto nodes = static_cast<double>(c.nodes);
    DeviceSeries d{.series = std::move(*by_name[c.name + ".device"]), .nodes = c.nodes};
    d.series.name = c.name;
    for (double& us : d.series.us) us /= nodes;
    d.series.whole_us = by_name[c.name + ".launch"]->whole_us / nodes;
    if (c.direct) {
      const Result<double> us = enqueue_us(lab, c);
      if (!us.ok()) return us.status();
      d.enqueue_us = *us;
    }
    out.push_back(std::move(d));
  }
  return out;
}

Reading reading_of(const DeviceSeries& d) {
  Reading r = reading_of(d.series);
  r.more["nodes"] = d.nodes;
  if (d.enqueue_us > 0) r.more["enqueue_us"] = d.enqueue_us;
  return r;
}

Reading sum_of_parts(const std::string& name, const std::vector<DeviceSeries>& series,
                     const std::vector<std::pair<std::string, std::string>>& parts, double whole_us) {
  Series sum{.name = name, .us = {}, .warmup = series[0].series.warmup, .note = series[0].series.note};
  Json medians = Json::object();
  double of_medians = 0;
  for (const auto& [key, part] : parts)
    for (const DeviceSeries& d : series) {
      if (d.series.name != part) continue;
      sum.us.resize(d.series.us.size());
      for (size_t i = 0; i < sum.us.size(); ++i) sum.us[i] += d.series.us[i];
      sum.whole_us += d.series.whole_us;
      const double median = summarize(d.series.us).median;
      medians[key] = median, of_medians += median;
    }
  Reading r = reading_of(sum);
  r.more["parts_us"] = std::move(medians);
  r.more["whole_us"] = whole_us;
  r.more["overlap_us"] = of_medians - whole_us;
  return r;
}

}  // namespace tamis::bench
