// Measuring one piece of work: what every case does once its problems are made.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ceilings.h"
#include "record.h"
#include "tamis/attention.h"

namespace tamis::bench {

struct DeviceLab;

// What the cases of one run share. `progress` may be empty.
struct Session {
  Context context;
  Protocol protocol;
  Ceilings ceilings;
  std::string trace;  // file of recorded selections; empty: none was named
  std::function<void(const std::string&)> progress;
  DeviceLab* device = nullptr;  // of a run on the device, whose `ceilings` stay empty
  double device_read_tb_s = 0;

  void say(const std::string& text) const {
    if (progress) progress(text);
  }
};

using Readings = std::vector<Reading>;

// A step from candidates to result, as a caller would keep it between steps.
struct Step {
  IndexSet index;
  Bundles bundles;
  Plan plan;
  Schedule schedule;
};
Status normalize_step(const Problem& problem, Path path, Step* step);
// bundle, make_plan, schedule; `parts`, when given, receives their times.
Status plan_step(const Problem& problem, Path path, Step* step, Parts* parts = nullptr);

// Attention over `work`, interleaved with the reader of the same bytes (where the work has one), with
// normalize and plan alone, and with the whole of it. Readings: NAME (attention and merge over an index that
// is there), NAME.attention, NAME.merge, NAME.reader, NAME.normalize, NAME.plan, NAME.plan.*, NAME.whole.
Result<Readings> attention_readings(Session& session, const std::string& name, const Work& work, Path path);

// The index cases (index_cases.cpp).
Result<Readings> normalize_reading(Session& session, const std::string& name, const Work& work);
Result<Readings> plan_reading(Session& session, const std::string& name, const Work& work);
// One plan and `layers` uses of it, each with the checks that a run makes.
Result<Readings> reuse_reading(Session& session, const std::string& name, const Work& work, int64_t layers);

// The `case` of a reading: the work's, and on what it ran.
Json described(const Session& session, const Work& work);

}  // namespace tamis::bench
