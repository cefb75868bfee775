// Operands of a product as plain floats: from a thread's registers, and from shared memory by way of a
// descriptor (PTX ISA, "Matrix descriptor"; canonical layouts with the 128-byte permutation).
#pragma once

#include <cstdint>

#include "emulated/hopper/products.h"

namespace tamis::emulated {

class Operands {
 public:
  // `fenced`: when the threads that ask for the product last called fence_async().
  Operands(const Cta& cta, Format format, uint32_t fenced) : cta_(cta), format_(format), fenced_(fenced) {}

  // K-major: element (r, k) of [rows, 16] goes to to[r * row_step + k * k_step].
  void rows(uint64_t descriptor, int rows, float* to, int row_step, int k_step) const;
  // MN-major: b[16, columns].
  void lines(uint64_t descriptor, int columns, float* b) const;

 private:
  void piece(uint32_t address, float* to, int step) const;

  const Cta& cta_;
  Format format_;
  uint32_t fenced_;
};

// a[64, 16] from four registers a thread, as mma.m16n8k16 has them.
void read_registers(Format format, const uint32_t (&registers)[128][4], float* a);

// Eight elements of 16 bits, `step` apart.
void widen(Format format, const char* from, float* to, int step);
// c[64, columns] += a[64, 16] b[16, columns]; columns is a multiple of 8.
void multiply_add(float* c, const float* a, const float* b, int columns);

}  // namespace tamis::emulated
