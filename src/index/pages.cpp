#include "index/pages.h"

#include <algorithm>
#include <bit>

#include "core/bits.h"
#include "core/checks.h"

namespace tamis::index {
namespace {

// One bit a logical page of one request.
class PageSet {
 public:
  explicit PageSet(std::vector<uint64_t>* words) : words_(*words) {}
  void start(int64_t pages) { words_.assign(pages / 64 + 1, 0); }
  void add(int64_t page) { words_[page >> 6] |= uint64_t{1} << (page & 63); }
  bool has(int64_t page) const { return words_[page >> 6] >> (page & 63) & 1; }

  template <class F>
  Status for_each(const F& f) const {
    for (size_t w = 0; w < words_.size(); ++w)
      for (uint64_t bits = words_[w]; bits != 0; bits &= bits - 1)
        TAMIS_RETURN_IF_ERROR(f(static_cast<int64_t>(w) * 64 + std::countr_zero(bits)));
    return {};
  }

 private:
  std::vector<uint64_t>& words_;
};

class PageMapper {
 public:
  PageMapper(const Problem& problem, const Shape& shape, bool all_blocks, IndexSet::Storage* set)
      : p_(problem),
        s_(shape),
        all_blocks_(all_blocks),
        set_(*set),
        checked_(shape.page_size > 0 && !shape.index_only),
        block_in_page_(shape.page_size > 0 && shape.page_size % set->block == 0),
        one_span_(block_in_page_ && !all_blocks),
        page_shift_(std::has_single_bit(static_cast<uint64_t>(shape.page_size))
                        ? std::countr_zero(static_cast<uint64_t>(shape.page_size))
                        : -1),
        touched_(&set->page_bitmap) {}

  Status run() {
    set_.spans.reserve(set_.blocks.size());
    set_.span_begin.resize(set_.blocks.size() + 1);
    set_.span_begin[0] = 0;
    for (size_t first = 0, last = 0; first < set_.row.size(); first = last) {
      const int64_t request = set_.row[first].request;
      while (last < set_.row.size() && set_.row[last].request == request) ++last;
      kv_len_ = p_.cache.kv_len.at<int32_t>({request});
      first_slot_ = p_.cache.cu_kv.present() && !checked_ ? p_.cache.cu_kv.at<int32_t>({request}) : 0;
      // A request's entries are neighbours: rows are appended one behind the other.
      const int64_t begin = set_.begin[first], end = set_.begin[last - 1] + set_.count[last - 1];
      if (checked_) TAMIS_RETURN_IF_ERROR(check_request(request, begin, end));
      if (checked_ && one_span_) {
        place_blocks(request, begin, end);
      } else {
        for (int64_t e = begin; e < end; ++e) cut(request, e);
      }
    }
    return {};
  }

 private:
  // The tokens of entry `e` that lie in [first, last) and that some query sees.
  bool sees(int64_t e, int64_t base, int64_t first, int64_t last) const {
    if (last - first == set_.block) {  // the whole block
      uint64_t any = 0;
      for (int w = 0; w < set_.words; ++w) any |= set_.seen[e * set_.words + w];
      return any != 0;
    }
    for (int w = 0; w < set_.words; ++w)
      if (set_.seen[e * set_.words + w] & range_bits(first, last, base + w * kWordBits)) return true;
    return false;
  }

  // Calls f(first, last) for each piece of entry e's block that lies in one page.
  template <class F>
  void for_each_piece(int64_t e, const F& f) const {
    const int64_t base = static_cast<int64_t>(set_.blocks[e]) * set_.block;
    const int64_t end = std::min<int64_t>(base + set_.block, kv_len_);
    for (int64_t first = base; first < end;) {
      const int64_t last =
          block_in_page_ || s_.page_size == 0 ? end : std::min(end, (page_of(first) + 1) * s_.page_size);
      if (sees(e, base, first, last) || all_blocks_) f(first, last);
      first = last;
    }
  }

