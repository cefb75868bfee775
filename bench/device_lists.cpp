#include "device_lists.h"

#include <algorithm>
#include <cmath>

#include "names.h"
#include "problem64k.h"

namespace tamis::bench {
namespace {

using H = Heads64k;

// The case that docs/semantics.md section 14 works out, whose lists lists.h makes.
bool is_64k_case(const StepWork& w) {
  const Scale scale;
  return w.kv_len == scale.kv_len() && w.page == Scale::kPage && w.unit == Scale::kPage &&
         w.window == Scale::kWindow && w.listed == scale.listed();
}

}  // namespace

std::vector<int32_t> RowMaker::different(int64_t limit, int64_t count) {
  if (count * 8 > limit) return random_.sample(limit, count);
  // Few of many: draw again what was drawn before. `seen_` is all zeros between calls.
  seen_.resize(static_cast<size_t>(std::max<int64_t>(limit, static_cast<int64_t>(seen_.size()))));
  std::vector<int32_t> out;
  while (static_cast<int64_t>(out.size()) < count) {
    const int64_t x = random_.below(limit);
    if (seen_[x]) continue;
    seen_[x] = 1;
    out.push_back(static_cast<int32_t>(x));
  }
  for (const int32_t x : out) seen_[x] = 0;
  return out;
}

void RowMaker::add_window_half(std::vector<int32_t>* row) {
  if (in_window() == 0) return;
  for (const int32_t j : random_.sample(work_.window / work_.unit, in_window()))
    row->push_back(static_cast<int32_t>(below() + j));
  random_.shuffle(*row);
}

std::vector<int32_t> RowMaker::uniform() {
  if (is_64k_case(work_)) return uniform_pages(random_, Scale{});
  std::vector<int32_t> row = different(below(), work_.listed - in_window());
  add_window_half(&row);
  return row;
}

std::vector<int32_t> RowMaker::clustered() {
  const int64_t run = std::max<int64_t>(1, 31 * Scale::kPage / work_.unit);  // as clustered_pages: 496 tokens
  const int64_t wanted = work_.listed - in_window();
  std::vector<int32_t> row;
  for (const int32_t place : random_.sample(below() / run, (wanted + run - 1) / run))
    for (int64_t j = 0; j < run && static_cast<int64_t>(row.size()) < wanted; ++j)
      row.push_back(static_cast<int32_t>(place * run + j));
  add_window_half(&row);
  return row;
}

std::vector<std::vector<int32_t>> RowMaker::hot_rows(int64_t heads) {
  // The first `listed` of this order are hot; nothing of the window is listed.
  const std::vector<int32_t> order = random_.sample(below(), below());
  const int64_t hot = work_.listed, cold = below() - hot;
  std::vector<std::vector<int32_t>> rows(heads);
  for (std::vector<int32_t>& row : rows) {
    // Pareto with exponent 2 from half the mean on, cut at four times: half the rows are shorter than 0.71.
    const double u = (static_cast<double>(random_.next() >> 11) + 0.5) * 0x1p-53;
    const double length = static_cast<double>(work_.listed) / 2 / std::sqrt(u);
    const int64_t entries = std::min<int64_t>({static_cast<int64_t>(length), work_.most_listed(), below()});
    const int64_t of_hot = std::max(std::min(entries / 2, hot), entries - cold);
    for (const int32_t j : random_.sample(hot, of_hot)) row.push_back(order[j]);
    for (const int32_t j : random_.sample(cold, entries - of_hot)) row.push_back(order[hot + j]);
    random_.shuffle(row);
  }
  return rows;
}

std::vector<std::vector<int32_t>> RowMaker::rows(int64_t turn, int64_t request) {
  if (work_.spread == Spread::kHot) return hot_rows(H::kKv);
  std::vector<std::vector<int32_t>> out;
  for (int64_t head = 0; head < H::kKv; ++head) {
    if (work_.spread == Spread::kRecorded)
      out.push_back(trace_->pages(head, turn * work_.requests + request));
    else
      out.push_back(work_.spread == Spread::kClustered ? clustered() : uniform());
  }
  return out;
}

std::vector<int32_t> with_window(const StepWork& work, std::vector<int32_t> row) {
  for (int64_t e = (work.kv_len - work.window) / work.unit; work.window > 0 && e < work.units(); ++e)
    row.push_back(static_cast<int32_t>(e));
  std::sort(row.begin(), row.end());
  row.erase(std::unique(row.begin(), row.end()), row.end());
  return row;
}

void add_pieces(const StepWork& work, const std::vector<int32_t>& entries, const int32_t* table, int64_t head,
                int64_t v_rows, std::vector<int32_t>* at) {
  for (const int32_t e : entries) {
    const int64_t token = e * work.unit, page = table[token / work.page], offset = token % work.page;
    const int64_t row = work.layout == Layout::kNHD ? (page * work.page + offset) * H::kKv + head
                                                    : (page * H::kKv + head) * work.page + offset;
    at->push_back(static_cast<int32_t>(row));
    at->push_back(static_cast<int32_t>(v_rows + row));
  }
}

Json describe_step(const StepWork& w) {
  Json out{{"requests", w.requests}, {"q_heads", H::kQuery},
           {"kv_heads", H::kKv},     {"head_dim", H::kDim},
           {"kv_len", w.kv_len},     {"dtype", short_name(DType::kBF16)},
           {"out", "bf16"},          {"layout", layout_name(w.layout)}};
  if (w.dense) {
    out["distribution"] = "all";
    return out;
  }
  out["page_size"] = w.page;
  out["unit"] = w.unit;
  out["window"] = w.window;
  out["listed_per_head"] = w.listed;
  out["distribution"] = spread_name(w.spread);
  out["stamps"] = w.index_only;
  return out;
}

}  // namespace tamis::bench
