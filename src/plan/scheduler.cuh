// schedule() on the device: one CTA. The same pure functions as on the host cut each group; here they run
// side by side. The CTA also judges the batch: the first offence of all bundles becomes the verdict.
#pragma once

#include "core/device.cuh"
#include "plan/device.h"

namespace tamis::scheduling {

// One CTA: what each thread does waits for what the others do, so more of them would not be faster.
inline constexpr int kThreads = 256, kWarps = kThreads / 32;

inline constexpr int kHeld = 4096;  // block counts of bundles kept in shared memory: more are read again
inline constexpr int kAtOnce = 8;   // loads under way in a thread where there are more than threads
inline constexpr int kLongChunk = kAtOnce * kThreads;
inline constexpr int32_t kAnyLength = INT32_MAX;

struct Shared {
  uint64_t keys[kWarps];
  int64_t sums[kWarps];
  int64_t candidate[kWarps];  // the share, or -1: does not fit
  // Of the groups of one chunk: first task (of the chunk), first part, borders.
  int32_t first_task[kThreads], first_part[kThreads];
  Cuts cuts[kThreads];
  int32_t count[kHeld];
};

class Scheduler {
 public:
  __device__ Scheduler(const ScheduleArgs& args, Shared& shared) : a_(args), s_(shared) {}

  __device__ void schedule() {
    // By fours: they begin on a line and nothing else is on their last one.
    for (int64_t i = threadIdx.x; i < (a_.arrivals + 3) / 4; i += kThreads)
      reinterpret_cast<uint4*>(a_.scratch.arrivals)[i] = {0, 0, 0, 0};
    const int64_t total = read_bundles();
    Partition rule = a_.rule;
    if (rule.split == Split::kEven) rule = even_partition(find_share(total), rule.min_part);
    // Memory that no normalize of this plan has filled may hold anything.
    stale_ = a_.index.head->mark.plan != a_.index_plan;
    bool refused = __syncthreads_or(offence_ != index::kNoOffence) || stale_;
    if (!refused) cut_groups(rule);
    refused = refused || refused_;
    // `run` asks for its task before it knows how many there are.
    for (int64_t t = (refused ? 0 : tasks_) + threadIdx.x; t < a_.most_tasks; t += kThreads)
      a_.scratch.tasks[t] = {};
    finish(refused);
  }

 private:
  // Rows that this step does not have come last, and have no task. Only where no bundle has an offence.
  __device__ int32_t groups() const { return live_bundles_ * a_.kv_heads_served; }
  __device__ int32_t blocks_of(int32_t bundle) const {
    return bundle < kHeld ? s_.count[bundle] : a_.index.count[bundle];
  }

  // Blocks of all groups; the offences on the way.
  __device__ int64_t read_bundles() {
    int64_t blocks = 0, live = 0;
    const auto add = [&](uint64_t offence, int32_t count) {
      offence_ = offence < offence_ ? offence : offence_;
      blocks += max(count, 0);
      longest_ = max(longest_, count);
      live += count >= 0;
    };
    const int32_t bundles = a_.index.bundles;
    int32_t first = static_cast<int32_t>(threadIdx.x);
#pragma unroll 1
    for (int32_t left = bundles; left > kThreads; left -= kLongChunk, first += kLongChunk) {
      uint64_t offence[kAtOnce];
      int32_t count[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const int32_t b = first + k * kThreads;
        offence[k] = b < bundles ? a_.index.offence[b] : index::kNoOffence;
        count[k] = b < bundles ? a_.index.count[b] : -1;
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        if (first + k * kThreads < kHeld) s_.count[first + k * kThreads] = count[k];
        add(offence[k], count[k]);
      }
    }
    if (first < bundles) {
      const uint64_t offence = a_.index.offence[first];
      const int32_t count = a_.index.count[first];
      if (first < kHeld) s_.count[first] = count;
      add(offence, count);
    }
    live_bundles_ = static_cast<int32_t>(device::block_sum(live, s_.sums));
    return device::block_sum(blocks, s_.sums) * a_.kv_heads_served;
  }

