// The CUDA backend of a build without CUDA: it says so. device.cu takes this file's place when nvcc is there.
#include "kernels/registry.h"
#include "tamis/cuda.h"
#include "tamis/device.h"

namespace tamis {

bool built_with_cuda() { return false; }

namespace {

Status no_cuda() {
  return {Code::kDeviceError,
          "this build has no CUDA backend; configure with -DTAMIS_CUDA=ON where nvcc is installed"};
}

}  // namespace

Result<std::vector<CudaDevice>> cuda_devices() { return no_cuda(); }

Status use_cuda_device(int, int*) { return no_cuda(); }

std::span<const Kernel> cuda_kernels() { return {}; }

namespace cuda {

Result<StepPlan> plan_step(const Problem&, const StepOptions&) { return no_cuda(); }
Ring ring_on(const StepPlan& plan, const CudaDevice&) { return plan.ring; }
Status clear(const StepPlan&, const StepBuffers&, Stream) { return no_cuda(); }
Status normalize(const StepPlan&, const Problem&, const StepBuffers&, Stream) { return no_cuda(); }
Status schedule(const StepPlan&, const StepBuffers&, Stream) { return no_cuda(); }
Status run(const StepPlan&, const Problem&, const OutView&, const StepBuffers&, Stream, StepCounters*) {
  return no_cuda();
}
Status step(const StepPlan&, const Problem&, const OutView&, const StepBuffers&, Stream, StepCounters*) {
  return no_cuda();
}
Status poll(const StepPlan&, const StepBuffers&, Stream, StepStats*) { return no_cuda(); }
Result<FetchedStep> fetch(const StepPlan&, const StepBuffers&, Stream) { return no_cuda(); }

}  // namespace cuda
}  // namespace tamis
