// A prefill problem in device memory, and its judge on the host. Arithmetic binds, so there is one turn.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "check.h"
#include "device_lab.h"
#include "device_prefill_lists.h"
#include "device_sets.h"
#include "tamis/attention.h"
#include "tamis/cuda.h"

namespace tamis::bench {

// What a step of the work is asked for: the prefill kernel; where lists leave holes, whole blocks all the
// same, as large as the listed ones.
cuda::StepOptions prefill_options(const PrefillWork& work);

// The small arrays of a work, on the host, and its problem over them. Views point into this.
class PrefillArrays {
 public:
  PrefillArrays(const PrefillWork& work, const PrefillLists& lists);
  PrefillArrays(const PrefillArrays&) = delete;

  Problem problem(const void* q, const void* k, const void* v) const;
  // The same with lists as CSR: as the judge wants them.
  Problem judged_problem(const void* q, const void* k, const void* v) const;

 private:
  TensorView cache_view(const void* data) const;

  const PrefillWork& work_;
  const PrefillLists& lists_;
  std::vector<int32_t> cu_q_, cu_kv_, length_, table_, indptr_{0}, indices_;
};

class PrefillSet {
 public:
  // `trace`: the file of recorded lists. What does not fit the device is capacity_exceeded.
  static Result<std::unique_ptr<PrefillSet>> make(DeviceLab& lab, const PrefillWork& work,
                                                  const std::string& trace);

  const PrefillWork& work() const { return work_; }
  const PrefillLists& lists() const { return lists_; }
  const cuda::StepPlan& plan() const { return plan_; }
  const Problem& problem() const { return problem_; }  // views of device memory
  const OutView& out() const { return out_; }          // bf16, with LSE
  int64_t flops() const { return flops_of(work_, counted_); }
  int64_t bytes() const { return bytes_of(counted_); }

  // Poisoned before a run, a result proves that it was written.
  Status poison();
  // The result: some queries against the float64 reference, and no NaN anywhere, else max_error is infinite.
  Result<Judged> judge_result();

 private:
  explicit PrefillSet(const PrefillWork& work) : work_(work) {}
  Status build(DeviceLab& lab);
  Status add_values(DeviceLab& lab);
  Result<void*> room(int64_t bytes);
  Status bring(size_t buffer, std::vector<uint16_t>* to);

  const PrefillWork work_;
  PrefillLists lists_;
  PrefillCount counted_;
  std::optional<PrefillArrays> host_;
  std::vector<DeviceBuffer> buffers_;               // q, k, v, out, LSE
  std::optional<DeviceProblem> arrays_;             // all else
  std::vector<uint16_t> host_q_, host_k_, host_v_;  // brought for the first check
  Problem problem_;
  OutView out_;
  cuda::StepPlan plan_;
};

// Queries that a check compares: the last, the first, both sides of a tile's border, random ones; fewer where
// each selects much.
std::vector<int64_t> judged_queries(const PrefillWork& work, const PrefillCount& counted);

}  // namespace tamis::bench