  // One warp a candidate, the smallest first; the first with which all parts fit into one wave.
  __device__ int64_t find_share(int64_t total) {
    const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
    // As on the host: with more groups than shares nothing fits.
    for (int first = 0; first < kEvenCandidates && groups() <= a_.shares; first += kWarps) {
      const int64_t share = even_candidate(total, a_.shares, a_.rule.min_part, first + warp);
      int64_t parts = 0;
      for (int32_t b = lane; b < live_bundles_; b += 32)
        parts += even_parts(max(blocks_of(b), 0), share, a_.rule.min_part);
      parts = device::warp_sum(parts) * a_.kv_heads_served;
      if (lane == 0) s_.candidate[warp] = parts <= a_.shares ? share : -1;
      __syncthreads();
      for (int k = 0; k < kWarps; ++k)
        if (s_.candidate[k] >= 0) return s_.candidate[k];
      __syncthreads();
    }
    return even_candidate(total, a_.shares, a_.rule.min_part, 0);
  }

  __device__ void cut_groups(const Partition& rule) {
    int32_t limit = static_cast<int32_t>(min(whole_up_to(rule), int64_t{kAnyLength}));
    if (groups() > kThreads && !__syncthreads_or(longest_ > limit)) limit = kAnyLength;
    for (int32_t chunk = 0; chunk < groups();) {
      const bool maybe = limit == kAnyLength || (chunk % kLongChunk == 0 && groups() > kHeld);
      if (maybe && write_whole(chunk, limit)) {
        chunk += kLongChunk;
      } else {
        cut_chunk(rule, chunk);
        chunk += kThreads;
      }
    }
  }

