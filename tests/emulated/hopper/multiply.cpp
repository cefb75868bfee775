// What an emulated kernel spends its time in; compiled without sanitizers, which would make it the slowest
// part.
#include <cstring>

#include "core/float_formats.h"
#include "emulated/hopper/operands.h"

namespace tamis::emulated {

void widen(Format format, const char* from, float* to, int step) {
  uint16_t bits[8];
  std::memcpy(bits, from, sizeof bits);
  if (format == Format::kBF16)
    for (int i = 0; i < 8; ++i) to[i * step] = bf16_to_float(bits[i]);
  else
    for (int i = 0; i < 8; ++i) to[i * step] = f16_to_float(bits[i]);
}

void multiply_add(float* c, const float* a, const float* b, int columns) {
  typedef float Vector __attribute__((vector_size(16)));
  constexpr int kRows = 4;
  for (int r = 0; r < 64; r += kRows)
    for (int n = 0; n < columns; n += 8) {
      Vector sum[kRows][2];
      for (int i = 0; i < kRows; ++i) std::memcpy(sum[i], c + (r + i) * columns + n, sizeof sum[i]);
      for (int k = 0; k < 16; ++k) {
        Vector right[2];
        std::memcpy(right, b + k * columns + n, sizeof right);
        for (int i = 0; i < kRows; ++i) {
          const float left = a[(r + i) * 16 + k];
          sum[i][0] += left * right[0];
          sum[i][1] += left * right[1];
        }
      }
      for (int i = 0; i < kRows; ++i) std::memcpy(c + (r + i) * columns + n, sum[i], sizeof sum[i]);
    }
}

}  // namespace tamis::emulated
