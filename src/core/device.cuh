// What every CUDA kernel of the library starts from: programmatic dependent launch and sums over a CTA.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/sums.cuh"

namespace tamis::device {

// A kernel that was launched early (core/launch.h, which sees to it that its code waits) may start while its
// predecessor still runs. It must not read what the predecessor writes, nor write what that one reads, before
// this returns.
__device__ inline void wait_for_predecessor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the successor start. What it may read is still what was written when this whole grid has ended.
__device__ inline void let_successor_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Copies 4 bytes to shared memory; they are there after copies_done(), for the thread that asked.
__device__ inline void copy_word(void* to, const void* from) {
  const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from) : "memory");
}
__device__ inline void copies_done() { asm volatile("cp.async.wait_all;" ::: "memory"); }

}  // namespace tamis::device
