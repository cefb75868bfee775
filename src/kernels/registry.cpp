#include "kernels/registry.h"

#include <iterator>
#include <vector>

#include "kernels/cpu/args.h"

namespace tamis {
namespace {

constexpr Kernel reference_kernel(const char* name, Op op, const char* note) {
  return {.name = name,
          .op = op,
          .backend = Backend::kReference,
          .limits = {.dtypes = {DType::kF32, DType::kF16, DType::kBF16, DType::kI8, DType::kF8E4M3,
                                DType::kF8E5M2, DType::kU8},
                     .quantized = true,
                     .dropout = true},
          .note = note};
}

constexpr Kernel kReferenceKernels[] = {
    reference_kernel("reference", Op::kForward,
                     "float64, one thread, one loop after another: the judge of all others"),
    reference_kernel("reference_backward", Op::kBackward, "the same for gradients"),
};

constexpr int64_t kMostHeadDim = cpu::kMaxHeadDim;

constexpr Kernel cpu_kernel(const char* name, Op op, const char* note) {
  return {.name = name,
          .op = op,
          .backend = Backend::kCpu,
          .limits = {.dtypes = {DType::kF32, DType::kF16, DType::kBF16},
                     .head_dims = {1, kMostHeadDim},
                     .v_head_dims = {1, kMostHeadDim},
                     .quantized = true,
                     .dropout = true},
          .note = note};
}

// Every row is listed in every build; which instruction sets the machine has is asked when a Context is made.
constexpr Kernel kCpuKernels[] = {
    cpu_kernel("cpu_avx512bf16", Op::kForward,
               "as cpu_avx512, with products of bf16 pairs where all is bf16"),
    cpu_kernel("cpu_avx512", Op::kForward,
               "16 floats a vector; float32 accumulation; any page size, layout and strides"),
    cpu_kernel("cpu_avx2", Op::kForward, "8 floats a vector; the same source"),
    cpu_kernel("cpu_plain", Op::kForward, "4 floats a vector, no extension needed; the same source"),
    cpu_kernel("cpu_avx512bf16_backward", Op::kBackward,
               "gradients, with products of bf16 pairs where all is bf16"),
    cpu_kernel("cpu_avx512_backward", Op::kBackward, "gradients; bitwise equal for any number of threads"),
    cpu_kernel("cpu_avx2_backward", Op::kBackward, "the same source"),
    cpu_kernel("cpu_plain_backward", Op::kBackward, "the same source"),
};

// The CUDA rows live in another translation unit, one of two; joined on first use.
std::vector<Kernel> join() {
  std::vector<Kernel> all(std::begin(kReferenceKernels), std::end(kReferenceKernels));
  all.insert(all.end(), std::begin(kCpuKernels), std::end(kCpuKernels));
  const auto cuda = cuda_kernels();
  all.insert(all.end(), cuda.begin(), cuda.end());
  return all;
}

}  // namespace

const char* op_name(Op op) {
  switch (op) {
    case Op::kForward:
      return "forward";
    case Op::kBackward:
      return "backward";
  }
  return "unknown";
}

std::span<const Kernel> kernels() {
  static const std::vector<Kernel> all = join();
  return all;
}

}  // namespace tamis
