// What the command asks of a device, before any memory of it is taken: cuda_plan.cpp.
#pragma once

#include <string>

#include "run.h"
#include "tamis/cuda.h"

namespace tamis::cli {

struct CudaPlan {
  cuda::StepPlan step;
  std::string reason;  // the plan's, and what the command added
};

// The plan of `tamis run --backend cuda`. `density` as in StepOptions. Fails with `unsupported` naming the
// property where options or device rule the kernel out.
Result<CudaPlan> plan_cuda(const Problem& problem, const RunOptions& options, double density = -1);

// `unsupported` where the kernel that a plan names is not for this device.
Status check_device(const std::string& kernel, const CudaDevice& device);

}  // namespace tamis::cli
