// Handles of the C interface with their end.
#pragma once

#include <tamis/tamis_c_step.h>

#include <memory>

#include "failure.h"

namespace tamis::python {

using Unlocked = nb::gil_scoped_release;

template <class T, int32_t (*Create)(T**, tamis_error*), void (*Destroy)(T*)>
class Handle {
 public:
  Handle() {
    Report report;
    T* made = nullptr;
    report.check(Create(&made, report));
    held_.reset(made);
  }
  T* get() const { return held_.get(); }

 private:
  struct End {
    void operator()(T* handle) const { Destroy(handle); }
  };
  std::unique_ptr<T, End> held_;
};

using IndexHandle = Handle<tamis_index_set, tamis_index_set_create, tamis_index_set_destroy>;
using BundlesHandle = Handle<tamis_bundles, tamis_bundles_create, tamis_bundles_destroy>;
using PlanHandle = Handle<tamis_plan, tamis_plan_create, tamis_plan_destroy>;
using ScheduleHandle = Handle<tamis_schedule, tamis_schedule_create, tamis_schedule_destroy>;
using CudaPlanHandle = Handle<tamis_cuda_plan, tamis_cuda_plan_create, tamis_cuda_plan_destroy>;

}  // namespace tamis::python
