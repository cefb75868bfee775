#include "diagnose/lines.h"

#include <algorithm>

namespace tamis {
namespace {

constexpr int64_t kLineBits = 128 * 8;

int64_t line_of(int64_t bit) { return bit >= 0 ? bit / kLineBits : -((kLineBits - 1 - bit) / kLineBits); }

// Appends the lines of one head of one token whose first element lies at `bit`.
void add_lines(const LineLayout& l, int64_t bit, std::vector<int64_t>* lines) {
  if (l.dim == l.element_bits) {
    const int64_t last = line_of(bit + l.elements * l.element_bits - 1);
    for (int64_t line = line_of(bit); line <= last; ++line) lines->push_back(line);
    return;
  }
  for (int64_t d = 0; d < l.elements; ++d) {
    const int64_t from = bit + d * l.dim, last = line_of(from + l.element_bits - 1);
    for (int64_t line = line_of(from); line <= last; ++line) lines->push_back(line);
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
  std::vector<int64_t> lines;
  int64_t count = 0, open_page = -1;
  for (const int32_t t : tokens) {
    int64_t row = first_row + t;
    if (layout.page_size > 0) {
      row = t % layout.page_size;
      if (t / layout.page_size != open_page) count += count_and_clear(&lines);
      open_page = t / layout.page_size;
    }
    add_lines(layout, row * layout.token + head * layout.head, &lines);
  }
  return count + count_and_clear(&lines);
}

}  // namespace tamis
