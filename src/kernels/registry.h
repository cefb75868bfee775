// One row per kernel: what it computes, where it runs and what it can do.
//
// The list that the command prints is read from it. Rows are constants: nothing is registered at run time.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>

#include "tamis/device.h"
#include "tamis/tensor.h"

namespace tamis {

enum class Op : uint8_t { kForward, kBackward };
const char* op_name(Op op);

struct Range {
  int64_t min = 1;
  int64_t max = std::numeric_limits<int64_t>::max();

  constexpr bool holds(int64_t value) const { return min <= value && value <= max; }
};

class DTypeSet {
 public:
  constexpr DTypeSet(std::initializer_list<DType> dtypes) {
    for (DType dtype : dtypes) bits_ |= uint32_t{1} << static_cast<int>(dtype);
  }
  constexpr bool holds(DType dtype) const { return (bits_ >> static_cast<int>(dtype) & 1) != 0; }

 private:
  uint32_t bits_ = 0;
};

struct Limits {
  DTypeSet dtypes;      // of q, k and v; int4 is kU8
  Range head_dims{};    // D
  Range v_head_dims{};  // Dv
  int64_t head_dim_multiple_of = 1;
  Range group{};                 // query heads per KV head
  int64_t page_multiple_of = 1;  // page sizes are multiples of this
  bool contiguous = true;        // also takes caches without pages
  bool quantized = false;
  bool dropout = false;
};

struct Kernel {
  const char* name;  // unique; what --json reports and the support table prints
  Op op;
  Backend backend;
  Range arch{0, 0};  // compute capability as major * 10 + minor; 0 where that has no meaning
  Limits limits;
  const char* note;
};

// All kernels of this build, in the order in which they are offered.
std::span<const Kernel> kernels();

// The CUDA part of that table; empty in a build without CUDA.
std::span<const Kernel> cuda_kernels();

}  // namespace tamis
