#include "device_prefill_lists.h"

#include <algorithm>
#include <numeric>

#include "core/checks.h"
#include "data.h"
#include "names.h"
#include "tamis/io.h"

namespace tamis::bench {
namespace {

using Row = std::vector<int32_t>;

// Causal lists hold all blocks that the query block itself lies in.
Row uniform_row(const PrefillWork& w, int64_t query_block, Random& random) {
  const int64_t all = w.kv_len / w.block;
  if (!w.causal) return random.sample(all, w.listed(all));
  const int64_t first = w.position(w.first_query(query_block)) / w.block,
                last = w.position(w.end_query(query_block) - 1) / w.block, own = last - first + 1,
                wanted = std::max(own, ((last + 1) * w.sixteenths + w.share_of() - 1) / w.share_of());
  Row row = random.sample(first, wanted - own);
  for (int64_t b = first; b <= last; ++b) row.push_back(static_cast<int32_t>(b));
  random.shuffle(row);
  return row;
}

// Runs that begin anywhere, as many as fill the share; the last one is cut.
Row runs_row(const PrefillWork& w, Random& random) {
  const int64_t all = w.kv_len / w.block, wanted = w.listed(all),
                run = std::max<int64_t>(1, w.kRun / w.block);
  Row row;
  for (const int32_t r : random.sample(all / run, std::min(all / run, (wanted + run - 1) / run)))
    for (int64_t b = 0; b < run && static_cast<int64_t>(row.size()) < wanted; ++b)
      row.push_back(static_cast<int32_t>(r * run + b));
  random.shuffle(row);
  return row;
}

Row near_row(const PrefillWork& w, int64_t query_block, Random& random) {
  const int64_t own = w.position(w.first_query(query_block)) / w.block;
  Row row{static_cast<int32_t>(own)};
  for (const int64_t b : {own - 1, int64_t{0}})
    if (b >= 0 && std::find(row.begin(), row.end(), b) == row.end()) row.push_back(static_cast<int32_t>(b));
  const int64_t wanted = std::min(PrefillWork::kNear, own + 1);
  while (static_cast<int64_t>(row.size()) < wanted) {
    const auto b = static_cast<int32_t>(random.below(own));
    if (std::find(row.begin(), row.end(), b) == row.end()) row.push_back(b);
  }
  random.shuffle(row);
  return row;
}

// Each block as seven of its eighths.
Row with_holes(const Row& blocks, Random& random) {
  Row row;
  for (const int32_t b : blocks) {
    const int64_t hole = random.below(8);
    for (int32_t j = 0; j < 8; ++j)
      if (j != hole) row.push_back(8 * b + j);
  }
  random.shuffle(row);
  return row;
}

Result<std::vector<Row>> recorded_rows(const PrefillWork& w, const std::string& path) {
  const Result<io::TensorFile> file = io::read_tensors(path);
  if (!file.ok()) return file.status();
  const auto found = file->tensors.find("blocks");
  const auto unit = file->metadata.find("unit");
  if (found == file->tensors.end() || unit == file->metadata.end() || unit->second != text(w.block))
    return Status(Code::kInvalidArgument,
                  text("trace: ", path, " holds no tensor `blocks` with metadata unit ", w.block));
  const TensorView& t = found->second;
  if (t.dtype != DType::kI16 || t.rank != 3 || t.shape[0] != w.queries || t.shape[1] != w.kv_heads)
    return Status(Code::kInvalidArgument, text("trace: blocks of ", path, " is not I16 [", w.queries, ", ",
                                               w.kv_heads, ", entries]"));
  std::vector<Row> rows;
  for (int64_t q = 0; q < w.queries; ++q)
    for (int64_t h = 0; h < w.kv_heads; ++h) {
      Row& row = rows.emplace_back();
      for (int64_t j = 0; j < t.shape[2]; ++j)
        if (const int16_t b = t.at<int16_t>({q, h, j}); b >= 0) row.push_back(b);
    }
  return rows;
}

// Queries [first, last] at these positions and tokens [from, to): pairs that causality leaves.
int64_t pairs_below(int64_t first, int64_t last, int64_t from, int64_t to) {
  const int64_t whole = std::max<int64_t>(0, last - std::max(first, to - 1) + 1);  // queries that see all
  int64_t pairs = whole * (to - from);
  for (int64_t p = std::max(first, from); p <= std::min(last, to - 2); ++p) pairs += p + 1 - from;
  return pairs;
}

}  // namespace

const char* listing_name(Listing listing) {
  switch (listing) {
    case Listing::kUniform:
      return "uniform";
    case Listing::kRuns:
      return "clustered";
    case Listing::kAll:
      return "all";
    case Listing::kNear:
      return "near and uniform";
    case Listing::kRecorded:
      return "recorded";
  }
  return "";
}

int64_t PrefillWork::end_query(int64_t query_block_at) const {
  return std::min(queries, (query_block_at + 1) * query_block);
}

std::vector<int32_t> PrefillLists::row(int64_t r) const {
  const auto begin = indices.begin() + r * width;
  Row out(begin, begin + (count.empty() ? width : count[r]));
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  if (!out.empty() && out.front() < 0) out.erase(out.begin());
  return out;
}

Result<PrefillLists> draw_lists(const PrefillWork& w, const std::string& trace) {
  PrefillLists lists;
  if (w.listing == Listing::kAll) return lists;
  std::vector<Row> rows;
  if (w.listing == Listing::kRecorded) {
    Result<std::vector<Row>> read = recorded_rows(w, trace);
    if (!read.ok()) return read.status();
    rows = std::move(*read);
  } else {
    Random random(w.seed);
    for (int64_t b = 0; b < w.query_blocks(); ++b)
      for (int64_t h = 0; h < w.kv_heads; ++h) {
        Row row = w.listing == Listing::kNear   ? near_row(w, b, random)
                  : w.listing == Listing::kRuns ? runs_row(w, random)
                                                : uniform_row(w, b, random);
        rows.push_back(w.masked ? with_holes(row, random) : std::move(row));
      }
  }
  size_t longest = 0, shortest = rows[0].size();
  for (const Row& row : rows)
    longest = std::max(longest, row.size()), shortest = std::min(shortest, row.size());
  lists.width = (static_cast<int64_t>(longest) + 3) / 4 * 4;
  lists.indices.assign(rows.size() * static_cast<size_t>(lists.width), -1);
  for (size_t r = 0; r < rows.size(); ++r)
    std::copy(rows[r].begin(), rows[r].end(), lists.indices.begin() + static_cast<int64_t>(r) * lists.width);
  if (static_cast<int64_t>(shortest) < lists.width)
    for (const Row& row : rows) lists.count.push_back(static_cast<int32_t>(row.size()));
  return lists;
}

PrefillCount count_selected(const PrefillWork& w, const PrefillLists& lists) {
  PrefillCount sum;
  for (int64_t b = 0; b < w.query_blocks(); ++b) {
    const int64_t queries = w.end_query(b) - w.first_query(b), first = w.position(w.first_query(b)),
                  last = first + queries - 1;
    const auto add = [&](int64_t from, int64_t to) {
      if (w.causal) to = std::min(to, last + 1);
      if (to <= from) return;
      sum.tokens += to - from;
      sum.pairs += w.causal ? pairs_below(first, last, from, to) : queries * (to - from);
    };
    for (int64_t h = 0; h < w.kv_heads; ++h) {
      if (w.listing == Listing::kAll) {
        add(0, w.kv_len);
        continue;
      }
      for (const int64_t e : lists.row(b * w.kv_heads + h))
        add(e * w.unit(), std::min(w.kv_len, (e + 1) * w.unit()));
    }
  }
  return sum;
}

Json describe_prefill(const PrefillWork& w) {
  Json out{{"queries", w.queries},
           {"kv_len", w.kv_len},
           {"q_heads", w.q_heads},
           {"kv_heads", w.kv_heads},
           {"head_dim", PrefillWork::kDim},
           {"dtype", short_name(DType::kBF16)},
           {"out", "bf16"},
           {"layout", layout_name(w.layout)},
           {"page_size", w.page > 0 ? Json(w.page) : Json(nullptr)},
           {"causal", w.causal},
           {"distribution", listing_name(w.listing)},
           {"turns", 1}};
  if (w.listing == Listing::kAll) return out;
  out["block"] = w.block;
  out["query_block"] = w.query_block;
  if (w.listing == Listing::kUniform || w.listing == Listing::kRuns)
    out["density"] = static_cast<double>(w.sixteenths) / static_cast<double>(w.share_of());
  out["unit"] = w.unit();
  out["masked"] = w.masked;
  out["pairs"] = w.pairs;
  return out;
}

}  // namespace tamis::bench
