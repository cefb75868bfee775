// IndexSet: the one canonical form of candidates. Every raw form becomes the same sorted, unique, validated
// list of logical blocks with member bits, and the same list of spans that says where the bytes are.
//
// A row keeps a block when some query of the row may see a token of it: because the token is listed, in the
// window or in the sink. Member bits hold the listed tokens only; window, sink, causality and length follow
// from positions (docs/semantics.md section 4). Spans cover exactly the pages that some set of the row
// touches.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tamis/candidates.h"
#include "tamis/problem.h"
#include "tamis/status.h"

namespace tamis {

// Tokens [token, token + length) lie at slots [slot, slot + length): page * P + offset, or the row of a
// contiguous cache. Never crosses a block or a page.
struct Span {
  int32_t token, length;
  int64_t slot;
};

// What a candidate row stands for.
struct RowInfo {
  int32_t request, index_head;
  int32_t first_query, last_query;  // [first, last) of total_q
};

// What kernels read. Entry e of row r is begin[r] + j, 0 <= j < count[r], blocks ascending. Valid while the
// IndexSet lives and is not normalized into again.
struct IndexView {
  int64_t rows = 0, entries = 0;
  int32_t block = 0;                // Bk: 16, 32, 64 or 128 tokens
  int32_t words = 0;                // 64-bit member words of a block: 1, or 2 for Bk 128
  uint64_t source = 0;              // stamp of the sizes, lengths and positions it was made from
  int64_t slots = 0;                // of the cache it was checked against; a larger one is fine too
  const RowInfo* row = nullptr;     // [rows]
  const int64_t* begin = nullptr;   // [rows]
  const int32_t* count = nullptr;   // [rows]
  const int32_t* blocks = nullptr;  // [entries] logical block
  // [entries * words] bit t % Bk: token t is listed. Complete also where `full` is 1. A zero word does not
  // mean that the row has nothing there: window and sink may still reach in.
  const uint64_t* members = nullptr;
  const uint8_t* full = nullptr;        // [entries] 1: every token of the block below kv_len is listed
  const int64_t* span_begin = nullptr;  // [entries + 1]
  const Span* spans = nullptr;          // [span_begin[entries]]
};

// How the touched blocks of a row are found and ordered. All give the same IndexSet.
enum class Ordering : uint8_t { kAuto, kBitmap, kSort, kHash };

struct Percentiles {
  int64_t p50 = 0, p95 = 0, max = 0;
};

struct IndexStats {
  CandidateCounts counts;
  int64_t future = 0;      // unique entries that no query of their row may see yet
  int64_t empty_rows = 0;  // candidate rows without a block
  int64_t blocks = 0, spans = 0;
  int64_t touched_pages = 0;  // (request, logical page) pairs
  int64_t gaps = 0;           // places where the next block of a row is not the neighbour of the last
  int64_t rows_bitmap = 0, rows_sort = 0, rows_hash = 0;  // rows ordered each way
  Percentiles row_blocks;                                 // blocks of a row
  Percentiles block_reuse;  // rows that share a (request, block); see reuse_statistics
};

struct NormalizeOptions {
  int32_t block = 0;  // 0: default_block
  Ordering ordering = Ordering::kAuto;
  // Keep every block a row can see, listed or not: the dense path. Member bits and sets stay what they are.
  bool all_blocks = false;
};

// 64, or the largest of 16, 32, 64, 128 that divides both the page and the unit of the candidates where that
// is smaller: blocks that are neither loaded nor cut in vain.
int32_t default_block(const Shape& shape, int64_t unit);

class IndexSet {
 public:
  IndexSet();
  ~IndexSet();
  IndexSet(IndexSet&&) noexcept;
  IndexSet& operator=(IndexSet&&) noexcept;

  IndexView view() const;
  const IndexStats& stats() const;

  struct Storage;  // private to src/index
  Storage& storage() { return *storage_; }
  const Storage& storage() const { return *storage_; }

 private:
  std::unique_ptr<Storage> storage_;
};

// Validates everything the contract names before K and V may be read: arguments, candidates by row, then
// pages by (request, logical page). Host memory. Cost O(entries + blocks) plus, per row, what its ordering
// costs.
Result<IndexSet> normalize(const Problem& problem, const NormalizeOptions& options = {});

// The same into an existing set, whose memory is reused. On failure *set is empty.
Status normalize_into(const Problem& problem, const NormalizeOptions& options, IndexSet* set);

// How often rows share blocks; a pass of its own because only planners and reports want it. Fills
// block_reuse.
Percentiles reuse_statistics(const IndexView& index);

// The set of section 4 of one query and index head, rebuilt from the canonical form: what the kernels' masks
// amount to.
std::vector<int32_t> expand_set(const Problem& problem, const IndexView& index, int64_t query,
                                int64_t index_head);

}  // namespace tamis
