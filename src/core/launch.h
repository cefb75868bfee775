// Launching a kernel from C++: errors as values, and the edge to its predecessor.
#pragma once

#include <cuda_runtime.h>

#include "core/checks.h"

namespace tamis::device {

inline Status cuda_status(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return {};
  cudaGetLastError();  // an answer; it must not surface in the caller's next check
  return {Code::kDeviceError,
          text(what, ": ", cudaGetErrorString(code), " (CUDA error ", static_cast<int>(code), ")")};
}

struct Grid {
  dim3 blocks;
  int threads;
  int64_t shared_bytes = 0;
  // The kernel calls wait_for_predecessor(): it may start while the one before it still runs. Where the
  // architecture lacks this, the kernel simply starts later.
  bool early = false;
};

// `early` launches need compute capability 9.0; asked once a device.
inline bool can_start_early() {
  int device = 0, major = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return false;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess) return false;
  return major >= 9;
}

// Of a CTA of the current device, less 1 KB for what kernels have of fixed size.
inline Status most_shared_bytes(int* bytes, const char* what) {
  int device = 0;
  TAMIS_RETURN_IF_ERROR(cuda_status(cudaGetDevice(&device), what));
  TAMIS_RETURN_IF_ERROR(
      cuda_status(cudaDeviceGetAttribute(bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), what));
  *bytes -= 1024;
  return {};
}

template <class Args>
Status launch(void (*kernel)(Args), const Grid& grid, const Args& args, cudaStream_t stream,
              const char* name) {
  // Always to the same number, so that threads that launch one kernel side by side cannot lower it for each
  // other.
  if (grid.shared_bytes > 40 * 1024) {
    int most = 0;
    TAMIS_RETURN_IF_ERROR(most_shared_bytes(&most, name));
    if (grid.shared_bytes > most)
      return {Code::kUnsupported, text(name, ": needs ", grid.shared_bytes,
                                       " bytes of shared memory a CTA, this device has ", most)};
    TAMIS_RETURN_IF_ERROR(cuda_status(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                           cudaFuncAttributeMaxDynamicSharedMemorySize, most),
                                      name));
  }
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid.blocks;
  config.blockDim = dim3(static_cast<unsigned>(grid.threads));
  config.dynamicSmemBytes = static_cast<size_t>(grid.shared_bytes);
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = grid.early && can_start_early() ? 1 : 0;
  return cuda_status(cudaLaunchKernelEx(&config, kernel, args), name);
}

}  // namespace tamis::device
