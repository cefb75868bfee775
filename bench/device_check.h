// What came of a step on the device, judged on the host: results by the float64 reference, sets by the lists.
#pragma once

#include "check.h"
#include "device_sets.h"

namespace tamis::bench {

// Result of one request of a turn against the reference, over the K, V and q that the device holds: the pages
// it touches are brought to the host.
Result<Judged> judge_request(const StepSets& sets, int64_t turn, int64_t request);

// Index sets of a turn that differ from what its lists say. `memory` must hold a step that was scheduled.
struct JudgedSets {
  int64_t wrong = 0, sets = 0;
};
Result<JudgedSets> judge_sets(const StepSets& sets, int64_t turn, const StepMemory& memory,
                              const DeviceStream& stream);

// Tokens of a bundle of one list, ascending.
std::vector<int32_t> tokens_of(const cuda::FetchedBundle& bundle, int32_t block);

}  // namespace tamis::bench
