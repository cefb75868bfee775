// Plans and schedules.
//
// A Plan is an immutable value made from shapes and capacities: which path and why, tile and block, buffer
// sizes, workspace bytes, and a fingerprint of what shapes a kernel. Layers of one shape share it; pointers
// are no part of it. A Schedule is what one step's rows turn into: tasks, and the slots their partial states
// land in. Both are made on the host here and own their memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tamis/bundle.h"
#include "tamis/device.h"
#include "tamis/problem.h"
#include "tamis/status.h"

namespace tamis {

enum class Path : uint8_t { kAuto, kDirect, kGather, kDense };
const char* path_name(Path path);

enum class Fallback : uint8_t { kAllow, kRefuse };

// What a plan must be able to hold. Sizes follow from these alone, never from the values of one step.
struct Capacities {
  int64_t requests = 0, queries = 0;
  int64_t rows = 0;         // candidate rows
  int64_t entries = 0;      // blocks of all bundles
  int64_t row_entries = 0;  // blocks of one bundle
  // Query rows of one bundle and KV head: queries times query heads. 0: as many as `queries` allow, which is
  // safe and for prefill far more workspace than any step needs.
  int64_t group_rows = 0;
};

// The capacities that exactly hold this problem and its bundles.
Capacities capacities_of(const Problem& problem, const BundleView& bundles);

struct PlanOptions {
  Backend backend = Backend::kCpu;
  Path path = Path::kAuto;
  Fallback fallback = Fallback::kAllow;
  int32_t splits = 0;  // 0: balanced; else every row is cut into this many parts, some perhaps empty
  // Split borders of a row depend on that row alone. forward() then also lets shapes, not the batch, choose
  // where policy or path are `auto`; who calls the stages names both.
  bool batch_invariant = false;
  int32_t shares = 0;  // 0: the backend's. Equal shares a balanced schedule aims at; never the thread count
  int32_t min_tiles = 0;  // tiles of a part below which a row is not split; 0: the backend's for this mode
  int64_t workspace_budget = -1;  // bytes; -1: no limit. Fewer splits are made to keep within it
};

struct WorkspaceSize {
  int64_t bound = 0;    // enough for any step within the capacities
  int64_t typical = 0;  // enough where rows are of like length
};

struct Plan {
  Backend backend;
  Path path;
  std::string reason;  // why this path, block or split count; empty when it is simply what was asked for
  int32_t block;       // Bk of the index sets it runs
  int32_t tile;        // KV tokens of a tile
  int32_t splits;      // forced count, or 0
  bool batch_invariant;
  int32_t shares;
  int64_t min_part;   // blocks
  int64_t max_parts;  // of one row
  Capacities capacities;
  Shape shape;  // the sizes that do not change from step to step: heads, head sizes, page size, bits
  WorkspaceSize workspace;
  uint64_t fingerprint;
};

// Chooses by shapes and capacities. `unsupported` for backend reference, and for gather when the fallback is
// refused; `workspace_too_small` only for forced splits over the budget when the fallback is refused. Dtypes,
// head sizes, dropout and formats are judged by `forward` and `run`.
Result<Plan> make_plan(const Problem& problem, const Capacities& capacities, int32_t block,
                       const PlanOptions& options = {});

// The fingerprint a problem would give: what `run` compares with the plan's.
uint64_t fingerprint(const Problem& problem, const Shape& shape, int32_t block, Backend backend);

// One piece of work: blocks [begin, end) of a bundle for one KV head. `part` is where its partial state goes,
// in units of parts, or -1: it is the whole row and writes the result itself.
struct Task {
  int32_t bundle, kv_head;
  int32_t begin, end;
  int32_t part;
};

// A (bundle, KV head) that was split: its parts, in order, are first_part .. first_part + parts.
struct MergeItem {
  int32_t bundle, kv_head;
  int32_t first_part, parts;
};

struct ScheduleStats {
  int64_t tasks = 0, split_rows = 0, parts = 0, empty_tasks = 0;
  int64_t most_parts = 1;   // of one row
  Percentiles task_blocks;  // work of a task
  int64_t workspace_bytes = 0;
};

struct Schedule {
  std::vector<Task> tasks;  // any order gives the same result
  std::vector<MergeItem> merges;
  std::vector<int64_t> part_rows;  // [parts + 1] first query row of each part's state
  ScheduleStats stats;
  uint64_t fingerprint = 0;  // the plan's
  uint64_t stamp = 0;        // of the bundle lengths that shaped it
};

// Turns bundles into tasks. Pure: same plan and bundles, same schedule. capacity_exceeded where the bundles
// outgrow the plan, stale_plan where they were made for another block size.
Result<Schedule> schedule(const Plan& plan, const BundleView& bundles);

// The stamp of some bundles: equal stamps mean that a schedule of the one is right for the other.
uint64_t schedule_stamp(const BundleView& bundles);

// Bytes of partial states of a schedule: per (part, query row) Dv + 2 floats, each array on a 64-byte line.
int64_t partial_bytes(const Plan& plan, const Schedule& schedule);

}  // namespace tamis
