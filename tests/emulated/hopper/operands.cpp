#include "emulated/hopper/operands.h"

#include <cstring>

#include "emulated/hopper/machine.h"

namespace tamis::emulated {
namespace {

struct Descriptor {
  uint32_t start, leading, stride;
};

Descriptor decode(uint64_t d) {
  const Descriptor r{static_cast<uint32_t>(d & 0x3FFF) << 4, static_cast<uint32_t>(d >> 16 & 0x3FFF) << 4,
                     static_cast<uint32_t>(d >> 32 & 0x3FFF) << 4};
  const auto word = static_cast<unsigned long long>(d);
  if (d >> 62 != 1) fail("matrix %llx: not of 128-byte lines", word);
  if (d >> 49 & 7) fail("matrix %llx: has a base offset, which is not emulated", word);
  if (r.start % 1024 >= 128) fail("matrix %llx: starts inside an atom of 1024 bytes, at %u", word, r.start);
  if (r.stride % 1024 != 0) fail("matrix %llx: stride %u is not one of whole atoms", word, r.stride);
  return r;
}

}  // namespace

// 16 bytes, by the permutation of address bits that TensorMap describes.
void Operands::piece(uint32_t address, float* to, int step) const {
  const uint32_t permuted = address ^ (address >> 7 & 7) << 4;
  const char* from = cta_.arena.at(permuted, 16, 16, "an operand of a product");
  const Thread* writer = cta_.proxies.unfenced(permuted, cta_.threads.get(), fenced_);
  if (writer != nullptr)
    fail("a product reads address %u, which thread %u wrote without fence_async()", permuted, writer->number);
  widen(format_, from, to, step);
}

void Operands::rows(uint64_t descriptor, int rows, float* to, int row_step, int k_step) const {
  const Descriptor d = decode(descriptor);
  if (d.start % 128 > 96)
    fail("matrix %llx: 16 of K reach out of the line", static_cast<unsigned long long>(descriptor));
  for (int r = 0; r < rows; ++r) {
    const uint32_t line =
        d.start + static_cast<uint32_t>(r / 8) * d.stride + static_cast<uint32_t>(r % 8) * 128;
    for (int k = 0; k < 16; k += 8)
      piece(line + static_cast<uint32_t>(2 * k), to + r * row_step + k * k_step, k_step);
  }
}

void Operands::lines(uint64_t descriptor, int columns, float* b) const {
  const Descriptor d = decode(descriptor);
  const auto word = static_cast<unsigned long long>(descriptor);
  if (d.start % 128 != 0) fail("matrix %llx: starts inside a line of N", word);
  if (columns > 64 && d.leading % 1024 != 0)
    fail("matrix %llx: leading %u is not one of whole atoms", word, d.leading);
  for (int k = 0; k < 16; ++k)
    for (int n = 0; n < columns; n += 8) {
      const uint32_t at = d.start + static_cast<uint32_t>(k / 8) * d.stride +
                          static_cast<uint32_t>(k % 8) * 128 + static_cast<uint32_t>(n / 64) * d.leading +
                          static_cast<uint32_t>(n % 64) * 2;
      piece(at, b + k * columns + n, 1);
    }
}

void read_registers(Format format, const uint32_t (&registers)[128][4], float* a) {
  for (int t = 0; t < 128; ++t) {
    char bytes[16];
    float value[8];
    std::memcpy(bytes, registers[t], 16);
    widen(format, bytes, value, 1);
    for (int i = 0; i < 8; ++i) {
      const int row = 16 * (t / 32) + t % 32 / 4 + 8 * (i / 2 % 2), k = 8 * (i / 4) + t % 4 * 2 + i % 2;
      a[row * 16 + k] = value[i];
    }
  }
}

}  // namespace tamis::emulated
