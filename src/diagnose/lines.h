// Distinct 128-byte lines that one row reads from K or V.
#pragma once

#include <cstdint>
#include <vector>

#include "tamis/problem.h"

namespace tamis {

// One of K and V as it lies in memory; everything in bits, so that int4 needs no special case.
struct LineLayout {
  int64_t page_size;               // 0: contiguous
  int64_t token, head, dim;        // strides, bits
  int64_t elements, element_bits;  // of one head of one token, as stored
};

// Strides as they are; an index-only problem counts as packed NHD.
LineLayout line_layout(const Problem& problem, const Shape& shape, bool is_v);

// How many distinct lines the ascending `tokens` touch for one KV head. Every page starts on a line;
// `first_row` is the request's first row of a contiguous cache, whose row 0 starts on one.
int64_t count_lines(const LineLayout& layout, const std::vector<int32_t>& tokens, int64_t first_row,
                    int64_t head);

}  // namespace tamis
