// The visible CUDA devices, through the runtime API alone: the library must load where no driver is
// installed.
#include "tamis/device.h"

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

namespace tamis {
namespace {

Status device_error(const char* what, cudaError_t code) {
  cudaGetLastError();  // an error here is an answer; it must not surface in the caller's next check
  return Status(Code::kDeviceError, std::string(what) + ": " + cudaGetErrorString(code) + " (CUDA error " +
                                        std::to_string(static_cast<int>(code)) + ")");
}

// Without a driver the runtime answers 35, with a driver and no device 100; to a caller both mean the same.
bool means_no_device(cudaError_t code) {
  return code == cudaErrorInsufficientDriver || code == cudaErrorNoDevice;
}

}  // namespace

bool built_with_cuda() { return true; }

Result<std::vector<CudaDevice>> cuda_devices() {
  int count = 0, driver = 0, runtime = 0;
  if (const cudaError_t code = cudaGetDeviceCount(&count); code != cudaSuccess) {
    return device_error(means_no_device(code) ? "no CUDA device" : "cannot count the CUDA devices", code);
  }
  if (count == 0) return device_error("no CUDA device", cudaErrorNoDevice);
  if (const cudaError_t code = cudaDriverGetVersion(&driver); code != cudaSuccess) {
    return device_error("cannot ask for the CUDA driver's version", code);
  }
  if (const cudaError_t code = cudaRuntimeGetVersion(&runtime); code != cudaSuccess) {
    return device_error("cannot ask for the CUDA runtime's version", code);
  }

  std::vector<CudaDevice> devices;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    cudaDeviceProp properties;
    if (const cudaError_t code = cudaGetDeviceProperties(&properties, ordinal); code != cudaSuccess) {
      return device_error("cannot ask for the properties of a CUDA device", code);
    }
    devices.push_back({.name = properties.name,
                       .ordinal = ordinal,
                       .major = properties.major,
                       .minor = properties.minor,
                       .multiprocessors = properties.multiProcessorCount,
                       .driver = driver,
                       .runtime = runtime,
                       .memory_bytes = properties.totalGlobalMem});
  }
  return devices;
}

}  // namespace tamis
