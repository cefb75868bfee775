// Reading an IndexSet back: sets, and how often blocks are shared.
#include <algorithm>
#include <bit>
#include <numeric>

#include "core/bits.h"
#include "index/row.h"

namespace tamis {

std::vector<int32_t> expand_set(const Problem& problem, const IndexView& index, int64_t query,
                                int64_t index_head) {
  std::vector<int32_t> tokens;
  // Rows are ordered by query; the row of (query, index head) is the one whose block of queries holds it.
  const int64_t heads = problem.candidates.index_heads;
  int64_t low = 0, high = index.rows / heads;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (index.row[middle * heads].first_query <= query ? low : high) = middle;
  }
  const int64_t r = low * heads + index_head;
  if (r >= index.rows) return tokens;
  const int64_t request = index.row[r].request, kv_len = problem.cache.kv_len.at<int32_t>({request});
  const Mask& m = problem.mask;
  const Sight sight =
      sight_of(index::position_of(problem, request, query), kv_len, m.causal, m.window, m.sink);
  for (int64_t e = index.begin[r]; e < index.begin[r] + index.count[r]; ++e)
    for (int w = 0; w < index.words; ++w) {
      const int64_t base = static_cast<int64_t>(index.blocks[e]) * index.block + w * kWordBits;
      uint64_t bits = set_bits(index.members[e * index.words + w], sight, base) & word_mask(index.block);
      for (; bits != 0; bits &= bits - 1)
        tokens.push_back(static_cast<int32_t>(base + std::countr_zero(bits)));
    }
  return tokens;
}

Percentiles reuse_statistics(const IndexView& index) {
  std::vector<std::pair<int32_t, int32_t>> uses;  // (request, block), once a row
  for (int64_t r = 0; r < index.rows; ++r)
    for (int64_t e = index.begin[r]; e < index.begin[r] + index.count[r]; ++e)
      uses.emplace_back(index.row[r].request, index.blocks[e]);
  std::sort(uses.begin(), uses.end());
  std::vector<int64_t> counts;
  for (size_t i = 0, j = 0; i < uses.size(); i = j) {
    while (j < uses.size() && uses[j] == uses[i]) ++j;
    counts.push_back(static_cast<int64_t>(j - i));
  }
  if (counts.empty()) return {};
  std::sort(counts.begin(), counts.end());
  const auto rank = [&](size_t percent) {
    return counts[(counts.size() * percent + 99) / 100 - 1];
  };  // nearest rank
  return {rank(50), rank(95), counts.back()};
}

}  // namespace tamis
