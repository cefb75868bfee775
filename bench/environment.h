// Where and from what a record was read.
#pragma once

#include <string>

#include "work.h"

namespace tamis::bench {

// The head of a record: schema, date, and everything that names the machine and the build. What does not
// apply to the CPU (gpu, driver, ...) is null. `isa` and `threads` are those of the run.
Json environment(const std::string& isa, int threads);

// "1-, 5- and 15-minute load averages and running/total tasks" as the system tells them, or "unknown".
std::string load_average();

}  // namespace tamis::bench
