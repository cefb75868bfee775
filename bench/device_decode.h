// Readings of decode steps on the device.
#pragma once

#include "device_ceilings.h"
#include "device_sets.h"
#include "run.h"

namespace tamis::bench {

// NAME.attend (attention and merge over an index that is there), NAME.index_attend (normalize, schedule,
// attention, merge) and NAME.reader; with `parts` also NAME.step_parts.normalize, .schedule and
// NAME.step_parts, their sum beside the whole. A dense step gives NAME and NAME.reader.
Result<Readings> step_readings(Session& session, const std::string& name, const StepWork& work, bool parts);

// NAME: normalize alone, with the sets checked.
Result<Readings> device_normalize_reading(Session& session, const std::string& name, const StepWork& work);

// NAME.graph: schedule alone, as nodes of a graph. NAME.host: what the host spends on a step's plan, from
// extents to the launch; .plan_step and .launch are its parts.
Result<Readings> device_plan_reading(Session& session, const std::string& name, const StepWork& work);

}  // namespace tamis::bench
