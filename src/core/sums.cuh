// Sums over a warp and over a CTA. No PTX: tests/emulated/hopper runs these as they stand.
#pragma once

#include <cstdint>

namespace tamis::device {

// Sum over the warp, known to every lane.
__device__ inline int64_t warp_sum(int64_t value) {
  for (int d = 16; d > 0; d >>= 1) value += __shfl_xor_sync(~0u, value, d);
  return value;
}

// Smallest value over the warp, known to every lane.
__device__ inline uint64_t warp_min(uint64_t value) {
  for (int d = 16; d > 0; d >>= 1) {
    const uint64_t other = __shfl_xor_sync(~0u, value, d);
    value = other < value ? other : value;
  }
  return value;
}

// The same over the CTA. `parts` is shared memory of one word a warp, at most 32; all threads take part.
__device__ inline int64_t block_sum(int64_t value, int64_t* parts) {
  value = warp_sum(value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  return warp_sum(threadIdx.x % 32 < blockDim.x / 32 ? parts[threadIdx.x % 32] : 0);
}
__device__ inline uint64_t block_min(uint64_t value, uint64_t* parts) {
  value = warp_min(value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  return warp_min(threadIdx.x % 32 < blockDim.x / 32 ? parts[threadIdx.x % 32] : ~uint64_t{0});
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
  T others = lane < blockDim.x / 32 ? parts[lane] : 0;
  for (unsigned d = 1; d < 32; d <<= 1) {
    const T lower = __shfl_up_sync(~0u, others, d);
    if (lane >= d) others += lower;
  }
  *total = __shfl_sync(~0u, others, 31);
  const T before = __shfl_sync(~0u, others, warp > 0 ? warp - 1 : 0);
  return (warp > 0 ? before : 0) + sum - value;
}

}  // namespace tamis::device
