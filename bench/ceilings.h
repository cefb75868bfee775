// What the machine can do, read in the same run as the work: copy, sequential read, f32 product, and the
// reader of exactly the pages a piece of work reads.
#pragma once

#include <optional>

#include "protocol.h"
#include "tamis/attention.h"
#include "work.h"

namespace tamis::bench {

struct Ceilings {
  double copy_tb_s = 0;  // bytes read plus bytes written
  double read_tb_s = 0;
  double gemm_f32_tflop_s = 0;
};

// On all threads of the context with the widest instruction set, over more than five last-level caches.
Result<Ceilings> measure_ceilings(Context& context);

// Reads all pieces on the threads of the context; the sum of their 64-bit words.
uint64_t read_all(const Pieces& pieces, int64_t ahead, Context& context);

// The prefetch distance, in pieces, with which this machine reads the work fastest; 0: none.
Result<int64_t> best_distance(const Work& work, Context& context);

// One event: read what the turn reads.
Contender reader(const Work& work, std::string name, int64_t ahead, Context& context);

// c [m, n] += a [m, k] b [k, n], all dense; m, n multiples of 96, k of 256. `packed`: room for k * n floats.
void product(const float* a, const float* b, float* c, int64_t m, int64_t n, int64_t k, float* packed,
             Context& context);

}  // namespace tamis::bench
