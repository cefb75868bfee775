#include "index/bundle_merge.h"

#include <algorithm>
#include <bit>

namespace tamis::index {

void Pieces::add(const Span& piece, int64_t block_base) {
  const int64_t place = piece.token - block_base;
  uint64_t& word = present_[place / 64];
  const uint64_t bit = uint64_t{1} << (place % 64);
  if (word & bit) return;
  word |= bit;
  at_[place] = piece;
}

void Pieces::move_to(std::vector<Span>* out) {
  for (size_t w = 0; w < present_.size(); ++w) {
    for (uint64_t left = present_[w]; left != 0; left &= left - 1)
      out->push_back(at_[w * 64 + std::countr_zero(left)]);
    present_[w] = 0;
  }
}

int32_t Merger::append(const Group& group) {
  lists_.clear();
  next_.clear();
  held_.resize(group.lists());
  for (int32_t l = 0; l < group.lists(); ++l) {
    const int64_t row = group.row_of(l);
    lists_.push_back({index_.begin[row], index_.begin[row] + index_.count[row]});
    next_.push_back(next_block(lists_.back()));
  }
  int32_t count = 0;
  for (int32_t block = *std::min_element(next_.begin(), next_.end()); block != kDone; block = step(block)) {
    if (out_.members.size() + lists_.size() * index_.words > most_words_) return -1;
    ++count;
  }
  return count;
}

// Writes the entry of `block`, moves the lists that hold it on, and returns the next block. Which lists hold
// a block is as good as random, so the loop over lists has no branch on it.
int32_t Merger::step(int32_t block) {
  static constexpr uint64_t kNoWords[2] = {0, 0};
  const int words = index_.words;
  const size_t lists = lists_.size(), first = out_.members.size();
  out_.members.resize(first + lists * words);
  // Locals, or every store below would make the compiler read the views again.
  const uint64_t* members = index_.members;
  const int32_t* blocks = index_.blocks;
  uint64_t* to = &out_.members[first];
  List* list = lists_.data();
  int32_t* next = next_.data();
  int64_t* entry = held_.data();
  int32_t following = kDone;
  for (size_t l = 0; l < lists; ++l) {
    const bool here = next[l] == block;
    const int64_t at = list[l].at, after = at + here;
    const uint64_t* from = here ? members + at * words : kNoWords;
    *to++ = from[0];
    if (words == 2) *to++ = from[1];
    *entry = at;
    entry += here;
    list[l].at = after;
    next[l] = after < list[l].end ? blocks[after] : kDone;
    following = std::min(following, next[l]);
  }
  const size_t held = entry - held_.data();
  bool full = held == lists;
  for (size_t i = 0; full && i < held; ++i) full = index_.full[held_[i]] != 0;
  out_.blocks.push_back(block);
  out_.full.push_back(full);
  unite_spans(held, static_cast<int64_t>(block) * index_.block);
  return following;
}

// Appends the pieces that the first `held` entries of held_ touch. Most of the time all touch the same.
void Merger::unite_spans(size_t held, int64_t block_base) {
  const Span* spans = index_.spans;
  const auto begin = [&](size_t i) { return spans + index_.span_begin[held_[i]]; };
  const auto end = [&](size_t i) { return spans + index_.span_begin[held_[i] + 1]; };
  const auto same = [](const Span& a, const Span& b) { return a.token == b.token; };
  bool alike = true;
  for (size_t i = 1; alike && i < held; ++i) alike = std::equal(begin(0), end(0), begin(i), end(i), same);
  if (alike) {
    out_.spans.insert(out_.spans.end(), begin(0), end(0));
  } else {
    for (size_t i = 0; i < held; ++i)
      for (const Span* s = begin(i); s != end(i); ++s) pieces_.add(*s, block_base);
    pieces_.move_to(&out_.spans);
  }
  out_.span_begin.push_back(static_cast<int64_t>(out_.spans.size()));
}

}  // namespace tamis::index
