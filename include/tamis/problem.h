// One attention problem: what is computed, on what, and with which candidates.
//
// The command line, the tests and the benches all build this struct and nothing else. It owns nothing; every
// view must outlive the calls that read it. Symbols: B requests, Hq query heads, Hkv KV heads, Hi index
// heads, G = Hq / Hkv, D and Dv key and value head sizes, P page size.
#pragma once

#include <cstdint>
#include <optional>

#include "tamis/cache.h"
#include "tamis/candidates.h"
#include "tamis/status.h"
#include "tamis/tensor.h"

namespace tamis {

struct QueryView {
  TensorView q{};      // [total_q, Hq, D] f32, f16 or bf16
  TensorView cu_q{};   // [B + 1] i32: rows of each request
  TensorView q_pos{};  // [total_q] i32, optional; else the last query is the last token
};

struct Mask {
  bool causal = true;
  int64_t window = 0;  // tokens up to and including the query's own
  int64_t sink = 0;    // first tokens of the request
};

// s = scale * (q . k); then softcap * tanh(s / softcap) if softcap > 0; then minus slope * |q_pos - t|.
struct ScoreRule {
  std::optional<double> scale{};  // 1 / sqrt(D) when absent
  double softcap = 0;
  TensorView alibi_slopes{};  // [Hq] f32, optional
};

struct Dropout {
  double p = 0;
  uint64_t seed = 0;
};

struct OutputGradients {
  TensorView d_out{};  // [total_q, Hq, Dv], f32 or q's dtype
  TensorView d_lse{};  // [total_q, Hq] f32
};

// Stands in for q, k and v where only the index is of interest (explain, plan).
struct IndexOnly {
  int64_t q_heads = 0, kv_heads = 0, head_dim = 0, v_head_dim = 0;
  int64_t page_size = 0;  // 0: contiguous
  int64_t num_pages = 0;  // 0: not stated
  int kv_bits = 16;       // bits of one K or V element
};

struct Problem {
  QueryView query{};
  CacheView cache{};
  CandidateView candidates{};
  Mask mask{};
  ScoreRule score{};
  Dropout dropout{};
  OutputGradients gradients{};
  std::optional<IndexOnly> index_only{};
};

// The sizes of a problem, read off its views.
struct Shape {
  int64_t requests, total_q;
  int64_t q_heads, kv_heads, index_heads, group;  // group = q_heads / kv_heads
  int64_t head_dim, v_head_dim;
  int64_t page_size, pages, max_pages;  // page_size 0: contiguous
  int64_t kv_rows;                      // rows of a contiguous cache
  double scale;
  int k_bits, v_bits;  // of one element
  bool index_only;
};

// Checks every rule that needs no element of any array: presence, dtypes, ranks, extents, options. Reads no
// memory behind the views, so device pointers are fine. Fails with invalid_argument, unsupported_semantics or
// unsupported.
Result<Shape> describe(const Problem& problem);

// Checks the contents of the small host arrays: cu_q, kv_len, cu_kv, cand_indptr, cand_count. Fails with
// invalid_argument. Candidates and pages are judged later, by whoever reads them.
Status check_arrays(const Problem& problem, const Shape& shape);

// Checks that q, k, v and scales have memory behind them: what a host function asks before it computes.
Status check_values(const Problem& problem);

// Number of query blocks; rows = query_blocks * index_heads. Needs checked arrays.
int64_t count_query_blocks(const Problem& problem);

}  // namespace tamis
