// The ceilings' inner loops, compiled per instruction set like the CPU kernels: reading listed pieces of
// memory with one addition a vector, and a plain f32 product.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tamis::bench {

// Equal pieces of memory: `rows` rows of `row_bytes`, `row_stride` bytes apart; piece i starts at at[i]. A
// page of one KV head in NHD is 16 rows of one token, in HND one row of 16 tokens.
struct Pieces {
  std::vector<const std::byte*> at;
  int64_t rows = 0, row_bytes = 0, row_stride = 0;  // row_bytes: a multiple of 64

  int64_t bytes() const { return static_cast<int64_t>(at.size()) * rows * row_bytes; }
};

struct StreamIsa {
  const char* name;
  // The sum of the 64-bit words of pieces [begin, end), modulo 2^64: any order gives the same, so it proves
  // which bytes were read. Prefetches `ahead` pieces ahead, over the whole list; 0: not at all.
  uint64_t (*read)(const Pieces& pieces, int64_t begin, int64_t end, int64_t ahead);
  int rows, columns;  // of the block below
  // c [rows, columns] += a [rows, depth] b [depth, columns]; b is packed, a and c have row strides.
  void (*product)(const float* a, int64_t a_stride, const float* b, float* c, int64_t c_stride,
                  int64_t depth);
};

extern const StreamIsa kStreamAvx512, kStreamAvx2, kStreamPlain;

// The widest this machine has.
const StreamIsa& best_stream();

}  // namespace tamis::bench
