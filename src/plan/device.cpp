// Where the parts of a step's scratch lie.
#include "plan/device.h"

#include "core/saturating.h"

namespace tamis {

ScratchLayout scratch_layout(int64_t tasks, int64_t arrivals, int64_t partial_rows, int64_t v_head_dim,
                             int64_t rest_words) {
  ScratchLayout l{};
  l.tasks = to_line(sizeof(ScratchHead));
  l.arrivals = l.tasks + to_line(tasks * static_cast<int64_t>(sizeof(DeviceTask)));
  l.o = l.arrivals + to_line(arrivals * 4);
  l.ml = l.o + to_line(partial_rows * v_head_dim * 4);
  l.rest = l.ml + to_line(partial_rows * 8);
  l.bytes = l.rest + to_line(rest_words * 8);
  return l;
}

DeviceScratch scratch_at(void* memory, const ScratchLayout& layout, int64_t rows) {
  char* at = static_cast<char*>(memory);
  return {.head = reinterpret_cast<ScratchHead*>(at),
          .tasks = reinterpret_cast<DeviceTask*>(at + layout.tasks),
          .arrivals = reinterpret_cast<uint32_t*>(at + layout.arrivals),
          .o = reinterpret_cast<float*>(at + layout.o),
          .ml = reinterpret_cast<PartialSum*>(at + layout.ml),
          .rows = rows,
          .rest = at + layout.rest};
}

}  // namespace tamis
