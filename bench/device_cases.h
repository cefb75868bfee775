// The benches of the device by name, and what a run of them starts with.
#pragma once

#include <memory>

#include "cases.h"
#include "device_lab.h"

namespace tamis::bench {

// Case names start with "cuda."; readings are named without it (docs/benchmarks.md).
std::vector<Case> device_cases();
// Those of prefill among them.
std::vector<Case> device_prefill_cases();

// The device, its ceilings, and what names it in the record. device_error where there is none.
Result<std::unique_ptr<DeviceLab>> start_device(Session* session, Record* record);

// Adds what the device says at the end of a run: its clocks under load, and who else used it.
void finish_device(const DeviceLab& lab, Record* record);

}  // namespace tamis::bench
