// Decode steps in device memory, taken in turn: one pool of K and V, and for every turn page tables, lists,
// queries and results of its own.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device_lab.h"
#include "device_lists.h"
#include "tamis/attention.h"
#include "tamis/cuda.h"

namespace tamis::bench {

struct StepTurn {
  std::vector<std::vector<int32_t>> rows{};  // raw lists, request * 8 + KV head; none when dense
  std::vector<int32_t> table{};              // [requests * pages]
  int64_t selected = 0;                      // tokens, over rows
  Problem problem{};                         // views of device memory
  OutView out{};                             // bf16, with LSE
  DevicePieces reads{};                      // K and V of the selected tokens; none when dense or index only
  int64_t first_row = 0;                     // of K in the pool; dense turns have their own
  size_t query = 0, result = 0;              // buffers of q and out
};

// The three buffers of a step.
struct StepMemory {
  static Result<StepMemory> make(const cuda::StepPlan& plan, const DeviceStream& stream);  // cleared
  DeviceBuffer control, index, scratch;
  cuda::StepBuffers view{};
};

class StepSets {
 public:
  // `trace`: the file of a recorded spread. What does not fit the device is capacity_exceeded.
  static Result<std::unique_ptr<StepSets>> make(DeviceLab& lab, const StepWork& work,
                                                const std::string& trace);

  const StepWork& work() const { return work_; }
  int64_t count() const { return static_cast<int64_t>(turns_.size()); }
  const StepTurn& turn(int64_t i) const { return turns_[static_cast<size_t>(i)]; }
  const cuda::StepPlan& plan() const { return plan_; }
  int64_t bytes() const;  // K and V that a turn selects, mean
  int64_t flops() const;
  Json description() const;

  // For checks: a request's query and result, [32, 128] each. Poisoned before a run, a result proves that it
  // was written.
  Status poison(int64_t turn);
  Status download_query(int64_t turn, int64_t request, void* to) const;
  Status download_result(int64_t turn, int64_t request, void* to) const;
  // Rows of 256 bytes of the pool.
  Status download_rows(int64_t row, int64_t rows, void* to) const;
  int64_t v_rows() const { return pool_.bytes() / 512; }  // V starts so many rows after K

 private:
  explicit StepSets(const StepWork& work) : work_(work) {}
  Status build(DeviceLab& lab, const Trace* trace);
  Status make_pool(DeviceLab& lab);
  Status add_turn(DeviceLab& lab, RowMaker* maker, int64_t index);
  Status add_values(DeviceLab& lab, StepTurn* turn);
  Status add_pieces_of(RowMaker* maker, int64_t index, StepTurn* turn, std::vector<int32_t>* at) const;
  Result<void*> room(int64_t bytes);

  const StepWork work_;
  int64_t turn_count_ = 0;
  int64_t pool_pages_ = 0;
  DeviceBuffer pool_;             // K, then V
  std::vector<uint64_t> stamps_;  // of physical pages, where there are stamps
  std::vector<DeviceBuffer> buffers_;
  std::vector<DeviceProblem> arrays_;
  std::vector<StepTurn> turns_;
  cuda::StepPlan plan_;
};

}  // namespace tamis::bench
