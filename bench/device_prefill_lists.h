// The lists of the prefill benches of the device, and how much work they are. All of it happens on the host
// and is the same for the same seed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "tamis/cache.h"
#include "tamis/status.h"
#include "work.h"

namespace tamis::bench {

enum class Listing {
  kUniform,   // so many of all key blocks (causal: of the visible ones, the query block's own among them)
  kRuns,      // the same number, in runs of kRun tokens
  kAll,       // every token: no lists
  kNear,      // block 0, the query's own block and the one before, the rest uniform below: 16 in all
  kRecorded,  // what a model selected: tensor `blocks` [queries, KV heads, entries] of a trace file
};
const char* listing_name(Listing listing);

// One request, heads of 128 in bf16, a list for each query block and KV head.
struct PrefillWork {
  int64_t queries = 32768, kv_len = 32768;  // the last queries of so many tokens
  int64_t q_heads = 32, kv_heads = 8;
  Listing listing = Listing::kUniform;
  int64_t block = 128, query_block = 128;  // tokens of a listed block, queries that share a list
  int64_t sixteenths = 1;                  // of the key blocks; with `finer`, sixty-fourths
  bool finer = false;
  bool masked = false;  // an eighth of every listed block is not listed
  bool causal = false;
  bool pairs = false;  // StepOptions::pairs
  int64_t page = 0;    // tokens; 0: contiguous
  Layout layout = Layout::kHND;
  uint64_t seed = 128;

  static constexpr int64_t kDim = 128, kNear = 16, kRun = 512;
  int64_t share_of() const { return finer ? 64 : 16; }
  // Of `all` key blocks.
  int64_t listed(int64_t all) const { return std::max<int64_t>(1, all * sixteenths / share_of()); }
  int64_t group() const { return q_heads / kv_heads; }
  int64_t unit() const { return masked ? block / 8 : block; }  // tokens of an entry
  int64_t query_blocks() const { return (queries + query_block - 1) / query_block; }
  int64_t rows() const { return query_blocks() * kv_heads; }
  int64_t position(int64_t query) const { return kv_len - queries + query; }
  int64_t first_query(int64_t query_block_at) const { return query_block_at * query_block; }
  int64_t end_query(int64_t query_block_at) const;
};

// Rows of one width, query blocks first, then KV heads; a row's entries are in random order, none twice but
// in recorded ones. Rows start on 16 bytes.
struct PrefillLists {
  int64_t width = 0;
  std::vector<int32_t> indices{};  // [rows * width], -1 behind a row's entries
  std::vector<int32_t> count{};    // [rows]; empty where every row is full

  // Different entries of a row, ascending.
  std::vector<int32_t> row(int64_t r) const;
};

// `trace`: the file of kRecorded.
Result<PrefillLists> draw_lists(const PrefillWork& work, const std::string& trace);

// What lists and causality select.
struct PrefillCount {
  int64_t pairs = 0;   // (query, token) over KV heads
  int64_t tokens = 0;  // over rows: seen by some query of the row
};
PrefillCount count_selected(const PrefillWork& work, const PrefillLists& lists);

// Q K and P V for the query heads of each KV head.
inline int64_t flops_of(const PrefillWork& w, const PrefillCount& c) {
  return 4 * PrefillWork::kDim * w.group() * c.pairs;
}
// K and V of the selected tokens.
inline int64_t bytes_of(const PrefillCount& c) { return c.tokens * 2 * PrefillWork::kDim * 2; }

// The `case` of a reading.
Json describe_prefill(const PrefillWork& work);

}  // namespace tamis::bench
