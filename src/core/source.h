// What an index set was made from, besides its candidates.
#pragma once

#include <cstdint>

#include "tamis/problem.h"

namespace tamis {

// A hash of everything but the candidates that shapes an index set and that its slots and masks rely on:
// sizes, mask, lengths and positions. An index set must not run with a problem whose stamp differs: its slots
// could lie outside the cache, its blocks beyond a length. The number of pages is not part of it: a cache may
// grow.
uint64_t source_stamp(const Problem& problem, const Shape& shape);

// Slots of the cache: pages * P, or the rows of a contiguous one.
inline int64_t cache_slots(const Shape& shape) {
  return shape.page_size > 0 ? shape.pages * shape.page_size : shape.kv_rows;
}

}  // namespace tamis
