// The union of the private lists of the query heads of each KV head.
//
// Entries are copied, not judged: padding is dropped, since it names nothing, but an entry out of range is
// kept, so that whoever normalizes the joined rows refuses or drops it by `invalid` just as it would have in
// the private rows (it is then counted once, and its row is the joined one). Duplicates are the exception:
// the union would hide an entry that one head listed twice, so `duplicates = reject` is decided here. The
// same entry in the lists of two heads is no duplicate; that is what the union is for.
//
// Cost: O(n log n) time for the n entries of a KV head's lists, memory in proportion to the entries.
#include <algorithm>
#include <optional>
#include <unordered_set>

#include "core/checks.h"
#include "tamis/select.h"

namespace tamis {
namespace {

// One candidate row; the arrays have been checked.
class Row {
 public:
  Row(const CandidateView& c, int64_t row) : c_(c), row_(row) {
    if (c.form == CandidateForm::kFixedWidth) {
      end_ = c.count.present() ? c.count.at<int32_t>({row}) : c.indices.shape[1];
    } else {
      begin_ = offset(row);
      end_ = offset(row + 1);
    }
  }
  int64_t begin() const { return begin_; }
  int64_t end() const { return end_; }
  int32_t operator[](int64_t i) const {
    return c_.form == CandidateForm::kFixedWidth ? c_.indices.at<int32_t>({row_, i})
                                                 : c_.indices.at<int32_t>({i});
  }

 private:
  int64_t offset(int64_t i) const {
    return c_.indptr.dtype == DType::kI64 ? c_.indptr.at<int64_t>({i}) : c_.indptr.at<int32_t>({i});
  }
  const CandidateView& c_;
  int64_t row_, begin_ = 0, end_ = 0;
};

// The first entry in [0, limit) that the row has held before. Others are no duplicates: they are invalid.
std::optional<int32_t> first_repeated(const Row& row, int64_t limit) {
  std::unordered_set<int32_t> seen;
  for (int64_t i = row.begin(); i < row.end(); ++i)
    if (row[i] >= 0 && row[i] < limit && !seen.insert(row[i]).second) return row[i];
  return {};
}

Status check_duplicates(const CandidateView& c, int64_t request, int64_t row, int64_t kv_len) {
  const int64_t limit =
      kv_len == 0 ? 0 : (kv_len - 1) / c.unit + 1;  // e * unit < kv_len, without the product
  const std::optional<int32_t> entry = first_repeated(Row(c, row), limit);
  if (!entry) return {};
  return {Code::kDuplicateIndex,
          text("cand_indices: row ", row, " of request ", request, " holds ", *entry, " twice"),
          {.request = request, .row = row, .value = *entry}};
}

// Appends the union of rows [first, first + group).
void append_union(const CandidateView& c, int64_t first, int64_t group, CandidateRows* joined) {
  std::vector<int32_t> all;
  for (int64_t r = first; r < first + group; ++r) {
    const Row row(c, r);
    for (int64_t i = row.begin(); i < row.end(); ++i)
      if (row[i] != -1) all.push_back(row[i]);
  }
  std::sort(all.begin(), all.end());
  joined->indices.insert(joined->indices.end(), all.begin(), std::unique(all.begin(), all.end()));
  joined->indptr.push_back(static_cast<int64_t>(joined->indices.size()));
}

int64_t rows_of(const CandidateView& c) {
  if (c.form == CandidateForm::kCsr) return c.indptr.shape[0] - 1;
  return c.form == CandidateForm::kFixedWidth ? c.indices.shape[0] : 0;
}

}  // namespace

// When `like` lists rows of its own, there are as many index heads more or fewer here as there are rows: the
// result of group_union over `problem` is viewed with view(problem.candidates). Otherwise index_heads is
// kept.
CandidateView CandidateRows::view(const CandidateView& like) const {
  CandidateView c = like;
  c.form = CandidateForm::kCsr;
  c.indptr = dense_view(indptr.data(), DType::kI64, {static_cast<int64_t>(indptr.size())});
  c.indices = dense_view(indices.data(), DType::kI32, {static_cast<int64_t>(indices.size())});
  c.count = {};
  const int64_t theirs = rows_of(like), ours = rows_of(c);
  const int64_t blocks = like.index_heads > 0 ? theirs / like.index_heads : 0;
  if (blocks > 0 && ours >= blocks)
    c.index_heads = ours / blocks;  // what does not divide, check_arrays refuses
  return c;
}

Result<CandidateRows> group_union(const Problem& problem) {
  const Result<Shape> shape = describe(problem);
  if (!shape.ok()) return shape.status();
  const CandidateView& c = problem.candidates;
  if (c.form != CandidateForm::kCsr && c.form != CandidateForm::kFixedWidth)
    return invalid("cand_indices", "tensor is missing, there are no private lists to join");
  if (c.index_heads != shape->q_heads)
    return invalid("index_heads", c.index_heads, " is not ", shape->q_heads,
                   " (query heads), there are no private lists to join");
  TAMIS_RETURN_IF_ERROR(check_arrays(problem, *shape));

  CandidateRows joined;
  joined.indptr = {0};
  int64_t row = 0;
  for (int64_t b = 0; b < shape->requests; ++b) {
    const int64_t queries = problem.query.cu_q.at<int32_t>({b + 1}) - problem.query.cu_q.at<int32_t>({b});
    const int64_t blocks = queries == 0 ? 0 : (queries - 1) / c.query_block + 1;
    const int64_t end = row + blocks * c.index_heads, kv_len = problem.cache.kv_len.at<int32_t>({b});
    for (; row < end; row += shape->group) {
      if (c.duplicates == OnDuplicate::kReject)
        for (int64_t r = row; r < row + shape->group; ++r)
          TAMIS_RETURN_IF_ERROR(check_duplicates(c, b, r, kv_len));
      append_union(c, row, shape->group, &joined);
    }
  }
  return joined;
}

}  // namespace tamis
