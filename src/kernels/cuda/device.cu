// The visible CUDA devices, through the runtime API alone: the library must load where no driver is
// installed.
#include "tamis/device.h"

#include <cuda_runtime_api.h>

#include <vector>

#include "core/launch.h"

namespace tamis {
namespace {

// Without a driver the runtime answers 35, with a driver and no device 100; to a caller both mean the same.
bool means_no_device(cudaError_t code) {
  return code == cudaErrorInsufficientDriver || code == cudaErrorNoDevice;
}

Status no_devices(cudaError_t code) {
  int driver = 0;
  // The runtime calls a driver that is not there too old.
  if (code == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0) {
    cudaGetLastError();
    return {Code::kDeviceError,
            text("no CUDA device: no driver is loaded (CUDA error ", static_cast<int>(code), ")")};
  }
  return device::cuda_status(code,
                             means_no_device(code) ? "no CUDA device" : "cannot count the CUDA devices");
}

}  // namespace

bool built_with_cuda() { return true; }

Result<std::vector<CudaDevice>> cuda_devices() {
  int count = 0, driver = 0, runtime = 0;
  if (const cudaError_t code = cudaGetDeviceCount(&count); code != cudaSuccess) return no_devices(code);
  if (count == 0) return device::cuda_status(cudaErrorNoDevice, "no CUDA device");
  TAMIS_RETURN_IF_ERROR(
      device::cuda_status(cudaDriverGetVersion(&driver), "cannot ask for the CUDA driver's version"));
  TAMIS_RETURN_IF_ERROR(
      device::cuda_status(cudaRuntimeGetVersion(&runtime), "cannot ask for the CUDA runtime's version"));

  std::vector<CudaDevice> devices;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    cudaDeviceProp properties;
    TAMIS_RETURN_IF_ERROR(device::cuda_status(cudaGetDeviceProperties(&properties, ordinal),
                                              "cannot ask for the properties of a CUDA device"));
    devices.push_back({.name = properties.name,
                       .ordinal = ordinal,
                       .major = properties.major,
                       .minor = properties.minor,
                       .multiprocessors = properties.multiProcessorCount,
                       .driver = driver,
                       .runtime = runtime,
                       .memory_bytes = properties.totalGlobalMem,
                       .shared_bytes = properties.sharedMemPerBlockOptin});
  }
  return devices;
}

Status use_cuda_device(int ordinal, int* previous) {
  int now = 0;
  TAMIS_RETURN_IF_ERROR(device::cuda_status(cudaGetDevice(&now), "cannot ask for the current CUDA device"));
  if (previous != nullptr) *previous = now;
  if (now == ordinal) return {};
  return device::cuda_status(cudaSetDevice(ordinal), "cannot change the current CUDA device");
}

}  // namespace tamis