  // The tasks of the next groups where none of them is cut, as is usual where groups are many: no sums are
  // needed then, and several counts are under way together. False, with nothing done, where one is cut: is
  // longer than `whole_up_to`.
  __device__ bool write_whole(int32_t chunk, int32_t whole_up_to) {
    const int32_t* counts = a_.index.bundles <= kHeld ? s_.count : a_.index.count;
    const int32_t first = chunk + static_cast<int32_t>(threadIdx.x), here = min(groups() - chunk, kLongChunk);
    int32_t count[kAtOnce], longest = 0;
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int32_t group = first + k * kThreads;
      count[k] = group - chunk < here ? counts[group / a_.kv_heads_served] : 0;
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) longest = max(longest, count[k]);
    if (whole_up_to < kAnyLength && __syncthreads_or(longest > whole_up_to)) return false;
    refused_ = refused_ || tasks_ + here > a_.most_tasks;
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int32_t group = first + k * kThreads;
      if (group - chunk < here && !refused_)
        a_.scratch.tasks[tasks_ + (group - chunk)] =
            task_of(group, whole(count[k]), 0, static_cast<int32_t>(parts_));
    }
    tasks_ += here;
    return true;
  }

  __device__ void cut_chunk(const Partition& rule, int32_t chunk) {
    const int32_t group = chunk + static_cast<int32_t>(threadIdx.x);
    const Cuts cuts =
        group < groups() ? cut(rule, 0, blocks_of(group / a_.kv_heads_served)) : Cuts{0, 0, 0, 0};
    const int64_t parts = cuts.parts;
    // Two prefix sums in one: tasks above, parts of rows that are split below.
    int64_t all = 0;
    const int64_t before = device::block_prefix(parts << 32 | (parts > 1 ? parts : 0), s_.sums, &all);
    most_ = parts > most_ ? parts : most_;
    s_.first_task[threadIdx.x] = static_cast<int32_t>(before >> 32);
    s_.first_part[threadIdx.x] = static_cast<int32_t>(parts_ + (before & 0xFFFFFFFF));
    s_.cuts[threadIdx.x] = cuts;
    if (tasks_ + (all >> 32) > a_.most_tasks || parts_ + (all & 0xFFFFFFFF) > a_.most_parts) refused_ = true;
    __syncthreads();
    const int32_t here = refused_ ? 0 : static_cast<int32_t>(all >> 32);
    for (int32_t t = static_cast<int32_t>(threadIdx.x); t < here; t += kThreads) write_task(chunk, t);
    tasks_ += all >> 32;
    parts_ += all & 0xFFFFFFFF;
    __syncthreads();
  }

  // Task `t` of the groups of a chunk: its group is the last that begins at or before it.
  __device__ void write_task(int32_t chunk, int32_t t) {
    int g = 0;
    for (int step = kThreads / 2; step > 0; step /= 2)
      if (s_.first_task[g + step] <= t) g += step;
    a_.scratch.tasks[tasks_ + t] = task_of(chunk + g, s_.cuts[g], t - s_.first_task[g], s_.first_part[g]);
  }

  __device__ DeviceTask task_of(int32_t group, const Cuts& cuts, int32_t part, int32_t first_part) const {
    const int32_t bundle = group / a_.kv_heads_served;
    return {.bundle = bundle,
            .kv_head = a_.kv_heads_served > 1 ? group % a_.kv_heads_served : bundle % a_.bundles_a_block,
            .begin = static_cast<int32_t>(border(cuts, part)),
            .end = static_cast<int32_t>(border(cuts, part + 1)),
            .part = cuts.parts > 1 ? first_part + part : -1,
            .first_part = first_part,
            .parts = static_cast<int32_t>(cuts.parts),
            .counter = a_.counts_parts ? first_part : group};
  }

  // The record of the first offence, the counts of the schedule and the stamps that let it run.
  __device__ void finish(bool refused) {
    DeviceControl& c = *a_.control;
    index::OffenceRecord verdict{0, -1, -1, -1, 0};
    if (refused) verdict = first_offence();
    const int64_t most = static_cast<int64_t>(~device::block_min(~static_cast<uint64_t>(most_), s_.keys));
    if (threadIdx.x != 0) return;
    const uint64_t epoch = c.epoch + 1, stamp = stamp_of(a_.control, epoch);
    c.verdict = verdict;
    c.tasks = refused ? 0 : tasks_;
    c.parts = refused ? 0 : parts_;
    c.most_parts = refused ? 0 : most;
    a_.scratch.head->stamp = stamp;
    a_.scratch.head->code = verdict.code;
    a_.scratch.head->tasks = refused ? 0 : static_cast<int32_t>(tasks_);
    a_.scratch.head->plan = a_.plan;
    a_.index.head->stamp = stamp;
    c.epoch = epoch;
  }

  __device__ index::OffenceRecord first_offence() {
    if (stale_) return {static_cast<int32_t>(Code::kStalePlan), -1, -1, -1, 0};
    const uint64_t key = device::block_min(offence_, s_.keys);
    if (key == index::kNoOffence) return {static_cast<int32_t>(Code::kCapacityExceeded), -1, -1, -1, tasks_};
    uint64_t owner = index::kNoOffence;  // several bundles may have met the same offence
    for (int32_t b = static_cast<int32_t>(threadIdx.x); b < a_.index.bundles; b += kThreads)
      if (a_.index.offence[b] == key && static_cast<uint64_t>(b) < owner) owner = static_cast<uint64_t>(b);
    return a_.index.record[device::block_min(owner, s_.keys)];
  }

  const ScheduleArgs& a_;
  Shared& s_;
  uint64_t offence_ = index::kNoOffence;
  int32_t longest_ = 0;       // blocks of a bundle, of those that this thread has read
  int32_t live_bundles_ = 0;  // of rows that this step has
  int64_t tasks_ = 0, parts_ = 0, most_ = 1;
  bool stale_ = false;
  bool refused_ = false;  // more tasks or parts than the plan holds; the same in all threads
};

}  // namespace tamis::scheduling
