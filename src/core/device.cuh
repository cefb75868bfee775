// What every CUDA kernel of the library starts from: programmatic dependent launch and sums over a CTA.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace tamis::device {

// A kernel that was launched with the attribute below may start while its predecessor still runs. It must not
// read what the predecessor writes, nor write what that one reads, before this returns.
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

// Sum over the CTA, known to every thread. `parts` is shared memory of one T a warp; all threads take part.
template <class T>
__device__ inline T block_sum(T value, T* parts) {
  for (int d = 16; d > 0; d >>= 1) value += __shfl_xor_sync(~0u, value, d);
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  T sum = 0;
  for (unsigned w = 0; w < blockDim.x / 32; ++w) sum += parts[w];
  return sum;
}

// Smallest value over the CTA, known to every thread.
__device__ inline uint64_t block_min(uint64_t value, uint64_t* parts) {
  for (int d = 16; d > 0; d >>= 1) {
    const uint64_t other = __shfl_xor_sync(~0u, value, d);
    value = other < value ? other : value;
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  uint64_t least = parts[0];
  for (unsigned w = 1; w < blockDim.x / 32; ++w) least = parts[w] < least ? parts[w] : least;
  return least;
}

// Sum of the values of lower threads; *total gets the sum of all.
template <class T>
__device__ inline T block_prefix(T value, T* parts, T* total) {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  T sum = value;
  for (unsigned d = 1; d < 32; d <<= 1) {
    const T lower = __shfl_up_sync(~0u, sum, d);
    if (lane >= d) sum += lower;
  }
  __syncthreads();
  if (lane == 31) parts[warp] = sum;
  __syncthreads();
  T before = 0, all = 0;
  for (unsigned w = 0; w < blockDim.x / 32; ++w) {
    if (w < warp) before += parts[w];
    all += parts[w];
  }
  *total = all;
  return before + sum - value;
}

}  // namespace tamis::device
