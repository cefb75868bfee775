// The schedule on the device: tasks in a caller's scratch, the verdict in a caller's control words.
#pragma once

#include <cstdint>

#include "index/device.h"
#include "plan/partition.h"
#include "tamis/status.h"

namespace tamis {

// A Task of tamis/plan.h, with what the merge needs beside it: one load of 32 bytes.
struct alignas(16) DeviceTask {
  int32_t bundle, kv_head;
  int32_t begin, end;  // blocks
  int32_t part;        // -1: the whole row
  int32_t first_part, parts;
  int32_t counter;  // of arrivals, where it is split
};

// Words that outlive index and scratch. What `clear` zeroes.
struct DeviceControl {
  uint64_t epoch;                // steps scheduled
  index::OffenceRecord verdict;  // of the last; code 0: ok
  int64_t tasks, parts, most_parts;
};

// What schedule() leaves in index and scratch, and run() looks for there. Every control buffer counts from 1,
// so its address is part of it: what two sets share never looks like the other's.
TAMIS_HD inline uint64_t stamp_of(const DeviceControl* control, uint64_t epoch) {
  return epoch + reinterpret_cast<uintptr_t>(control) * 0x9E3779B97F4A7C15ull;
}

struct ScratchHead {
  uint64_t stamp;
  int32_t code;  // of the verdict
  int32_t tasks;
  uint64_t plan;  // fingerprint and sizes of the plan that wrote it
  uint64_t unused;
};

struct PartialSum {
  float m, l;  // base 2: m is the maximum of s * log2(e). l < 0: keys were selected, all at -inf
};

// Partial state of query row r of part p: row p * rows + r.
struct DeviceScratch {
  ScratchHead* head;
  DeviceTask* tasks;   // [most tasks]
  uint32_t* arrivals;  // [counters * column tiles]
  float* o;            // [parts * rows, Dv]
  PartialSum* ml;      // [parts * rows]
  int64_t rows;        // query rows of a group, at most
  char* rest;          // what only the prefill kernel uses
};

struct ScratchLayout {
  int64_t tasks, arrivals, o, ml, rest, bytes;
};
ScratchLayout scratch_layout(int64_t tasks, int64_t arrivals, int64_t partial_rows, int64_t v_head_dim,
                             int64_t rest_words = 0);
DeviceScratch scratch_at(void* memory, const ScratchLayout& layout, int64_t rows);

struct ScheduleArgs {
  index::DeviceIndex index;
  DeviceScratch scratch;
  DeviceControl* control;
  Partition rule;  // kEven: `share` is found here; else as it stands
  int64_t shares;
  int64_t most_tasks, most_parts, arrivals;
  bool counts_parts;  // counters are numbered by first parts: there are fewer parts than groups
  int32_t kv_heads_served, bundles_a_block;
  uint64_t plan;        // mark of scratch
  uint64_t index_plan;  // the mark that the index set must have
};

Status launch_schedule(const ScheduleArgs& args, void* stream);

}  // namespace tamis
