// Writes the tasks of one group. The host loops over groups; on the device a thread does one.
#pragma once

#include <cstdint>

#include "core/hd.h"
#include "plan/partition.h"
#include "tamis/plan.h"

namespace tamis {

// tasks [cuts.parts]. first_part: the number of the group's first part; unused where the group is whole,
// since then its task writes the result itself.
TAMIS_HD inline void write_tasks(const Cuts& cuts, int32_t bundle, int32_t kv_head, int32_t first_part,
                                 Task* tasks) {
  for (int64_t i = 0; i < cuts.parts; ++i)
    tasks[i] = {bundle, kv_head, static_cast<int32_t>(border(cuts, i)),
                static_cast<int32_t>(border(cuts, i + 1)),
                cuts.parts > 1 ? static_cast<int32_t>(first_part + i) : -1};
}

}  // namespace tamis
