// The vocabulary of kernels/cpu/vec.h, panel.h and pack.h as plain functions: compiled once per instruction
// set, tested from code that knows none. No standard library here: its inline functions would be compiled for
// one instruction set and linked into all.
#pragma once

#include <cstdint>

#include "kernels/cpu/args.h"

namespace tamis::cpu {

// A panel product; see panel.h. Units are floats or pairs of bf16.
struct PanelCase {
  int start;  // 0 zero, 1 scaled, 2 add
  const void* a;
  int64_t row_stride, step_stride, rows;
  const void* b;
  int64_t b_stride, steps;
  const float* scale;
  float* c;
  int64_t c_stride, columns;
};

struct VectorTable {
  const char* name;
  int width;
  void (*widen)(Element element, const void* from, float* to);  // `width` numbers
  void (*widen_some)(Element element, const void* from, int count, float* to);
  void (*widen_row)(const Side& side, const void* data, const float* scale, float* to);
  void (*transpose_square)(uint32_t* square);  // width x width, in place
  void (*transpose_units)(const char* const* rows, int count, int64_t units, int columns, uint32_t* to,
                          int64_t stride);
  void (*panel)(const PanelCase& c);
  void (*exp_negative)(const float* x, float* to);
  void (*tanh)(const float* x, float* to);
  float (*sum)(const float* x);
  float (*max_of)(const float* x);
  void (*sums)(const float* four, float* to);  // of four vectors
  void (*select)(uint32_t bits, const float* yes, const float* no, float* to);
  uint64_t (*pack_bits)(uint64_t word, uint64_t mask);
  uint64_t (*bad_rows)(const float* rows, int64_t stride, int count, int64_t dim);
  // Null without products of bf16 pairs. join_pairs returns the rows that are not finite.
  void (*panel_pairs)(const PanelCase& c);
  uint64_t (*join_pairs)(const uint16_t* const* rows, int count, int64_t dim, uint32_t* to, int64_t stride);
  void (*transpose_pairs)(const uint16_t* const* rows, int count, int64_t dim, uint32_t* to);
};

extern const VectorTable kPlainVectors, kAvx2Vectors, kAvx512Vectors, kAvx512Bf16Vectors;

}  // namespace tamis::cpu
