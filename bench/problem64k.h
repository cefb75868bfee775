// The 64K decode case: 32 query and 8 KV heads of 128, one query a request, 264 pages of 16 for every KV head
// (256 listed, 8 of them inside a window of 256 tokens), through a shuffled page table. And its dense
// counterpart.
#pragma once

#include <cstdint>
#include <string>

#include "lists.h"
#include "tamis/attention.h"
#include "work.h"

namespace tamis::bench {

struct Heads64k {
  static constexpr int64_t kQuery = 32, kKv = 8, kDim = 128;
};

struct Decode {
  int64_t requests = 1;
  DType dtype = DType::kBF16;  // of q, k, v and out
  Layout layout = Layout::kNHD;
  Spread spread = Spread::kUniform;
  std::string trace{};  // the file of a recorded spread
  Scale scale{};
  int64_t turns = 0;  // 0: enough_turns
  uint64_t seed = 64;
};

// Every turn has its own pages, page tables, lists and queries. The same arguments give the same work.
Result<Work> decode_work(const Decode& decode, Context& context);

// One request over all of its tokens, contiguous, each KV head's tokens together (HND).
struct Dense {
  DType dtype = DType::kBF16;
  int64_t kv_len = 65536;
  uint64_t seed = 65;
};
Result<Work> dense_work(const Dense& dense, Context& context);

}  // namespace tamis::bench
