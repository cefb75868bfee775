#include "index/transpose.h"

namespace tamis::index {

PhysicalSpans::PhysicalSpans(int64_t page_size, int64_t slots) : page_size_(page_size), slots_(slots) {
  constexpr int64_t most = 64;
  size_ = page_size == 0 ? most : std::min(page_size, most);
  per_page_ = page_size == 0 ? 0 : (page_size + size_ - 1) / size_;
  count_ = page_size == 0 ? (slots + size_ - 1) / size_ : slots / page_size * per_page_;
}

int64_t cut_runs(const PhysicalSpans& spans, std::span<const int64_t> slots, int32_t tile, SlotRun* to) {
  int64_t runs = 0;
  for (size_t c = 0; c < slots.size();) {
    const int64_t span = spans.of(slots[c]);
    size_t end = c + 1;
    while (end < slots.size() && slots[end] == slots[end - 1] + 1 && spans.of(slots[end]) == span) ++end;
    to[runs++] = {slots[c], tile, static_cast<int32_t>(c), static_cast<int32_t>(end - c)};
    c = end;
  }
  return runs;
}

void Grouping::group(std::span<const int64_t> keys, Grouped* out) {
  out->keys.clear();
  out->begin.assign(1, 0);
  for (const int64_t key : keys) {
    if (owner_[key] < 0) {
      owner_[key] = static_cast<int64_t>(out->keys.size());
      out->keys.push_back(key);
      out->begin.push_back(0);
    }
    ++out->begin[owner_[key] + 1];
  }
  for (size_t o = 1; o < out->begin.size(); ++o) out->begin[o] += out->begin[o - 1];
  std::vector<int64_t> next(out->begin.begin(), out->begin.end() - 1);
  out->order.resize(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) out->order[next[owner_[keys[i]]]++] = static_cast<int64_t>(i);
  for (const int64_t key : out->keys) owner_[key] = -1;
}

}  // namespace tamis::index
