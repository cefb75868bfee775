// schedule() on the device: one CTA. The same pure functions as on the host cut each group; here they run
// side by side. The CTA also judges the batch: the first offence of all bundles becomes the verdict.
#include "core/device.cuh"
#include "core/launch.h"
#include "plan/device.h"

namespace tamis {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32;

struct Shared {
  uint64_t parts[kWarps];
  int64_t sums[kWarps];
  int64_t most[kWarps];
  int64_t candidate[kEvenCandidates];
  // Of the groups of one chunk: first task, first part, and how they are cut.
  int32_t first_task[kThreads], first_part[kThreads], count[kThreads], cut_parts[kThreads];
};

struct Totals {
  int64_t blocks = 0;  // of all groups
  uint64_t offence = index::kNoOffence;
};

class Scheduler {
 public:
  __device__ Scheduler(const ScheduleArgs& args, Shared& shared) : a_(args), s_(shared) {}

  __device__ void schedule() {
    for (int64_t i = threadIdx.x; i < a_.arrivals; i += kThreads) a_.scratch.arrivals[i] = 0;
    const Totals totals = read_bundles();
    Partition rule = a_.rule;
    if (rule.split == Split::kEven) rule = even_partition(find_share(totals.blocks), rule.min_part);
    bool refused = totals.offence != index::kNoOffence;
    if (!refused) cut_groups(rule);
    refused = refused || tasks_ > a_.most_tasks || parts_ > a_.most_parts;
    finish(totals, refused);
  }

 private:
  __device__ int64_t groups() const { return int64_t{a_.index.bundles} * a_.kv_heads_served; }
  __device__ int32_t blocks_of(int64_t group) const {
    return a_.index.bundle[group / a_.kv_heads_served].count;
  }

  __device__ Totals read_bundles() {
    Totals t;
    int64_t blocks = 0, raw = 0, padding = 0, invalid = 0, duplicates = 0, unique = 0, future = 0, gaps = 0,
            touched = 0, selected = 0, live = 0, empty = 0;
    for (int64_t b = threadIdx.x; b < a_.index.bundles; b += kThreads) {
      const index::DeviceBundle& r = a_.index.bundle[b];
      t.offence = r.offence < t.offence ? r.offence : t.offence;
      blocks += r.count;
      raw += r.raw, padding += r.padding, invalid += r.invalid, duplicates += r.duplicates;
      unique += r.unique, future += r.future, gaps += r.gaps, touched += r.touched, selected += r.selected;
      live += r.request >= 0;
      empty += r.request >= 0 && r.count == 0;
    }
    t.offence = device::block_min(t.offence, s_.parts);
    const auto sum = [&](int64_t value) { return device::block_sum(value, s_.sums); };
    blocks = sum(blocks);
    t.blocks = blocks * a_.kv_heads_served;
    raw = sum(raw), padding = sum(padding), invalid = sum(invalid), duplicates = sum(duplicates);
    unique = sum(unique), future = sum(future), gaps = sum(gaps), touched = sum(touched);
    selected = sum(selected), live = sum(live), empty = sum(empty);
    if (threadIdx.x == 0) {
      DeviceControl& c = *a_.control;
      c.raw = raw, c.padding = padding, c.invalid = invalid, c.duplicates = duplicates, c.unique = unique;
      c.future = future, c.bundles = live, c.empty_bundles = empty, c.blocks = blocks, c.gaps = gaps;
      c.touched_pages = touched, c.selected = selected;
    }
    return t;
  }

  // One warp a candidate; the smallest share whose parts fit into one wave.
  __device__ int64_t find_share(int64_t total) {
    const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
    // As on the host: with more groups than shares nothing fits.
    for (int k = warp; k < kEvenCandidates && groups() <= a_.shares; k += kWarps) {
      const int64_t share = even_candidate(total, a_.shares, a_.rule.min_part, k);
      int64_t parts = 0;
      for (int64_t b = lane; b < a_.index.bundles; b += 32)
        parts += even_parts(a_.index.bundle[b].count, share, a_.rule.min_part);
      for (int d = 16; d > 0; d >>= 1) parts += __shfl_xor_sync(~0u, parts, d);
      if (lane == 0) s_.candidate[k] = parts * a_.kv_heads_served;
    }
    __syncthreads();
    for (int k = 0; k < kEvenCandidates && groups() <= a_.shares; ++k)
      if (s_.candidate[k] <= a_.shares) return even_candidate(total, a_.shares, a_.rule.min_part, k);
    return even_candidate(total, a_.shares, a_.rule.min_part, 0);
  }

