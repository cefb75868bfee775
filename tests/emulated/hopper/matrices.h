// What a warp does with 8 x 8 matrices of 16-bit elements: ldmatrix, stmatrix, movmatrix, mma.
#pragma once

#include <cstdint>

#include "emulated/hopper/products.h"

namespace tamis::emulated {

void load_matrix(uint32_t (&r)[4], uint32_t from, bool transposed);
// One thread's 16 bytes.
void store_piece(uint32_t to, const void* piece);
void store_matrix(uint32_t to, const uint32_t (&r)[4]);
uint32_t transpose_matrix(uint32_t a);
// c[16, 8] += a[16, 16] b[16, 8]
void multiply_warp(Format format, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

}  // namespace tamis::emulated
