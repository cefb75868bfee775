// The touched blocks of one row, found and ordered in one of three ways.
#pragma once

#include <cstdint>
#include <vector>

#include "tamis/index.h"

namespace tamis::index {

// The cheapest ordering for `adds` block numbers below `limit`, by the operations each needs (measured in
// words and entries on one core, not in time):
//   bitmap  limit / 64 words cleared and scanned, 1 an entry
//   sort    log2(adds) comparisons an entry
//   hash    4 probes-worth an entry, then a sort of the distinct ones
// The bitmap wins unless the context is long and the row short; the hash wins over the sort when entries pile
// up on few blocks of a very long context.
Ordering cheapest_ordering(int64_t adds, int64_t limit);

// Set bits, without the library call that std::popcount is where the instruction may be missing.
inline int count_bits(uint64_t x) {
  x -= x >> 1 & 0x5555555555555555;
  x = (x & 0x3333333333333333) + (x >> 2 & 0x3333333333333333);
  return static_cast<int>(((x + (x >> 4)) & 0x0F0F0F0F0F0F0F0F) * 0x0101010101010101 >> 56);
}

// Collects block numbers in [0, limit), then numbers them in ascending order. Borrowed memory is reused row
// by row.
class TouchedBlocks {
 public:
  TouchedBlocks(std::vector<uint64_t>* bitmap, std::vector<int32_t>* found, std::vector<int32_t>* table,
                std::vector<int32_t>* ranks)
      : bitmap_(*bitmap), found_(*found), table_(*table), ranks_(*ranks) {}

  void start(Ordering ordering, int64_t limit, int64_t expected);
  void add(int64_t block) {
    if (ordering_ == Ordering::kBitmap)
      bitmap_[block >> 6] |= uint64_t{1} << (block & 63);
    else
      add_listed(static_cast<int32_t>(block));
  }
  void add_range(int64_t first, int64_t last);  // [first, last)

  // Ends the collecting: blocks() is ascending and unique from here on.
  void finish();
  const std::vector<int32_t>& blocks() const { return found_; }
  int64_t rank(int64_t block) const {  // of a block that was added
    if (direct_) return ranks_[block];
    return search(block);
  }
  Ordering ordering() const { return ordering_; }

 private:
  int64_t search(int64_t block) const;
  void add_listed(int32_t block);
  void add_hashed(int32_t block);
  void grow();

  std::vector<uint64_t>& bitmap_;
  std::vector<int32_t>& found_;
  std::vector<int32_t>& table_;  // open addressing, -1 empty; after finish: rank of the block found there
  // bitmap: rank of each block, read only where one was added, or in long contexts the blocks before each
  // word; hash: rank of each table place
  std::vector<int32_t>& ranks_;
  Ordering ordering_ = Ordering::kBitmap;
  bool direct_ = false;  // ranks_ has one place a block
};

}  // namespace tamis::index
