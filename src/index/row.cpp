#include "index/row.h"

#include <algorithm>
#include <bit>

#include "core/checks.h"

namespace tamis::index {

RawRow raw_row(const CandidateView& c, int64_t row) {
  if (c.form == CandidateForm::kCsr) {
    const auto at = [&](int64_t i) -> int64_t {
      return c.indptr.dtype == DType::kI64 ? c.indptr.at<int64_t>({i}) : c.indptr.at<int32_t>({i});
    };
    const int64_t begin = at(row), count = at(row + 1) - begin;
    if (count == 0) return {nullptr, 1, 0};
    return {static_cast<const int32_t*>(c.indices.data) + begin * c.indices.stride[0], c.indices.stride[0],
            count};
  }
  if (c.form != CandidateForm::kFixedWidth) return {nullptr, 1, 0};
  const int64_t count = c.count.present() ? c.count.at<int32_t>({row}) : c.indices.shape[1];
  if (count == 0) return {nullptr, 1, 0};
  return {static_cast<const int32_t*>(c.indices.data) + row * c.indices.stride[0], c.indices.stride[1],
          count};
}

void join_sights(const Problem& problem, const RowInfo& info, RowSight* sight) {
  const int64_t kv_len = problem.cache.kv_len.at<int32_t>({info.request});
  sight->end = sight->sink_end = 0;
  auto& windows = sight->windows;
  windows.clear();
  for (int64_t i = info.first_query; i < info.last_query; ++i) {
    const Mask& m = problem.mask;
    const Sight s = sight_of(position_of(problem, info.request, i), kv_len, m.causal, m.window, m.sink);
    sight->end = std::max(sight->end, s.end);
    sight->sink_end = std::max(sight->sink_end, s.sink_end);
    if (s.window_begin >= s.window_end) continue;
    // Neighbouring queries have overlapping windows: most of the time the last one just grows.
    if (!windows.empty() && s.window_begin >= windows.back().first && s.window_begin <= windows.back().second)
      windows.back().second = std::max(windows.back().second, s.window_end);
    else
      windows.emplace_back(s.window_begin, s.window_end);
  }
  if (windows.size() < 2) return;
  std::sort(windows.begin(), windows.end());
  size_t last = 0;
  for (size_t i = 1; i < windows.size(); ++i) {
    if (windows[i].first <= windows[last].second)
      windows[last].second = std::max(windows[last].second, windows[i].second);
    else
      windows[++last] = windows[i];
  }
  windows.resize(last + 1);
}

RowBuilder::RowBuilder(const Problem& problem, const NormalizeOptions& options, IndexSet::Storage* out)
    : problem_(problem),
      c_(problem.candidates),
      options_(options),
      out_(*out),
      touched_(&out->bitmap, &out->found, &out->table, &out->ranks),
      block_(out->block),
      log2_block_(std::countr_zero(static_cast<unsigned>(out->block))),
      words_(out->words) {}

// First pass: finds the first entry out of range, and the blocks of the entries before it, of sink and
// windows.
void RowBuilder::collect(const RawRow& raw, int64_t kv_len) {
  const int64_t limit =
      kv_len == 0 ? 0 : (kv_len - 1) / c_.unit + 1;  // e * unit < kv_len, without the product
  const int64_t blocks = (kv_len + block_ - 1) >> log2_block_;
  const auto block_end = [&](int64_t end) { return (end + block_ - 1) >> log2_block_; };
  int64_t expected =
      raw.count * std::max<int64_t>(1, std::min(c_.unit, kv_len) >> log2_block_) + block_end(sight_.sink_end);
  for (const auto& [begin, end] : sight_.windows) expected += block_end(end) - (begin >> log2_block_);
  touched_.start(options_.ordering, blocks, expected);

  const bool one_block = c_.unit <= block_ && block_ % c_.unit == 0;
  first_bad_ = -1;
  if (!one_block) out_.entry_bitmap.assign(limit / 64 + 1, 0);
  for (int64_t i = 0; i < raw.count; ++i) {
    const int64_t e = raw.entries[i * raw.stride];
    if (e >= 0 && e < limit) {
      const int64_t begin = e * c_.unit;
      if (one_block)
        touched_.add(begin >> log2_block_);
      else if (first_time(e))
        touched_.add_range(begin >> log2_block_,
                           block_end(kv_len - begin > c_.unit ? begin + c_.unit : kv_len));
    } else if (e != -1 && c_.invalid == OnInvalid::kReject) {
      first_bad_ = i;
      break;
    }
  }
  if (c_.form == CandidateForm::kAll || options_.all_blocks) touched_.add_range(0, block_end(sight_.end));
  touched_.add_range(0, block_end(sight_.sink_end));
  for (const auto& [begin, end] : sight_.windows) touched_.add_range(begin >> log2_block_, block_end(end));
  touched_.finish();
}

// Whether this entry was not met before in this pass. Asked where an entry covers several blocks: a repeat
// must not cost its whole length again.
bool RowBuilder::first_time(int64_t entry) {
  uint64_t& word = out_.entry_bitmap[entry >> 6];
  const uint64_t bit = uint64_t{1} << (entry & 63);
  const bool fresh = (word & bit) == 0;
  word |= bit;
  return fresh;
}

// Sets the member bits of tokens [begin, end); true when the first was set before.
bool RowBuilder::set_tokens(int64_t begin, int64_t end, int64_t first) {
  bool repeated = false;
  for (int64_t t = begin; t < end;) {
    const int64_t block = t >> log2_block_, block_base = block << log2_block_;
    const int64_t stop = std::min(end, block_base + block_);
    uint64_t* words = &out_.members[(first + touched_.rank(block)) * words_];
    if (t == begin) repeated = words[(t - block_base) >> 6] >> ((t - block_base) & 63) & 1;
    for (int w = 0; w < words_; ++w) words[w] |= range_bits(t, stop, block_base + w * kWordBits);
    t = stop;
  }
  return repeated;
}

// The same for an entry that lies in one word: the common case.
bool RowBuilder::set_in_word(int64_t begin, int64_t end, int64_t first) {
  const int64_t offset = begin & (block_ - 1);
  uint64_t& word = out_.members[(first + touched_.rank(begin >> log2_block_)) * words_ + (offset >> 6)];
  const uint64_t bits = (~uint64_t{0} >> (kWordBits - (end - begin))) << (offset & 63);
  const bool repeated = word >> (offset & 63) & 1;
  word |= bits;
  return repeated;
}

// Second pass: member bits, duplicates, statistics; fails with the first offence of the row.
Status RowBuilder::fill(const RawRow& raw, const RowInfo& info, int64_t row, int64_t kv_len, int64_t first) {
  const int64_t limit = kv_len == 0 ? 0 : (kv_len - 1) / c_.unit + 1;
  CandidateCounts& counts = out_.stats.counts;
  const int64_t last = first_bad_ >= 0 ? first_bad_ : raw.count;
  const bool in_word = c_.unit <= kWordBits && std::min<int64_t>(block_, kWordBits) % c_.unit == 0;
  const bool one_block = c_.unit <= block_ && block_ % c_.unit == 0;
  if (!one_block) out_.entry_bitmap.assign(limit / 64 + 1, 0);
  for (int64_t i = 0; i < last; ++i) {
    const int64_t e = raw.entries[i * raw.stride];
    if (e == -1) {
      ++counts.padding;
    } else if (e < 0 || e >= limit) {
      ++counts.invalid;
    } else {
      const int64_t begin = e * c_.unit, end = kv_len - begin > c_.unit ? begin + c_.unit : kv_len;
      const bool repeated = in_word     ? set_in_word(begin, end, first)
                            : one_block ? set_tokens(begin, end, first)
                                        : !first_time(e);
      if (!repeated) {
        if (!one_block) set_tokens(begin, end, first);
        ++counts.unique;
        out_.stats.future += begin >= sight_.end;
      } else if (c_.duplicates == OnDuplicate::kMerge) {
        ++counts.duplicates;
      } else {
        return {Code::kDuplicateIndex,
                text("cand_indices: row ", row, " of request ", info.request, " holds ", e, " twice"),
                {.request = info.request, .row = row, .value = e}};
      }
    }
  }
  counts.raw += last;
  if (first_bad_ < 0) return {};
  const int64_t e = raw.entries[first_bad_ * raw.stride];
  return {Code::kIndexOutOfRange,
          text("cand_indices: row ", row, " of request ", info.request, " holds ", e, "; ", e, " * unit ",
               c_.unit, " is outside [0, ", kv_len, ")"),
          {.request = info.request, .row = row, .value = e, .limit = limit}};
}

uint64_t RowBuilder::visible_bits(uint64_t listed, int64_t base, size_t* window) const {
  uint64_t bits = (listed & range_bits(0, sight_.end, base)) | range_bits(0, sight_.sink_end, base);
  const auto& windows = sight_.windows;
  while (*window < windows.size() && windows[*window].second <= base) ++*window;
  for (size_t i = *window; i < windows.size() && windows[i].first < base + kWordBits; ++i)
    bits |= range_bits(windows[i].first, windows[i].second, base);
  return bits & word_mask(block_);
}

// Drops the blocks no query sees a token of, and finds `full` and `seen` of the others.
void RowBuilder::keep_visible(int64_t kv_len, int64_t first) {
  const std::vector<int32_t>& found = touched_.blocks();
  const int64_t visible_blocks = (sight_.end + block_ - 1) >> log2_block_;
  const int64_t plain_end =
      sight_.windows.empty() ? sight_.end : std::min(sight_.end, sight_.windows.front().first);
  int64_t kept = first;
  size_t window = 0;
  for (size_t j = 0; j < found.size() && found[j] < visible_blocks; ++j) {
    const int64_t base = static_cast<int64_t>(found[j]) << log2_block_;
    if (words_ == 1 && base >= sight_.sink_end && base + block_ <= plain_end) {
      // Inside: whole, seen by some query, out of reach of sink and window. Most blocks are.
      const uint64_t listed = out_.members[first + j];
      if (listed == 0 && !options_.all_blocks) continue;
      out_.members[kept] = out_.seen[kept] = listed;
      out_.full[kept] = listed == word_mask(block_);
      out_.blocks[kept++] = found[j];
      continue;
    }
    uint64_t any = 0;
    bool full = true;
    for (int w = 0; w < words_; ++w) {
      const uint64_t listed = out_.members[(first + j) * words_ + w];
      const uint64_t seen = visible_bits(listed, base + w * kWordBits, &window);
      const uint64_t whole = range_bits(base, std::min(base + block_, kv_len), base + w * kWordBits);
      out_.members[kept * words_ + w] = listed;
      out_.seen[kept * words_ + w] = seen;
      any |= seen;
      full = full && listed == whole;
    }
    if (any == 0 && !options_.all_blocks) continue;
    out_.blocks[kept] = found[j];
    out_.full[kept] = full;
    ++kept;
  }
  out_.blocks.resize(kept);
  out_.members.resize(kept * words_);
  out_.seen.resize(kept * words_);
  out_.full.resize(kept);
}

Status RowBuilder::add(const RowInfo& info, int64_t row) {
  const int64_t kv_len = problem_.cache.kv_len.at<int32_t>({info.request});
  const RawRow raw = raw_row(c_, row);
  join_sights(problem_, info, &sight_);
  collect(raw, kv_len);

  const int64_t first = static_cast<int64_t>(out_.blocks.size()),
                count = static_cast<int64_t>(touched_.blocks().size());
  constexpr int64_t kMostEntries =
      int64_t{1} << 27;  // about 6 GB: a bound, so that a small hostile input cannot ask for any amount
  if (first + count > kMostEntries)
    return {Code::kCapacityExceeded,
            text("cand_indices: row ", row, " brings the blocks above ", kMostEntries),
            {.request = info.request, .row = row, .limit = kMostEntries}};
  out_.blocks.resize(first + count);
  out_.members.resize((first + count) * words_, 0);
  out_.seen.resize((first + count) * words_);
  out_.full.resize(first + count);
  TAMIS_RETURN_IF_ERROR(fill(raw, info, row, kv_len, first));
  if (c_.form == CandidateForm::kAll) set_tokens(0, std::min(kv_len, count << log2_block_), first);
  keep_visible(kv_len, first);

  IndexStats& stats = out_.stats;
  out_.row.push_back(info);
  out_.begin.push_back(first);
  out_.count.push_back(static_cast<int32_t>(out_.blocks.size() - first));
  stats.rows_bitmap += touched_.ordering() == Ordering::kBitmap;
  stats.rows_sort += touched_.ordering() == Ordering::kSort;
  stats.rows_hash += touched_.ordering() == Ordering::kHash;
  stats.empty_rows += out_.count.back() == 0;
  for (size_t j = first + 1; j < out_.blocks.size(); ++j)
    stats.gaps += out_.blocks[j] != out_.blocks[j - 1] + 1;
  return {};
}

}  // namespace tamis::index
