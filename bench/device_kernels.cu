#include "device_kernels.h"

#include <cuda_bf16.h>

#include <algorithm>

#include "core/launch.h"

namespace tamis::bench {
namespace {

constexpr int kThreads = 256;
constexpr int kRowThreads = 16;  // of 16 bytes each: a row of 256

cudaStream_t stream_of(const DeviceStream& stream) { return static_cast<cudaStream_t>(stream.handle()); }

// SplitMix64 of the place: any part can be made without the rest.
__global__ void fill_kernel(__nv_bfloat162* to, int64_t pairs, uint64_t seed) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < pairs; i += step) {
    uint64_t z = seed + static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    constexpr float kStep = 1.7320508f / 8388608.f;  // 2^23 steps each way: +-sqrt(3) has variance 1
    const float low = static_cast<float>(z & 0xFFFFFF) - 8388607.5f;
    const float high = static_cast<float>(z >> 40) - 8388607.5f;
    to[i] = __floats2bfloat162_rn(low * kStep, high * kStep);
  }
}

// Not cached in L1, and the sector's neighbours up to 256 bytes brought into L2: whole rows are wanted.
__device__ inline uint4 load_streaming(const char* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

__device__ inline uint32_t parity(const uint4& v) { return v.x ^ v.y ^ v.z ^ v.w; }

// The compiler cannot know that this never happens.
__device__ inline void keep(uint32_t sum, uint32_t* sink) {
  if (sum == 0x9E3779B9u) *sink = sum;
}

// A CTA has a share of neighbouring rows; its groups of 16 threads take them in turn.
template <int kLoads>
__global__ void __launch_bounds__(kThreads)
    pieces_kernel(const char* base, const int32_t* at, int64_t rows, int log2_rows, int64_t row_stride,
                  int64_t share, uint32_t* sink) {
  constexpr int kGroups = kThreads / kRowThreads;
  const int64_t begin = blockIdx.x * share, end = begin + share < rows ? begin + share : rows;
  const int64_t mask = (int64_t{1} << log2_rows) - 1;
  const int lane = threadIdx.x % kRowThreads;
  uint32_t sum = 0;
  for (int64_t first = begin + threadIdx.x / kRowThreads; first < end; first += kGroups * kLoads) {
    uint4 v[kLoads];
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      const int64_t row = first + u * kGroups;
      v[u] = make_uint4(0, 0, 0, 0);
      if (row < end)
        v[u] = load_streaming(base + int64_t{at[row >> log2_rows]} * 256 + (row & mask) * row_stride +
                              lane * 16);
    }
#pragma unroll
    for (int u = 0; u < kLoads; ++u) sum ^= parity(v[u]);
  }
  keep(sum, sink);
}

__global__ void __launch_bounds__(kThreads) range_kernel(const char* from, int64_t vectors, uint32_t* sink) {
  constexpr int kLoads = 8;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  uint32_t sum = 0;
  for (int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x; first < vectors;
       first += step * kLoads) {
    uint4 v[kLoads];
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      const int64_t at = first + u * step;
      v[u] = at < vectors ? load_streaming(from + at * 16) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int u = 0; u < kLoads; ++u) sum ^= parity(v[u]);
  }
  keep(sum, sink);
}

__device__ inline uint64_t nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__global__ void hold_kernel(uint64_t length) {
  for (const uint64_t start = nanoseconds(); nanoseconds() - start < length;) {
  }
}

Status launched(const char* what) { return device::cuda_status(cudaGetLastError(), what); }

}  // namespace

Status fill_bf16(DeviceBuffer* buffer, uint64_t seed, const DeviceStream& stream) {
  if (buffer->bytes() < 4) return {};
  fill_kernel<<<2048, kThreads, 0, stream_of(stream)>>>(static_cast<__nv_bfloat162*>(buffer->data()),
                                                        buffer->bytes() / 4, seed);
  return launched("random contents");
}

Status read_pieces(const DevicePieces& pieces, ReaderShape shape, int multiprocessors, void* sink,
                   const DeviceStream& stream) {
  const int64_t rows = pieces.count * pieces.rows;
  if (rows == 0) return {};
  if (pieces.rows < 1 || (pieces.rows & (pieces.rows - 1)) != 0)
    return {Code::kInvalidArgument, "reader: rows of a piece are not a power of two", {.value = pieces.rows}};
  int log2_rows = 0;
  while (int64_t{1} << log2_rows < pieces.rows) ++log2_rows;
  const int64_t ctas = std::min<int64_t>(int64_t{shape.ctas} * multiprocessors, rows);
  const int64_t share = (rows + ctas - 1) / ctas;
  const auto kernel = shape.loads == 4 ? pieces_kernel<4> : pieces_kernel<8>;
  kernel<<<static_cast<unsigned>(ctas), kThreads, 0, stream_of(stream)>>>(
      static_cast<const char*>(pieces.base), pieces.at, rows, log2_rows, pieces.row_stride, share,
      static_cast<uint32_t*>(sink));
  return launched("reader");
}

Status read_range(const void* from, int64_t bytes, int multiprocessors, void* sink,
                  const DeviceStream& stream) {
  range_kernel<<<static_cast<unsigned>(8 * multiprocessors), kThreads, 0, stream_of(stream)>>>(
      static_cast<const char*>(from), bytes / 16, static_cast<uint32_t*>(sink));
  return launched("reader");
}

Status copy_range(void* to, const void* from, int64_t bytes, const DeviceStream& stream) {
  return device::cuda_status(
      cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream_of(stream)),
      "copy");
}

Status hold(double us, const DeviceStream& stream) {
  hold_kernel<<<1, 1, 0, stream_of(stream)>>>(static_cast<uint64_t>(us * 1000));
  return launched("hold");
}

}  // namespace tamis::bench
