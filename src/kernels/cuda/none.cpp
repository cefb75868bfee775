// The CUDA backend of a build without CUDA: it says so. device.cu takes this file's place when nvcc is there.
#include "kernels/registry.h"
#include "tamis/device.h"

namespace tamis {

bool built_with_cuda() { return false; }

Result<std::vector<CudaDevice>> cuda_devices() {
  return Status(Code::kDeviceError,
                "this build has no CUDA backend; configure with -DTAMIS_CUDA=ON where nvcc is installed");
}

std::span<const Kernel> cuda_kernels() { return {}; }

}  // namespace tamis
