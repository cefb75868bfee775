// Launching a kernel from C++: errors as values, and the edge to its predecessor.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>

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
  // The kernel calls wait_for_predecessor(): it may start while the one before it still runs. That needs code
  // for compute capability 9.0; elsewhere the kernel simply starts later.
  bool early = false;
  unsigned cluster = 1;  // CTAs of one, along x; more need compute capability 9.0
};

// Shared memory of a CTA that is kept back for what kernels have of fixed size.
inline constexpr int32_t kReserved = 1024;

// What a launch must know of a device. Constants, so each device is asked once in the life of the process: a
// step is three launches on the host's critical path.
struct alignas(8) Facts {
  int32_t major = 0;         // of the compute capability; 0: not asked yet
  int32_t shared_bytes = 0;  // most of a CTA, less kReserved
};

// Devices whose facts are kept, and the bits of a word. A device beyond is asked at every launch.
inline constexpr int kKept = 64;

inline Status facts_of(int device, const char* what, Facts* facts) {
  static std::atomic<Facts> kept[kKept];
  if (device < kKept) *facts = kept[device].load();
  if (facts->major != 0) return {};
  Facts f;
  TAMIS_RETURN_IF_ERROR(
      cuda_status(cudaDeviceGetAttribute(&f.major, cudaDevAttrComputeCapabilityMajor, device), what));
  TAMIS_RETURN_IF_ERROR(cuda_status(
      cudaDeviceGetAttribute(&f.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), what));
  f.shared_bytes -= kReserved;
  if (device < kKept) kept[device].store(f);
  *facts = f;
  return {};
}

// Where a launch goes: the current device of the thread.
struct Target {
  int device = 0;
  Facts facts{};
};

inline Status current_target(const char* what, Target* target) {
  TAMIS_RETURN_IF_ERROR(cuda_status(cudaGetDevice(&target->device), what));
  return facts_of(target->device, what, &target->facts);
}

// The bit of a device in what is kept of a kernel; none where nothing is.
inline uint64_t bit_of(int device) { return device < kKept ? uint64_t{1} << device : 0; }

// Whether the code of a kernel waits for its predecessor. What a device has compiled for itself from PTX of
// an earlier architecture does not, however new the device (core/device.cuh): started early, it would read
// what is still being written. Asked once a kernel and device, as facts are.
template <auto* kKernel>
Status waits(const Target& target, const char* what, bool* does) {
  static std::atomic<uint64_t> asked{0}, known_to{0};  // a bit a device
  *does = false;
  if (target.facts.major < 9) return {};
  const uint64_t bit = bit_of(target.device);
  if ((asked.load() & bit) != 0) {
    *does = (known_to.load() & bit) != 0;
    return {};
  }
  cudaFuncAttributes attributes{};
  TAMIS_RETURN_IF_ERROR(
      cuda_status(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kKernel)), what));
  *does = attributes.ptxVersion >= 90;
  if (*does) known_to.fetch_or(bit);
  asked.fetch_or(bit);
  return {};
}

// A kernel gets more than 48 KB of shared memory only where it was given leave. Always for the same number,
// so that threads that launch one kernel side by side cannot lower it for each other.
template <auto* kKernel>
Status give_leave(const Facts& facts, const char* what) {
  return cuda_status(cudaFuncSetAttribute(reinterpret_cast<const void*>(kKernel),
                                          cudaFuncAttributeMaxDynamicSharedMemorySize, facts.shared_bytes),
                     what);
}

// One call of the runtime, but for the first launch of a kernel on a device.
template <auto* kKernel, class Args>
Status launch(const Target& target, const Grid& grid, const Args& args, cudaStream_t stream,
              const char* name) {
  static std::atomic<uint64_t> has_leave{0};  // a bit a device
  const auto& [device, facts] = target;
  const bool large = grid.shared_bytes > 40 * 1024;
  if (large && grid.shared_bytes > facts.shared_bytes)
    return {Code::kUnsupported, text(name, ": needs ", grid.shared_bytes,
                                     " bytes of shared memory a CTA, this device has ", facts.shared_bytes)};
  const uint64_t bit = bit_of(device);
  if (large && (has_leave.load() & bit) == 0) {
    TAMIS_RETURN_IF_ERROR(give_leave<kKernel>(facts, name));
    has_leave.fetch_or(bit);
  }

  bool early = false;
  if (grid.early) TAMIS_RETURN_IF_ERROR(waits<kKernel>(target, name, &early));
  cudaLaunchAttribute attributes[2]{};
  unsigned count = 0;
  if (early) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (grid.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {grid.cluster, 1, 1};
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid.blocks;
  config.blockDim = dim3(static_cast<unsigned>(grid.threads));
  config.dynamicSmemBytes = static_cast<size_t>(grid.shared_bytes);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  cudaError_t code = cudaLaunchKernelEx(&config, kKernel, args);
  if (code == cudaErrorInvalidValue && large) {
    // Leave is of a context, and is lost with it (cudaDeviceReset); nobody tells.
    cudaGetLastError();
    TAMIS_RETURN_IF_ERROR(give_leave<kKernel>(facts, name));
    code = cudaLaunchKernelEx(&config, kKernel, args);
  }
  return cuda_status(code, name);
}

// The same where nothing depends on the device; one call more.
template <auto* kKernel, class Args>
Status launch(const Grid& grid, const Args& args, cudaStream_t stream, const char* name) {
  Target target;
  TAMIS_RETURN_IF_ERROR(current_target(name, &target));
  return launch<kKernel>(target, grid, args, stream, name);
}

}  // namespace tamis::device
