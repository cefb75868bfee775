// How a bench measures: several contenders in one loop, each once a round in random order, so that whatever
// the machine does meets all of them alike.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tamis/status.h"

namespace tamis::bench {

struct Protocol {
  int64_t warmup = 100, samples = 1000;
  double long_event_us = 10000;  // above this fewer are taken:
  double long_budget_s = 20;     // as many as a contender fits in here, ...
  int64_t long_least = 30;       // ... at least so many, and a tenth of them as warm-up
  uint64_t seed = 1;             // of the order within rounds
};

// Part times that a contender reads itself, within its event.
struct Part {
  std::string name;
  double us = 0;
};
using Parts = std::vector<Part>;

struct Contender {
  std::string name;
  // One event on the problem of this turn. `parts` is empty; whatever it adds becomes series of their own.
  std::function<Status(int64_t turn, Parts* parts)> call;
  // Reads K and V: it takes the next turn, so that no contender finds in a cache what another has read. The
  // others see the turn without using it up.
  bool takes_turn = true;
};

struct Series {
  std::string name;        // the contender's, or "contender.part"
  std::vector<double> us;  // in the order taken
  int64_t warmup = 0;
  double whole_us = 0;  // all timed events of this series
  std::string note;     // says so when the counts are not the protocol's
};

// Of samples, by nearest rank: p is the least sample with at least that share at or below it.
struct Summary {
  int64_t samples = 0;
  double min = 0, p25 = 0, median = 0, p75 = 0, p95 = 0, p99 = 0, max = 0, mean = 0;
};
Summary summarize(std::vector<double> samples);
double percentile(const std::vector<double>& ascending, double share);

// Runs the contenders. Fails with the first status that is not ok; its message names the contender.
Result<std::vector<Series>> measure(const std::vector<Contender>& contenders, const Protocol& protocol);

}  // namespace tamis::bench
