// Bundles: groups of candidate rows that share K/V loads.
//
// A bundle holds the union of its rows' blocks and, per block and row, the member word of that row (zero
// where the row lacks the block). One list per KV head, private lists of the query heads of a group, the
// lists of neighbouring query blocks: all are bundles, so one kernel shape serves them all.
#pragma once

#include <cstdint>
#include <memory>

#include "tamis/index.h"
#include "tamis/status.h"

namespace tamis {

struct Bundle {
  int32_t request;
  int32_t kv_head, kv_heads;  // serves KV heads [kv_head, kv_head + kv_heads)
  int32_t first_list, lists;  // rows[first_list .. first_list + lists) of the view
  int32_t count;              // blocks
  int64_t begin;              // first entry
  int64_t
      members_at;  // first member word; word w of list l of block j: members_at + (j * lists + l) * words + w
};

struct BundleView {
  int64_t bundles = 0, entries = 0;
  int32_t block = 0, words = 0;
  int32_t max_lists = 0;
  uint64_t source = 0;              // the index set's
  int64_t slots = 0;                // the index set's
  const Bundle* bundle = nullptr;   // [bundles]
  const int32_t* rows = nullptr;    // candidate row of each list
  const RowInfo* row = nullptr;     // [candidate rows]
  const int32_t* blocks = nullptr;  // [entries]
  const uint64_t* members = nullptr;
  const uint8_t* full = nullptr;        // [entries] 1: full for every list of the bundle
  const int64_t* span_begin = nullptr;  // [entries + 1]
  const Span* spans = nullptr;
};

enum class BundlePolicy : uint8_t {
  kAuto,        // the cheapest of the others by measured overlap
  kRows,        // one row a bundle
  kHeads,       // the private lists of a KV head's query heads together
  kNeighbours,  // also `neighbours` consecutive query blocks of a request
};

struct BundleOptions {
  BundlePolicy policy = BundlePolicy::kAuto;
  int32_t neighbours = 4;  // query blocks joined by kNeighbours; kAuto tries 1, 2, 4, 8
};

struct BundleStats {
  BundlePolicy policy = BundlePolicy::kRows;  // the one taken
  int32_t neighbours = 1;
  int64_t listed_blocks = 0;  // blocks of all rows, one by one
  int64_t union_blocks = 0;   // blocks of all bundles: what is loaded once
};

class Bundles {
 public:
  Bundles();
  ~Bundles();
  Bundles(Bundles&&) noexcept;
  Bundles& operator=(Bundles&&) noexcept;

  BundleView view() const;
  const BundleStats& stats() const;

  struct Storage;
  Storage& storage() { return *storage_; }
  const Storage& storage() const { return *storage_; }

 private:
  std::unique_ptr<Storage> storage_;
};

// Groups the rows of `index`, which must outlive the result (kRows shares its arrays). Order: requests, then
// query blocks, then heads. Fails only on bad options.
Result<Bundles> bundle(const Problem& problem, const IndexSet& index, const BundleOptions& options = {});

}  // namespace tamis
