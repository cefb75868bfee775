// How rows are cut into bundles: candidate rows form a grid of query blocks by index heads, and a bundle is a
// rectangle of it that stays inside one request and one KV head.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tamis/index.h"
#include "tamis/problem.h"

namespace tamis::index {

// The heads of a problem, as far as rows are concerned.
struct Heads {
  int32_t query, kv, index;

  explicit Heads(const Shape& s)
      : query(static_cast<int32_t>(s.q_heads)),
        kv(static_cast<int32_t>(s.kv_heads)),
        index(static_cast<int32_t>(s.index_heads)) {}

  // Lists that are private to query heads of one KV head; 1 when a KV head has one list.
  int32_t lists_of_kv_head() const { return std::max(1, index / kv); }
  // Index head h serves KV heads [first_kv(h), first_kv(h) + kv_heads_served()).
  int32_t kv_heads_served() const { return index < kv ? kv : 1; }
  int32_t first_kv(int32_t h) const { return index < kv ? 0 : h / lists_of_kv_head(); }
  // Query heads that read one KV head through one list.
  int32_t queries_of_list() const { return query / std::max(kv, index); }
};

// Rectangles of so many index heads by (up to) so many query blocks.
struct Cut {
  int32_t heads, query_blocks;
};

// One bundle to be: index heads [head, head + heads) of query blocks [first, last). List l is the row
// row_of(l): query blocks outside, heads inside, so that the rows of one query are neighbours in a tile.
struct Group {
  int64_t first, last;
  int32_t head, heads, index_heads;

  int32_t lists() const { return static_cast<int32_t>(last - first) * heads; }
  int64_t row_of(int32_t l) const { return (first + l / heads) * index_heads + head + l % heads; }
};

// Where the run of query blocks that starts at `first` ends: after `most` of them or at the end of the
// request. Never joins requests: tokens of two requests are different tokens.
inline int64_t run_end(const IndexView& index, int32_t index_heads, int64_t first, int64_t most) {
  const int64_t query_blocks = index.rows / index_heads;
  const int32_t request = index.row[first * index_heads].request;
  int64_t end = first + 1;
  while (end < query_blocks && end - first < most && index.row[end * index_heads].request == request) ++end;
  return end;
}

// Calls visit(Group) for each bundle, in the order that bundle() promises.
template <class Visit>
void for_each_group(const IndexView& index, const Heads& heads, Cut cut, Visit visit) {
  const int64_t query_blocks = index.rows / heads.index;
  for (int64_t first = 0, last = 0; first < query_blocks; first = last) {
    last = run_end(index, heads.index, first, cut.query_blocks);
    for (int32_t head = 0; head < heads.index; head += cut.heads)
      visit(Group{first, last, head, cut.heads, heads.index});
  }
}

}  // namespace tamis::index
