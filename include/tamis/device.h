// What this build and this machine can run on.
#pragma once

#include <string>
#include <vector>

#include "tamis/status.h"

namespace tamis {

enum class Backend : int { kReference, kCpu, kCuda };
const char* backend_name(Backend backend);

struct CudaDevice {
  std::string name;
  int ordinal, major, minor;  // compute capability
  int multiprocessors;
  int driver, runtime;  // as CUDA counts: 13000 is 13.0
  size_t memory_bytes;
  size_t shared_bytes;  // most shared memory of a CTA
};

// The visible CUDA devices. device_error, with the reason, where there is none or the build has no CUDA.
Result<std::vector<CudaDevice>> cuda_devices();

// Makes `ordinal` the current device of this thread, as cudaSetDevice does; where it is that already, nothing
// happens. What is launched goes to the current device, which has to be the one that the stream and the
// arrays belong to. `previous` may be NULL.
Status use_cuda_device(int ordinal, int* previous);

// True when the library was built with the CUDA backend, whether or not a device is present.
bool built_with_cuda();

}  // namespace tamis
