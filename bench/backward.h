// Measuring gradients: one planned backward over the index and the LSE that a forward left.
#pragma once

#include <string>

#include "run.h"

namespace tamis::bench {

// Readings: NAME (run_backward), NAME.clear, .query, .transpose, .key (its parts), NAME.plan (plan_backward).
// FLOPs are 2.5 times the forward's, as everywhere: five products of the selected edges against two.
// `work` must have gradients of its outputs.
Result<Readings> backward_readings(Session& session, const std::string& name, const Work& work);

}  // namespace tamis::bench
