#include "diagnose/lines.h"

#include <algorithm>
#include <limits>

namespace tamis {
namespace {

__extension__ typedef __int128 Wide;  // bit positions: no pair of extents overflows it

constexpr int64_t kLineBits = 128 * 8;

int64_t line_of(Wide bit) {
  return static_cast<int64_t>(bit >= 0 ? bit / kLineBits : -((kLineBits - 1 - bit) / kLineBits));
}

// Appends the lines of one head of one token whose first element lies at `bit`.
void add_lines(const LineLayout& l, Wide bit, std::vector<int64_t>* lines) {
  for (int64_t d = 0; d < l.elements; ++d) {
    const Wide from = bit + Wide{d} * l.dim;
    const int64_t last = line_of(from + l.element_bits - 1);
    for (int64_t line = line_of(from); line <= last; ++line)
      if (lines->empty() || lines->back() != line) lines->push_back(line);
  }
}

int64_t count_and_clear(std::vector<int64_t>* lines) {
  std::sort(lines->begin(), lines->end());
  const int64_t count = std::unique(lines->begin(), lines->end()) - lines->begin();
  lines->clear();
  return count;
}

}  // namespace

LineLayout line_layout(const Problem& problem, const Shape& shape, bool is_v) {
  if (shape.index_only) {
    const int64_t bits = is_v ? shape.v_bits : shape.k_bits, dim = is_v ? shape.v_head_dim : shape.head_dim;
    return {.page_size = shape.page_size,
            .token = shape.kv_heads * dim * bits,
            .head = dim * bits,
            .dim = bits,
            .elements = dim,
            .element_bits = bits};
  }
  const TensorView& t = is_v ? problem.cache.v : problem.cache.k;
  const KvStrides stride = kv_strides(t, problem.cache.layout);
  const int64_t bits = 8 * dtype_bytes(t.dtype);
  return {.page_size = shape.page_size,
          .token = stride.token * bits,
          .head = stride.head * bits,
          .dim = stride.dim * bits,
          .elements = t.shape[t.rank - 1],
          .element_bits = bits};
}

int64_t count_lines(const LineLayout& layout, const std::vector<int32_t>& tokens, int64_t first_row,
                    int64_t head) {
  // Whole rows in ascending order touch ascending runs of lines: what lies behind the last one counted is
  // new. Other strides need the list.
  const bool ascending = layout.dim == layout.element_bits && layout.token >= 0;
  std::vector<int64_t> lines;
  int64_t count = 0, open_page = -1, next = std::numeric_limits<int64_t>::min();
  for (const int32_t t : tokens) {
    int64_t row = first_row + t;
    if (layout.page_size > 0) {
      row = t % layout.page_size;
      if (t / layout.page_size != open_page) {
        count += count_and_clear(&lines);
        next = std::numeric_limits<int64_t>::min();
      }
      open_page = t / layout.page_size;
    }
    const Wide bit = Wide{row} * layout.token + Wide{head} * layout.head;
    if (!ascending) {
      add_lines(layout, bit, &lines);
      continue;
    }
    const int64_t last = line_of(bit + Wide{layout.elements} * layout.element_bits - 1);
    const int64_t first = std::max(line_of(bit), next);
    if (last >= first) count += last - first + 1;
    next = std::max(next, last + 1);
  }
  return count + count_and_clear(&lines);
}

}  // namespace tamis
