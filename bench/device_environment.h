// What names the device in a record.
#pragma once

#include "device_graph.h"
#include "work.h"

namespace tamis::bench {

// gpu, driver, cuda, clocks, power_limit, ecc and the processes on the device, as nvidia-smi tells where it
// is installed; null where nobody does. `environment` is the head of a record.
void add_device_environment(const DeviceFacts& facts, Json* environment);
// The clocks right after the run, and the processes again.
void add_device_afterwards(const DeviceFacts& facts, Json* environment);

// Fields of one line of comma-separated values, without the blanks around them; "[N/A]" and the like are
// null.
Json fields_of(const std::string& line, const std::vector<std::string>& names);

}  // namespace tamis::bench
