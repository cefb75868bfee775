// The kernel of schedule() on the device (plan/scheduler.cuh).
#include "core/launch.h"
#include "plan/scheduler.cuh"

namespace tamis {
namespace {

__global__ void __launch_bounds__(scheduling::kThreads, 1)
    schedule_kernel(const __grid_constant__ ScheduleArgs args) {
  __shared__ scheduling::Shared shared;
  device::let_successor_start();
  device::wait_for_predecessor();
  scheduling::Scheduler(args, shared).schedule();
}

}  // namespace

Status launch_schedule(const ScheduleArgs& args, void* stream) {
  return device::launch<&schedule_kernel>({.blocks = dim3(1), .threads = scheduling::kThreads, .early = true},
                                          args, static_cast<cudaStream_t>(stream), "schedule");
}

}  // namespace tamis