  Status check_request(int64_t request, int64_t begin, int64_t end) {
    touched_.start(kv_len_ / s_.page_size + 1);
    for (int64_t e = begin; e < end; ++e) {
      const int64_t base = static_cast<int64_t>(set_.blocks[e]) * set_.block;
      if (one_span_) {
        touched_.add(page_of(base));  // kept because some query sees a token of it
        continue;
      }
      for_each_piece(e, [&](int64_t first, int64_t last) {
        if (sees(e, base, first, last)) touched_.add(page_of(first));
      });
    }
    return touched_.for_each([&](int64_t page) {
      ++set_.stats.touched_pages;
      return check_page(request, page);
    });
  }

  Status check_page(int64_t b, int64_t page) const {
    const CacheView& c = p_.cache;
    const int64_t entry = c.page_table.at<int32_t>({b, page});
    const Where where{.request = b, .page = page, .value = entry};
    if (entry == -1)
      return {Code::kPageUnmapped,
              text("page_table: page ", page, " of request ", b, " is touched but unmapped"), where};
    if (entry < 0 || entry >= s_.pages)
      return {
          Code::kPageOutOfRange,
          text("page_table: page ", page, " of request ", b, " is ", entry, ", outside [0, ", s_.pages, ")"),
          {.request = b, .page = page, .value = entry, .limit = s_.pages}};
    if (!c.page_stamps.present()) return {};
    const uint64_t mapped = c.table_stamps.at<uint64_t>({b, page}), now = c.page_stamps.at<uint64_t>({entry});
    if (mapped == now) return {};
    return {Code::kForeignPage,
            text("table_stamps: page ", page, " of request ", b, " was mapped with stamp ", mapped,
                 "; physical page ", entry, " now has ", now),
            where};
  }

  void cut(int64_t request, int64_t e) {
    for_each_piece(e, [&](int64_t first, int64_t last) {
      int64_t slot = first_slot_ + first;
      if (checked_) {
        const int64_t page = page_of(first);
        if (all_blocks_ && !touched_.has(page)) return;  // its table entry may hold anything
        slot =
            p_.cache.page_table.at<int32_t>({request, page}) * s_.page_size + (first - page * s_.page_size);
      }
      set_.spans.push_back({static_cast<int32_t>(first), static_cast<int32_t>(last - first), slot});
    });
    set_.span_begin[e + 1] = static_cast<int64_t>(set_.spans.size());
  }

  // cut() where every entry is one span.
  void place_blocks(int64_t request, int64_t begin, int64_t end) {
    const TensorView& table = p_.cache.page_table;
    const int32_t* row = static_cast<const int32_t*>(table.data) + request * table.stride[0];
    set_.spans.resize(end);
    for (int64_t e = begin; e < end; ++e) {
      const int64_t token = static_cast<int64_t>(set_.blocks[e]) * set_.block, page = page_of(token);
      const int64_t length = std::min<int64_t>(set_.block, kv_len_ - token);
      set_.spans[e] = {static_cast<int32_t>(token), static_cast<int32_t>(length),
                       row[page * table.stride[1]] * s_.page_size + (token - page * s_.page_size)};
      set_.span_begin[e + 1] = e + 1;
    }
  }

  // Pages are powers of two nearly always, and a division a block would be felt.
  int64_t page_of(int64_t token) const {
    return page_shift_ >= 0 ? token >> page_shift_ : token / s_.page_size;
  }

  const Problem& p_;
  const Shape& s_;
  const bool all_blocks_;
  IndexSet::Storage& set_;
  const bool checked_;        // an index-only problem has no cache: its slots are its tokens
  const bool block_in_page_;  // no block reaches into a second page
  const bool one_span_;       // so every entry is one span
  const int page_shift_;      // log2 of the page size, or -1
  int64_t kv_len_ = 0, first_slot_ = 0;
  PageSet touched_;
};

}  // namespace

Status map_pages(const Problem& problem, const Shape& shape, bool all_blocks, IndexSet::Storage* set) {
  return PageMapper(problem, shape, all_blocks, set).run();
}

}  // namespace tamis::index
