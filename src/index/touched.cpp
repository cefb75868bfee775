#include "index/touched.h"

#include <algorithm>
#include <bit>

namespace tamis::index {
namespace {

constexpr int64_t kBitmapWordCost = 1, kEntryCost = 4, kHashCost = 16;  // in quarters of an entry

size_t hash_of(int32_t block, size_t mask) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(block)) * 0x9E3779B97F4A7C15ull >> 32) & mask;
}

}  // namespace

Ordering cheapest_ordering(int64_t adds, int64_t limit) {
  const auto log2 = [](int64_t n) { return static_cast<int64_t>(std::bit_width(static_cast<uint64_t>(n))); };
  adds = std::min(adds, int64_t{1} << 40);  // far beyond any row; keeps the products in range
  const int64_t distinct = std::min(adds, limit);
  const int64_t bitmap = (limit / 64 + 1) * kBitmapWordCost + adds * kEntryCost;
  const int64_t sort = adds * kEntryCost * log2(adds);
  // Without looking at the entries, half of them are taken for repeats of a block already met.
  const int64_t hash = adds * kHashCost + distinct / 2 * kEntryCost * log2(distinct / 2);
  if (bitmap <= sort && bitmap <= hash) return Ordering::kBitmap;
  return hash < sort ? Ordering::kHash : Ordering::kSort;
}

void TouchedBlocks::start(Ordering ordering, int64_t limit, int64_t expected) {
  ordering_ = ordering == Ordering::kAuto ? cheapest_ordering(expected, limit) : ordering;
  found_.clear();
  constexpr int64_t most_direct = int64_t{1} << 20;  // 4 MiB
  direct_ = ordering_ == Ordering::kBitmap && limit <= most_direct;
  if (ordering_ == Ordering::kBitmap) bitmap_.assign(limit / 64 + 1, 0);
  if (ordering_ == Ordering::kHash)
    table_.assign(std::bit_ceil(static_cast<size_t>(std::min(expected, limit)) * 2 + 16), -1);
}

void TouchedBlocks::add_listed(int32_t block) {
  if (ordering_ == Ordering::kHash)
    add_hashed(block);
  else
    found_.push_back(block);
}

void TouchedBlocks::add_range(int64_t first, int64_t last) {
  if (first >= last) return;
  if (ordering_ != Ordering::kBitmap) {
    for (int64_t block = first; block < last; ++block) add(block);
    return;
  }
  const int64_t first_word = first >> 6, last_word = (last - 1) >> 6;
  const uint64_t head = ~uint64_t{0} << (first & 63), tail = ~uint64_t{0} >> (63 - ((last - 1) & 63));
  if (first_word == last_word) {
    bitmap_[first_word] |= head & tail;
    return;
  }
  bitmap_[first_word] |= head;
  std::fill(bitmap_.begin() + first_word + 1, bitmap_.begin() + last_word, ~uint64_t{0});
  bitmap_[last_word] |= tail;
}

void TouchedBlocks::add_hashed(int32_t block) {
  if (found_.size() * 2 >= table_.size()) grow();
  const size_t mask = table_.size() - 1;
  size_t at = hash_of(block, mask);
  while (table_[at] != -1 && table_[at] != block) at = (at + 1) & mask;
  if (table_[at] == block) return;
  table_[at] = block;
  found_.push_back(block);
}

void TouchedBlocks::grow() {
  table_.assign(table_.size() * 2, -1);
  const size_t mask = table_.size() - 1;
  for (const int32_t block : found_) {
    size_t at = hash_of(block, mask);
    while (table_[at] != -1) at = (at + 1) & mask;
    table_[at] = block;
  }
}

void TouchedBlocks::finish() {
  if (ordering_ == Ordering::kBitmap) {
    const size_t places = bitmap_.size() * (direct_ ? 64 : 1);
    if (ranks_.size() < places) ranks_.resize(places);
    for (size_t w = 0; w < bitmap_.size(); ++w) {
      if (!direct_) ranks_[w] = static_cast<int32_t>(found_.size());
      for (uint64_t bits = bitmap_[w]; bits != 0; bits &= bits - 1) {
        const int32_t block = static_cast<int32_t>(w * 64) + std::countr_zero(bits);
        if (direct_) ranks_[block] = static_cast<int32_t>(found_.size());
        found_.push_back(block);
      }
    }
    return;
  }
  std::sort(found_.begin(), found_.end());
  if (ordering_ == Ordering::kSort) {
    found_.erase(std::unique(found_.begin(), found_.end()), found_.end());
    return;
  }
  if (ranks_.size() < table_.size()) ranks_.resize(table_.size());
  const size_t mask = table_.size() - 1;
  for (size_t i = 0; i < found_.size(); ++i) {
    size_t at = hash_of(found_[i], mask);
    while (table_[at] != found_[i]) at = (at + 1) & mask;
    ranks_[at] = static_cast<int32_t>(i);
  }
}

int64_t TouchedBlocks::search(int64_t block) const {
  if (ordering_ == Ordering::kBitmap)
    return ranks_[block >> 6] + count_bits(bitmap_[block >> 6] & ((uint64_t{1} << (block & 63)) - 1));
  if (ordering_ == Ordering::kSort)
    return std::lower_bound(found_.begin(), found_.end(), static_cast<int32_t>(block)) - found_.begin();
  const size_t mask = table_.size() - 1;
  size_t at = hash_of(static_cast<int32_t>(block), mask);
  while (table_[at] != block) at = (at + 1) & mask;
  return ranks_[at];
}

}  // namespace tamis::index
