// Measuring on the device: contenders as graphs of many steps, timed by events, in the loop of protocol.h.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device_graph.h"
#include "device_kernels.h"
#include "protocol.h"
#include "record.h"

namespace tamis::bench {

// What device cases share: one stream, on which one thing happens at a time.
struct DeviceLab {
  static Result<std::unique_ptr<DeviceLab>> make();

  DeviceFacts facts;
  DeviceStream stream;
  DeviceEvent start, stop;
  DeviceBuffer sink;  // of the readers

  int64_t l2() const { return facts.l2_bytes > 0 ? facts.l2_bytes : int64_t{64} << 20; }
  // Turns that move more than five times the L2 in a cycle, between `least` and `most`.
  int64_t turns(int64_t bytes_of_a_turn, int64_t least, int64_t most) const;
};

// Steps of one graph: whole cycles of the turns, and enough that an event is some hundred us long; below that
// the start of the graph would be part of what is read.
int64_t nodes_of_graph(int64_t turns, double us_of_a_step);

struct DeviceContender {
  std::string name;
  std::function<Status(int64_t turn)> enqueue;  // one step, on the lab's stream
  int64_t turns = 1, nodes = 1;
  bool direct = false;  // also read the host time of enqueueing it without a graph
};

struct DeviceSeries {
  Series series;  // of one step: the event over the nodes of its graph; whole_us is host time of enqueueing
  int64_t nodes = 1;
  double enqueue_us = 0;  // host time of one step without a graph, median; 0: not read
};

// Every contender once a round in random order, each a launch of its graph between two events.
Result<std::vector<DeviceSeries>> measure_device(DeviceLab& lab,
                                                 const std::vector<DeviceContender>& contenders,
                                                 const Protocol& protocol);

Reading reading_of(const DeviceSeries& series);

// Of each round the sum of the events of `parts`, (key, name of a series) each: medians in `parts_us`, and
// `overlap_us`, their sum less the median of the whole.
Reading sum_of_parts(const std::string& name, const std::vector<DeviceSeries>& series,
                     const std::vector<std::pair<std::string, std::string>>& parts, double whole_us);

}  // namespace tamis::bench
