// The union of the rows of one bundle.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "index/bundle_cut.h"
#include "index/bundle_storage.h"
#include "tamis/index.h"

namespace tamis::index {

// The pieces of one block that some list touches, by their place in it. Pieces are cut by block, page and
// kv_len alone, so two lists that name the same place mean the same piece.
class Pieces {
 public:
  void add(const Span& piece, int64_t block_base);
  void move_to(std::vector<Span>* out);  // ascending; leaves nothing behind

 private:
  static constexpr int kMostTokens = 128;
  std::array<Span, kMostTokens> at_;
  std::array<uint64_t, kMostTokens / 64> present_{};
};

// Walks the lists of a bundle side by side, each with its next block, and writes one entry a step. A step
// costs O(lists), which is also what it writes: every list has a member word in every block of the union. So
// no heap and no bitmap over the context would be cheaper.
class Merger {
 public:
  Merger(const IndexView& index, size_t most_words, Bundles::Storage* out)
      : index_(index), most_words_(most_words), out_(*out) {}

  // Appends the union as entries. Returns the number of blocks, or -1 where all member words together would
  // be more than `most_words`.
  int32_t append(const Group& group);

 private:
  struct List {
    int64_t at, end;  // entries of the index
  };
  static constexpr int32_t kDone = INT32_MAX;  // above every block number

  int32_t step(int32_t block);
  void unite_spans(size_t held, int64_t block_base);
  int32_t next_block(const List& l) const { return l.at < l.end ? index_.blocks[l.at] : kDone; }

  const IndexView& index_;
  const size_t most_words_;
  Bundles::Storage& out_;
  std::vector<List> lists_;
  std::vector<int32_t> next_;  // of each list, apart from lists_ because every step scans them all
  std::vector<int64_t> held_;  // entries of the lists that hold the block of this step
  Pieces pieces_;
};

}  // namespace tamis::index
