// normalize(): rows one after the other, then the pages they touch.
#include <algorithm>

#include "core/checks.h"
#include "core/source.h"
#include "index/pages.h"
#include "index/row.h"
#include "index/storage.h"

namespace tamis {
namespace {

Percentiles percentiles(std::vector<int32_t> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto rank = [&](size_t percent) {
    return values[(values.size() * percent + 99) / 100 - 1];
  };  // nearest rank
  return {rank(50), rank(95), values.back()};
}

// kNone and kAll list nothing, so any number of rows would do; they are made like the others'.
Status add_rows(const Problem& problem, const NormalizeOptions& options, IndexSet::Storage* set) {
  const CandidateView& c = problem.candidates;
  index::RowBuilder builder(problem, options, set);
  const int64_t requests = problem.query.cu_q.shape[0] - 1;
  for (int64_t b = 0; b < requests; ++b) {
    const int64_t begin = problem.query.cu_q.at<int32_t>({b}), end = problem.query.cu_q.at<int32_t>({b + 1});
    for (int64_t first = begin, last = begin; first < end; first = last) {
      last = end - first > c.query_block ? first + c.query_block : end;
      for (int64_t g = 0; g < c.index_heads; ++g) {
        const RowInfo info{static_cast<int32_t>(b), static_cast<int32_t>(g), static_cast<int32_t>(first),
                           static_cast<int32_t>(last)};
        TAMIS_RETURN_IF_ERROR(builder.add(info, static_cast<int64_t>(set->row.size())));
      }
    }
  }
  return {};
}

}  // namespace

void IndexSet::Storage::clear() {
  row.clear();
  begin.clear();
  count.clear();
  blocks.clear();
  members.clear();
  full.clear();
  seen.clear();
  span_begin.assign(1, 0);
  spans.clear();
  stats = {};
}

IndexSet::IndexSet() : storage_(std::make_unique<Storage>()) { storage_->clear(); }
IndexSet::~IndexSet() = default;
IndexSet::IndexSet(IndexSet&&) noexcept = default;
IndexSet& IndexSet::operator=(IndexSet&&) noexcept = default;

const IndexStats& IndexSet::stats() const { return storage_->stats; }

IndexView IndexSet::view() const {
  const Storage& s = *storage_;
  return {.rows = static_cast<int64_t>(s.row.size()),
          .entries = static_cast<int64_t>(s.blocks.size()),
          .block = s.block,
          .words = s.words,
          .source = s.source,
          .slots = s.slots,
          .row = s.row.data(),
          .begin = s.begin.data(),
          .count = s.count.data(),
          .blocks = s.blocks.data(),
          .members = s.members.data(),
          .full = s.full.data(),
          .span_begin = s.span_begin.data(),
          .spans = s.spans.data()};
}

int32_t default_block(const Shape& shape, int64_t unit) {
  const int64_t page = shape.page_size > 0 ? shape.page_size : 64;
  for (const int32_t block : {64, 32, 16})
    if (page % block == 0 && (unit % block == 0 || unit == 1)) return block;
  return 16;
}

namespace {

Status normalize_unguarded(const Problem& problem, const NormalizeOptions& options, IndexSet* set) {
  IndexSet::Storage& storage = set->storage();
  storage.clear();
  const Result<Shape> shape = describe(problem);
  if (!shape.ok()) return shape.status();
  TAMIS_RETURN_IF_ERROR(check_arrays(problem, *shape));
  const int32_t block = options.block ? options.block : default_block(*shape, problem.candidates.unit);
  if (block != 16 && block != 32 && block != 64 && block != 128)
    return {
        Code::kUnsupported, text("block: ", block, " tokens; nearest: 16, 32, 64, 128"), {.value = block}};
  constexpr int64_t kMostRows = int64_t{1} << 26;  // as for entries: memory must not follow a hostile number
  if (count_query_blocks(problem) > kMostRows / problem.candidates.index_heads)
    return {
        Code::kCapacityExceeded, text("cand_indices: more than ", kMostRows, " rows"), {.limit = kMostRows}};
  storage.block = block;
  storage.words = std::max(1, block / 64);
  storage.source = source_stamp(problem, *shape);
  storage.slots = cache_slots(*shape);

  Status status = add_rows(problem, options, &storage);
  if (status.ok()) status = index::map_pages(problem, *shape, options.all_blocks, &storage);
  if (!status.ok()) {
    storage.clear();
    return status;
  }
  storage.stats.blocks = static_cast<int64_t>(storage.blocks.size());
  storage.stats.spans = static_cast<int64_t>(storage.spans.size());
  storage.stats.row_blocks = percentiles(storage.count);
  return {};
}

}  // namespace

Status normalize_into(const Problem& problem, const NormalizeOptions& options, IndexSet* set) {
  Status status = guarded([&] { return normalize_unguarded(problem, options, set); });
  if (!status.ok()) set->storage().clear();
  return status;
}

Result<IndexSet> normalize(const Problem& problem, const NormalizeOptions& options) {
  IndexSet set;
  TAMIS_RETURN_IF_ERROR(normalize_into(problem, options, &set));
  return set;
}

}  // namespace tamis
