#include "emulated/hopper/matrices.h"

#include <cstring>

#include "core/float_formats.h"
#include "emulated/hopper/machine.h"

namespace tamis::emulated {
namespace {

struct Lane {
  uint32_t* r;  // of the matrices: lane t has elements (t / 4, t % 4 * 2) and the next one of each
  uint32_t address;
  const char* what;
};

uint16_t half_of(uint32_t word, int which) { return static_cast<uint16_t>(word >> 16 * which); }

// Row `row` of matrix `matrix`, which lane 8 * matrix + row names.
char* row_of(void* const* lanes, int matrix, int row) {
  const Lane& lane = *static_cast<const Lane*>(lanes[8 * matrix + row]);
  return machine->now->cta->arena.at(lane.address, 16, 16, lane.what);
}

template <bool kTransposed>
void load(void* const* lanes, uint32_t) {
  for (int j = 0; j < 4; ++j)
    for (int row = 0; row < 8; ++row) {
      uint16_t element[8];
      std::memcpy(element, row_of(lanes, j, row), 16);
      for (int i = 0; i < 8; ++i) {
        const int lane = kTransposed ? 4 * i + row / 2 : 4 * row + i / 2,
                  half = kTransposed ? row % 2 : i % 2;
        uint32_t& word = static_cast<Lane*>(lanes[lane])->r[j];
        word = (word & ~(0xFFFFu << 16 * half)) | uint32_t{element[i]} << 16 * half;
      }
    }
}

void store(void* const* lanes, uint32_t) {
  for (int j = 0; j < 4; ++j)
    for (int row = 0; row < 8; ++row)
      for (int i = 0; i < 4; ++i)
        std::memcpy(row_of(lanes, j, row) + 4 * i, &static_cast<Lane*>(lanes[4 * row + i])->r[j], 4);
  Cta& cta = *machine->now->cta;
  const unsigned warp = machine->now->number / 32 * 32;
  for (unsigned i = 0; i < 32; ++i) cta.proxies.written(static_cast<Lane*>(lanes[i])->address, 16, warp + i);
}

void transpose(void* const* lanes, uint32_t) {
  uint32_t old[32];
  for (int t = 0; t < 32; ++t) old[t] = static_cast<Lane*>(lanes[t])->r[0];
  for (int t = 0; t < 32; ++t) {
    const int row = t / 4, column = t % 4 * 2;
    static_cast<Lane*>(lanes[t])->r[0] = uint32_t{half_of(old[4 * column + row / 2], row % 2)} |
                                         uint32_t{half_of(old[4 * (column + 1) + row / 2], row % 2)} << 16;
  }
}

struct Factors {
  Format format;
  float* c;
  const uint32_t* a;
  uint32_t b[2];
};

float number(Format format, uint32_t word, int which) {
  const uint16_t bits = half_of(word, which);
  return format == Format::kBF16 ? bf16_to_float(bits) : f16_to_float(bits);
}

void multiply(void* const* lanes, uint32_t) {
  float a[16][16], b[16][8];
  for (int t = 0; t < 32; ++t) {
    const Factors& f = *static_cast<const Factors*>(lanes[t]);
    for (int i = 0; i < 8; ++i)
      a[t / 4 + 8 * (i / 2 % 2)][8 * (i / 4) + t % 4 * 2 + i % 2] = number(f.format, f.a[i / 2], i % 2);
    for (int i = 0; i < 4; ++i)
      b[8 * (i / 2) + t % 4 * 2 + i % 2][t / 4] = number(f.format, f.b[i / 2], i % 2);
  }
  for (int t = 0; t < 32; ++t)
    for (int i = 0; i < 4; ++i) {
      float& sum = static_cast<Factors*>(lanes[t])->c[i];
      const int row = t / 4 + 8 * (i / 2), column = t % 4 * 2 + i % 2;
      for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
    }
}

constexpr Rite kLoad{"load_matrix()", load<false>}, kLoadTransposed{"load_matrix_transposed()", load<true>},
    kStore{"store_matrix()", store}, kTranspose{"transpose_matrix()", transpose},
    kMultiply{"multiply()", multiply};

}  // namespace

void load_matrix(uint32_t (&r)[4], uint32_t from, bool transposed) {
  Lane lane{r, from, "load_matrix()"};
  meet(transposed ? kLoadTransposed : kLoad, ~0u, &lane);
}

void store_piece(uint32_t to, const void* piece) {
  Thread& now = *machine->now;
  std::memcpy(now.cta->arena.at(to, 16, 16, "store_piece()"), piece, 16);
  now.cta->proxies.written(to, 16, now.number);
}

void store_matrix(uint32_t to, const uint32_t (&r)[4]) {
  Lane lane{const_cast<uint32_t*>(r), to, "store_matrix()"};  // only read
  meet(kStore, ~0u, &lane);
}

uint32_t transpose_matrix(uint32_t a) {
  Lane lane{&a, 0, ""};
  meet(kTranspose, ~0u, &lane);
  return a;
}

void multiply_warp(Format format, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  Factors factors{format, c, a, {b0, b1}};
  meet(kMultiply, ~0u, &factors);
}

}  // namespace tamis::emulated
