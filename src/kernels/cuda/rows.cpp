// The CUDA part of the kernel table.
#include "kernels/registry.h"

namespace tamis {
namespace {

constexpr Kernel decode_kernel(const char* name, DType dtype) {
  return {.name = name,
          .op = Op::kForward,
          .backend = Backend::kCuda,
          .arch = {80, std::numeric_limits<int64_t>::max()},
          .limits = {.dtypes = {dtype},
                     .head_dims = {8, 256},
                     .v_head_dims = {8, 256},
                     .head_dim_multiple_of = 8},
          .note =
              "keys on the m side of mma m16n8k16, any page size, merge in the same kernel; head sizes are "
              "padded to "
              "64, 128 or 256 on chip; takes 111 KB of shared memory a CTA, 142 KB above 128, or 79 KB with "
              "short rings where the device has less"};
}

constexpr Kernel prefill_kernel(const char* name, DType dtype) {
  return {
      .name = name,
      .op = Op::kForward,
      .backend = Backend::kCuda,
      .arch = {90, 90},
      .limits = {.dtypes = {dtype},
                 .head_dims = {8, 256},
                 .v_head_dims = {8, 256},
                 .head_dim_multiple_of = 8},
      .note =
          "128 query rows a CTA, wgmma; K and V by the copy engine, or by copies of threads where pages or "
          "head sizes are odd; only where it is asked for (engine prefill)"};
}

constexpr Kernel kCudaKernels[] = {
    decode_kernel("decode_sm80_bf16", DType::kBF16),
    decode_kernel("decode_sm80_f16", DType::kF16),
    prefill_kernel("prefill_sm90_bf16", DType::kBF16),
    prefill_kernel("prefill_sm90_f16", DType::kF16),
};

}  // namespace

std::span<const Kernel> cuda_kernels() { return kCudaKernels; }

}  // namespace tamis
