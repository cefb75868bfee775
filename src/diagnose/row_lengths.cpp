// How long the candidate rows of a problem are, in entries, tokens or pages.
#include <algorithm>

#include "core/checks.h"
#include "index/row.h"
#include "tamis/explain.h"

namespace tamis {
namespace {

int64_t listed(const CandidateView& c, int64_t row) {
  const index::RawRow raw = index::raw_row(c, row);
  int64_t entries = 0;
  for (int64_t i = 0; i < raw.count; ++i) entries += raw.entries[i * raw.stride] != -1;
  return entries;
}

// Tokens of the sets of queries first .. last, each once; ascending.
void unite(const reference::Sets& sets, int64_t first, int64_t last, int64_t index_head, int64_t index_heads,
           std::vector<int32_t>* tokens) {
  tokens->clear();
  for (int64_t i = first; i < last; ++i) {
    const int64_t set = i * index_heads + index_head;
    tokens->insert(tokens->end(), sets.tokens.begin() + sets.indptr[set],
                   sets.tokens.begin() + sets.indptr[set + 1]);
  }
  std::sort(tokens->begin(), tokens->end());
  tokens->erase(std::unique(tokens->begin(), tokens->end()), tokens->end());
}

int64_t pages_of(const std::vector<int32_t>& tokens, int64_t page) {
  int64_t pages = 0, previous = -1;
  for (const int32_t t : tokens) {
    if (t / page != previous) ++pages;
    previous = t / page;
  }
  return pages;
}

Result<std::vector<int64_t>> measure(const Problem& problem, LengthOf what) {
  const Result<Shape> shape = describe(problem);
  if (!shape.ok()) return shape.status();
  TAMIS_RETURN_IF_ERROR(check_arrays(problem, *shape));
  const CandidateView& c = problem.candidates;
  reference::Sets sets;
  if (what != LengthOf::kEntries) {
    Result<reference::Sets> built = reference::build_sets(problem);
    if (!built.ok()) return built.status();
    sets = std::move(*built);
  }
  const int64_t page = shape->page_size > 0 ? shape->page_size : c.unit;
  std::vector<int64_t> lengths;
  std::vector<int32_t> tokens;
  for (int64_t b = 0; b < shape->requests; ++b) {
    const int64_t begin = problem.query.cu_q.at<int32_t>({b}), end = problem.query.cu_q.at<int32_t>({b + 1});
    for (int64_t first = begin, last = begin; first < end; first = last) {
      last = end - first > c.query_block ? first + c.query_block : end;
      for (int64_t g = 0; g < c.index_heads; ++g) {
        if (what == LengthOf::kEntries) {
          lengths.push_back(listed(c, std::ssize(lengths)));
          continue;
        }
        unite(sets, first, last, g, c.index_heads, &tokens);
        lengths.push_back(what == LengthOf::kTokens ? std::ssize(tokens) : pages_of(tokens, page));
      }
    }
  }
  return lengths;
}

}  // namespace

Result<std::vector<int64_t>> row_lengths(const Problem& problem, LengthOf what) {
  return guarded([&] { return measure(problem, what); });
}

}  // namespace tamis
