// Block-sparse prefill: one list of key blocks for each query block and KV head.
#pragma once

#include <cstdint>

#include "tamis/attention.h"
#include "work.h"

namespace tamis::bench {

struct Prefill {
  DType dtype = DType::kBF16;
  int64_t length = 4096, block = 128;  // queries are all tokens; query block = key block
  int64_t q_heads = 8, kv_heads = 2, dim = 128;
  int64_t eighths = 1;  // of all key blocks (causal: of the visible ones, its own among them)
  bool causal = false;
  bool gradients = false;  // also d_out, in q's dtype
  uint64_t seed = 128;
};

// K and V are contiguous (NHD) and small enough to stay in a cache: arithmetic binds, so all turns share them
// and only the lists change.
Result<Work> prefill_work(const Prefill& prefill, Context& context);

}  // namespace tamis::bench
