// docs/semantics.md sections 3 and 4: candidate rows, and the set each query attends to.
#include <algorithm>
#include <unordered_set>

#include "core/checks.h"
#include "kernels/reference/rows.h"
#include "tamis/reference.h"

namespace tamis::reference {
namespace {

// More than any judge should be asked for; a bound so that a small hostile file cannot ask for all memory.
constexpr int64_t kMostTokens = int64_t{1} << 25, kMostSets = int64_t{1} << 24;

Status too_large(const char* what, int64_t limit, int64_t request) {
  return {Code::kCapacityExceeded,
          text("cand_indices: the reference holds at most ", limit, " ", what),
          {.request = request, .limit = limit}};
}

struct RowSpan {
  int64_t first, last;  // positions in `indices`; for the fixed-width form of that row alone
};

RowSpan span_of(const CandidateView& c, int64_t row) {
  switch (c.form) {
    case CandidateForm::kCsr:
      if (c.indptr.dtype == DType::kI64)
        return {c.indptr.at<int64_t>({row}), c.indptr.at<int64_t>({row + 1})};
      return {c.indptr.at<int32_t>({row}), c.indptr.at<int32_t>({row + 1})};
    case CandidateForm::kFixedWidth:
      return {0, c.count.present() ? c.count.at<int32_t>({row}) : c.indices.shape[1]};
    case CandidateForm::kNone:
    case CandidateForm::kAll:
      break;
  }
  return {0, 0};
}

// The unique good entries of a row, ascending, counted into `counts`.
Result<std::vector<int32_t>> judge_row(const CandidateView& c, int64_t request, int64_t row, int64_t kv_len,
                                       CandidateCounts* counts) {
  const int64_t limit =
      kv_len == 0 ? 0 : (kv_len - 1) / c.unit + 1;  // e * unit < kv_len, without the product
  const RowSpan span = span_of(c, row);
  std::unordered_set<int32_t> seen;
  for (int64_t i = span.first; i < span.last; ++i) {
    const int32_t e =
        c.form == CandidateForm::kCsr ? c.indices.at<int32_t>({i}) : c.indices.at<int32_t>({row, i});
    ++counts->raw;
    if (e == -1) {
      ++counts->padding;
    } else if (e < 0 || e >= limit) {
      if (c.invalid == OnInvalid::kReject)
        return Status(Code::kIndexOutOfRange,
                      text("cand_indices: row ", row, " of request ", request, " holds ", e, "; ", e,
                           " * unit ", c.unit, " is outside [0, ", kv_len, ")"),
                      {.request = request, .row = row, .value = e, .limit = limit});
      ++counts->invalid;
    } else if (!seen.insert(e).second) {
      if (c.duplicates == OnDuplicate::kReject)
        return Status(Code::kDuplicateIndex,
                      text("cand_indices: row ", row, " of request ", request, " holds ", e, " twice"),
                      {.request = request, .row = row, .value = e});
      ++counts->duplicates;
    } else {
      ++counts->unique;
    }
  }
  std::vector<int32_t> entries(seen.begin(), seen.end());
  std::sort(entries.begin(), entries.end());
  return entries;
}

// D(r): the tokens the entries stand for, ascending.
std::vector<int32_t> dynamic_tokens(const CandidateView& c, const std::vector<int32_t>& entries,
                                    int64_t kv_len) {
  std::vector<int32_t> tokens;
  if (c.form == CandidateForm::kAll)
    for (int64_t t = 0; t < kv_len; ++t) tokens.push_back(static_cast<int32_t>(t));
  for (const int32_t e : entries)
    for (int64_t t = e * c.unit; t < kv_len && t - e * c.unit < c.unit; ++t)
      tokens.push_back(static_cast<int32_t>(t));
  return tokens;
}

// S of section 4 for one query at position `pos`.
std::vector<int32_t> query_set(const Mask& mask, const std::vector<int32_t>& dynamic, int64_t pos,
                               int64_t kv_len) {
  if (pos < 0) return {};
  const int64_t end = mask.causal ? std::min(pos + 1, kv_len) : kv_len;  // tokens the query may see
  std::vector<int32_t> set(dynamic.begin(), std::lower_bound(dynamic.begin(), dynamic.end(), end));
  for (int64_t t = 0; t < std::min(mask.sink, end); ++t) set.push_back(static_cast<int32_t>(t));
  for (int64_t t = std::min(pos, end - 1); t >= 0 && pos - t < mask.window; --t)
    set.push_back(static_cast<int32_t>(t));
  std::sort(set.begin(), set.end());
  set.erase(std::unique(set.begin(), set.end()), set.end());
  return set;
}

// An upper bound of what one query's set can take while it is built.
int64_t most_tokens(const Problem& p, size_t entries, int64_t kv_len) {
  const CandidateView& c = p.candidates;
  const int64_t unit = std::min(c.unit, kv_len),
                listed = std::min(kv_len, static_cast<int64_t>(entries) * unit);
  return (c.form == CandidateForm::kAll ? kv_len : listed) + std::min(p.mask.sink, kv_len) +
         std::min(p.mask.window, kv_len);
}

}  // namespace

namespace {

Result<Sets> build_unguarded(const Problem& problem) {
  const Result<Shape> shape = describe(problem);
  if (!shape.ok()) return shape.status();
  TAMIS_RETURN_IF_ERROR(check_arrays(problem, *shape));

  const CandidateView& c = problem.candidates;
  if (problem.query.cu_q.at<int32_t>({shape->requests}) > kMostSets / c.index_heads)
    return too_large("sets", kMostSets, 0);
  Sets sets;
  sets.indptr = {0};
  int64_t block = 0;
  for (int64_t b = 0; b < shape->requests; ++b) {
    const int64_t kv_len = problem.cache.kv_len.at<int32_t>({b});
    const int64_t begin = problem.query.cu_q.at<int32_t>({b}), end = problem.query.cu_q.at<int32_t>({b + 1});
    for (int64_t first = begin; first < end; ++block) {
      const int64_t last = end - first > c.query_block ? first + c.query_block : end;
      std::vector<std::vector<int32_t>> dynamic;  // [Hi]
      int64_t held = 0;                           // at most, by the rows of this block
      for (int64_t g = 0; g < c.index_heads; ++g) {
        const auto entries = judge_row(c, b, block * c.index_heads + g, kv_len, &sets.counts);
        if (!entries.ok()) return entries.status();
        held += most_tokens(problem, entries->size(), kv_len);
        if (held > kMostTokens) return too_large("selected tokens", kMostTokens, b);
        dynamic.push_back(dynamic_tokens(c, *entries, kv_len));
      }
      for (int64_t i = first; i < last; ++i) {
        for (int64_t g = 0; g < c.index_heads; ++g) {
          const auto set = query_set(problem.mask, dynamic[g], position_of(problem, b, i), kv_len);
          if (set.empty()) ++sets.empty_rows;
          sets.tokens.insert(sets.tokens.end(), set.begin(), set.end());
          sets.indptr.push_back(static_cast<int64_t>(sets.tokens.size()));
        }
        if (sets.indptr.back() > kMostTokens) return too_large("selected tokens", kMostTokens, b);
      }
      first = last;
    }
  }
  return sets;
}

}  // namespace

Result<Sets> build_sets(const Problem& problem) {
  return guarded([&] { return build_unguarded(problem); });
}

}  // namespace tamis::reference