  __device__ void cut_groups(const Partition& rule) {
    const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
    for (int64_t chunk = 0; chunk < groups(); chunk += kThreads) {
      const int64_t group = chunk + threadIdx.x;
      const int32_t count = group < groups() ? blocks_of(group) : 0;
      const Cuts cuts = cut(rule, 0, count);
      const int64_t parts = group < groups() ? cuts.parts : 0, split = parts > 1 ? parts : 0;
      int64_t all_tasks = 0, all_parts = 0;
      const int64_t first_task = tasks_ + device::block_prefix(parts, s_.sums, &all_tasks);
      const int64_t first_part = parts_ + device::block_prefix(split, s_.sums, &all_parts);
      most_ = parts > most_ ? parts : most_;
      s_.first_task[threadIdx.x] = static_cast<int32_t>(first_task);
      s_.first_part[threadIdx.x] = static_cast<int32_t>(first_part);
      s_.count[threadIdx.x] = count;
      s_.cut_parts[threadIdx.x] = static_cast<int32_t>(parts);
      tasks_ += all_tasks;
      parts_ += all_parts;
      __syncthreads();
      if (tasks_ > a_.most_tasks || parts_ > a_.most_parts) return;
      for (int g = warp; g < kThreads && chunk + g < groups(); g += kWarps)
        write_tasks(rule, chunk + g, g, lane);
      __syncthreads();
    }
  }

  __device__ void write_tasks(const Partition& rule, int64_t group, int g, int lane) {
    const Cuts cuts = cut(rule, 0, s_.count[g]);
    const int32_t bundle = static_cast<int32_t>(group / a_.kv_heads_served);
    const int32_t head = a_.kv_heads_served > 1 ? static_cast<int32_t>(group % a_.kv_heads_served)
                                                : static_cast<int32_t>(bundle % a_.bundles_a_block);
    const bool split = cuts.parts > 1;
    for (int64_t i = lane; i < cuts.parts; i += 32)
      a_.scratch.tasks[s_.first_task[g] + i] = {
          .bundle = bundle,
          .kv_head = head,
          .begin = static_cast<int32_t>(border(cuts, i)),
          .end = static_cast<int32_t>(border(cuts, i + 1)),
          .part = split ? s_.first_part[g] + static_cast<int32_t>(i) : -1,
          .first_part = s_.first_part[g],
          .parts = s_.cut_parts[g],
          .group = static_cast<int32_t>(group)};
  }

  // The record of the first offence, the counts of the schedule and the epochs that let it run.
  __device__ void finish(const Totals& totals, bool refused) {
    DeviceControl& c = *a_.control;
    const int64_t most =
        static_cast<int64_t>(~device::block_min(~static_cast<uint64_t>(refused ? 0 : most_), s_.parts));
    const uint64_t epoch = c.epoch + 1;
    uint64_t owner = index::kNoOffence;  // several bundles may have met the same offence
    for (int64_t b = threadIdx.x; refused && b < a_.index.bundles; b += kThreads)
      if (a_.index.bundle[b].offence == totals.offence && static_cast<uint64_t>(b) < owner)
        owner = static_cast<uint64_t>(b);
    owner = device::block_min(owner, s_.parts);
    if (threadIdx.x != 0) return;
    if (!refused)
      c.verdict = {0, -1, -1, -1, 0};
    else if (totals.offence != index::kNoOffence)
      c.verdict = a_.index.bundle[owner].record;
    else
      c.verdict = {static_cast<int32_t>(Code::kCapacityExceeded), -1, -1, -1, tasks_};
    c.tasks = refused ? 0 : tasks_;
    c.parts = refused ? 0 : parts_;
    c.most_parts = most;
    c.verdict_epoch = epoch;
    a_.scratch.head->epoch = epoch;
    a_.scratch.head->code = c.verdict.code;
    a_.scratch.head->tasks = refused ? 0 : static_cast<int32_t>(tasks_);
    a_.scratch.head->plan = a_.plan;
    a_.index.head->epoch = epoch;
    c.epoch = epoch;
  }

  const ScheduleArgs& a_;
  Shared& s_;
  int64_t tasks_ = 0, parts_ = 0, most_ = 1;
};

__global__ void __launch_bounds__(kThreads) schedule_kernel(const __grid_constant__ ScheduleArgs args) {
  __shared__ Shared shared;
  device::let_successor_start();
  device::wait_for_predecessor();
  Scheduler(args, shared).schedule();
}

int64_t to_line(int64_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

ScratchLayout scratch_layout(int64_t tasks, int64_t arrivals, int64_t partial_rows, int64_t v_head_dim) {
  ScratchLayout l{};
  l.tasks = to_line(sizeof(ScratchHead));
  l.arrivals = l.tasks + to_line(tasks * static_cast<int64_t>(sizeof(DeviceTask)));
  l.o = l.arrivals + to_line(arrivals * 4);
  l.ml = l.o + to_line(partial_rows * v_head_dim * 4);
  l.bytes = l.ml + to_line(partial_rows * 8);
  return l;
}

DeviceScratch scratch_at(void* memory, const ScratchLayout& layout, int64_t rows) {
  char* at = static_cast<char*>(memory);
  return {.head = reinterpret_cast<ScratchHead*>(at),
          .tasks = reinterpret_cast<DeviceTask*>(at + layout.tasks),
          .arrivals = reinterpret_cast<uint32_t*>(at + layout.arrivals),
          .o = reinterpret_cast<float*>(at + layout.o),
          .ml = reinterpret_cast<PartialSum*>(at + layout.ml),
          .rows = rows};
}

Status launch_schedule(const ScheduleArgs& args, void* stream) {
  return device::launch(&schedule_kernel, {.blocks = dim3(1), .threads = kThreads, .early = true}, args,
                        static_cast<cudaStream_t>(stream), "schedule");
}

}  // namespace tamis
