// The set seen from the keys: which runs of columns touch a physical span. A span of slots has one owner, so
// two logical tokens that share a slot meet in one sum.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace tamis::index {

// Physical spans: at most 64 slots, never across a page.
class PhysicalSpans {
 public:
  PhysicalSpans(int64_t page_size, int64_t slots);  // page_size 0: contiguous

  int64_t size() const { return size_; }  // slots of a whole span
  int64_t count() const { return count_; }
  int64_t of(int64_t slot) const {
    if (page_size_ == 0) return slot / size_;
    const int64_t page = slot / page_size_;
    return page * per_page_ + (slot - page * page_size_) / size_;
  }
  // The slots of a span.
  int64_t first(int64_t span) const {
    return page_size_ == 0 ? span * size_ : span / per_page_ * page_size_ + span % per_page_ * size_;
  }
  int64_t length(int64_t span) const {
    const int64_t end = page_size_ == 0 ? slots_ : (span / per_page_ + 1) * page_size_;
    return std::min(size_, end - first(span));
  }
  // The slot's place within its span.
  int64_t offset(int64_t slot) const { return (page_size_ == 0 ? slot : slot % page_size_) % size_; }

 private:
  int64_t page_size_, slots_, size_, per_page_ = 0, count_;
};

// Neighbouring slots of one physical span, as columns of a tile see them.
struct SlotRun {
  int64_t slot;
  int32_t tile, column, length;
};

// Cuts the columns of a tile, which lie at `slots`, into runs. `to` has room for one a column; returns how
// many there are.
int64_t cut_runs(const PhysicalSpans& spans, std::span<const int64_t> slots, int32_t tile, SlotRun* to);

// Numbers sorted by key. Owner o has keys[o] and items order[begin[o] .. begin[o + 1]); owners in the order
// in which their key is first met, items of an owner in the order given.
struct Grouped {
  std::vector<int64_t> keys, begin, order;
};

// A counting sort that touches only what it is given: its table of all keys is allocated once and left as it
// was found.
class Grouping {
 public:
  explicit Grouping(int64_t keys) : owner_(keys, -1) {}

  // Keys of items 0, 1, 2, ...
  void group(std::span<const int64_t> keys, Grouped* out);

 private:
  std::vector<int64_t> owner_;  // [keys] number of the owner, -1 between calls
};

}  // namespace tamis::index
