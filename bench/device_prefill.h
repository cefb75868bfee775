// Readings of prefill on the device.
#pragma once

#include "device_prefill_sets.h"
#include "run.h"

namespace tamis::bench {

struct PrefillCase {
  std::string reading;  // without "prefill."
  PrefillWork work;
  bool parts = false;       // see below
  bool index_only = false;  // normalize and schedule
};
std::vector<PrefillCase> prefill_cases();

// NAME: attention over an index that is there. With `parts` also NAME.index_attend (normalize, schedule and
// attention), NAME.step_parts.normalize, .schedule and NAME.step_parts, their sum beside the whole.
Result<Readings> prefill_readings(Session& session, const std::string& name, const PrefillWork& work,
                                  bool parts);

// prefill.normalize.REST: normalize alone, with the sets checked; prefill.plan.REST: schedule alone. For
// lists that see all of what they list.
Result<Readings> prefill_index_readings(Session& session, const std::string& rest, const PrefillWork& work);

}  // namespace tamis::bench
