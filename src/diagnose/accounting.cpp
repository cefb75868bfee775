// docs/semantics.md section 13, from the sets alone.
#include <algorithm>
#include <limits>

#include "core/checks.h"
#include "core/saturating.h"
#include "diagnose/lines.h"
#include "tamis/explain.h"

namespace tamis {
namespace {

// Wide enough for any problem that can be described; results saturate.
__extension__ typedef __int128 Wide;

int64_t narrow(Wide x) {
  constexpr Wide most = std::numeric_limits<int64_t>::max();
  return static_cast<int64_t>(std::min(x, most));
}

// Sums over (row, KV head served).
struct Totals {
  Wide selected = 0, pages = 0, aligned = 0, packed = 0, dense = 0;
  Wide flops = 0, flops_aligned = 0;  // (query, query head, token) triples
  Wide lines = 0, scale_bytes = 0;
};

double ratio(Wide a, Wide b) { return b == 0 ? 0 : static_cast<double>(a) / static_cast<double>(b); }

// Distinct values of t / size over ascending tokens.
int64_t distinct(const std::vector<int32_t>& tokens, int64_t size) {
  int64_t count = 0, previous = -1;
  for (const int32_t t : tokens) {
    if (t / size != previous) ++count;
    previous = t / size;
  }
  return count;
}

// Scale bytes that one KV head of one row reads for K or V.
int64_t scale_bytes(const Quantization& quant, int64_t dim, int64_t tokens, int64_t pages) {
  if (quant.format == Format::kPlain || tokens == 0) return 0;
  switch (quant.kind) {
    case ScaleKind::kTensor:
    case ScaleKind::kHead:
      return 4;
    case ScaleKind::kPage:
      return 4 * pages;
    case ScaleKind::kChannel:
      return 4 * dim;
    case ScaleKind::kPageChannel:
      return 4 * dim * pages;
    case ScaleKind::kToken:
      return 4 * tokens;
  }
  return 0;
}

struct Row {
  int64_t request, first, last, index_head;  // queries first .. last
};

class Accountant {
 public:
  Accountant(const Problem& p, const Shape& s, const reference::Sets& sets, int64_t tile)
      : p_(p), s_(s), sets_(sets), tile_(tile), k_(line_layout(p, s, false)), v_(line_layout(p, s, true)) {}

  void add(const Row& row) {
    std::vector<int32_t> all;  // union of the queries' sets
    int64_t edges = 0;
    for (int64_t i = row.first; i < row.last; ++i) {
      const int64_t set = i * s_.index_heads + row.index_head;
      const auto begin = sets_.tokens.begin() + sets_.indptr[set],
                 end = sets_.tokens.begin() + sets_.indptr[set + 1];
      all.insert(all.end(), begin, end);
      edges += end - begin;
    }
    if (row.last - row.first > 1) {
      std::sort(all.begin(), all.end());
      all.erase(std::unique(all.begin(), all.end()), all.end());
    }
    add_row(row, all, edges);
  }

  const Totals& totals() const { return totals_; }
  int64_t page() const {
    constexpr int64_t most_tokens = int64_t{1} << 31;
    return s_.page_size > 0 ? s_.page_size : std::min(p_.candidates.unit, most_tokens);
  }

 private:
  void add_row(const Row& row, const std::vector<int32_t>& tokens, int64_t edges) {
    const int64_t heads = s_.q_heads / s_.index_heads;                          // query heads of this row
    const int64_t served = std::max<int64_t>(1, s_.kv_heads / s_.index_heads);  // KV heads of this row
    const int64_t first_head = row.index_head * s_.kv_heads / s_.index_heads;
    const int64_t count = static_cast<int64_t>(tokens.size());
    const int64_t pages = distinct(tokens, page()), aligned = distinct(tokens, tile_);
    totals_.selected += served * count;
    totals_.pages += served * pages;
    totals_.aligned += served * aligned;
    totals_.packed += served * (pages == 0 ? 0 : (pages * page() - 1) / tile_ + 1);
    totals_.dense += Wide{served} * p_.cache.kv_len.at<int32_t>({row.request});
    totals_.flops += Wide{heads} * edges;
    totals_.flops_aligned += Wide{heads} * (row.last - row.first) * aligned * tile_;
    totals_.scale_bytes += served * (scale_bytes(p_.cache.k_quant, s_.head_dim, count, pages) +
                                     scale_bytes(p_.cache.v_quant, s_.v_head_dim, count, pages));
    const int64_t first_row = p_.cache.cu_kv.present() ? p_.cache.cu_kv.at<int32_t>({row.request}) : 0;
    for (int64_t head = first_head; head < first_head + served; ++head)
      totals_.lines += count_lines(k_, tokens, first_row, head) + count_lines(v_, tokens, first_row, head);
  }

  const Problem& p_;
  const Shape& s_;
  const reference::Sets& sets_;
  const int64_t tile_;
  const LineLayout k_, v_;
  Totals totals_;
};

int64_t stored_bytes(const TensorView& t) { return times(t.elements(), dtype_bytes(t.dtype)); }

WorkspaceAccount workspace(int64_t splits, int64_t total_q, const Shape& s) {
  if (splits == 1) return {.splits = 1, .partial_o = 0, .partial_ml = 0, .total = 0};
  const Wide states = Wide{splits} * total_q * s.q_heads, o = states * s.v_head_dim * 4, ml = states * 8;
  return {.splits = splits, .partial_o = narrow(o), .partial_ml = narrow(ml), .total = narrow(o + ml)};
}

}  // namespace

Result<Accounting> explain(const Problem& problem, const reference::Sets& sets,
                           const AccountingOptions& options) {
  const Result<Shape> shape = describe(problem);
  if (!shape.ok()) return shape.status();
  constexpr int64_t kMostTile = int64_t{1} << 31, kMostSplits = 1 << 20;
  if (options.tile < 1 || options.tile > kMostTile)
    return invalid("tile", options.tile, " is outside [1, 2^31]");
  if (options.splits < 1 || options.splits > kMostSplits)
    return invalid("splits", options.splits, " is outside [1, ", kMostSplits, "]");
  if (!(options.bandwidth >= 0)) return invalid("bandwidth", options.bandwidth, " is not at least 0");

  const Shape& s = *shape;
  const CandidateView& c = problem.candidates;
  Accountant accountant(problem, s, sets, options.tile);
  for (int64_t b = 0; b < s.requests; ++b) {
    const int64_t begin = problem.query.cu_q.at<int32_t>({b}), end = problem.query.cu_q.at<int32_t>({b + 1});
    for (int64_t first = begin, last = begin; first < end; first = last) {
      last = end - first > c.query_block ? first + c.query_block : end;
      for (int64_t g = 0; g < c.index_heads; ++g) accountant.add({b, first, last, g});
    }
  }

  const Totals& t = accountant.totals();
  const int64_t token_bits = s.k_bits * s.head_dim + s.v_bits * s.v_head_dim;
  const auto bytes = [&](Wide tokens) { return narrow(tokens * token_bits / 8); };
  const int64_t total_q = problem.query.cu_q.at<int32_t>({s.requests});
  Accounting a{};
  a.tiles = {.rows = count_query_blocks(problem) * c.index_heads,
             .kv_heads = s.kv_heads,
             .selected_tokens = narrow(t.selected),
             .touched_pages = narrow(t.pages),
             .aligned = narrow(t.aligned),
             .packed = narrow(t.packed),
             .efficiency_aligned = ratio(t.selected, t.aligned * options.tile),
             .efficiency_packed = ratio(t.selected, t.packed * options.tile),
             .block_utilization = ratio(t.selected, t.pages * accountant.page())};
  a.bytes = {.logical = bytes(t.selected),
             .pages = bytes(t.pages * accountant.page()),
             .aligned = bytes(t.aligned * options.tile),
             .dense = bytes(t.dense),
             .compression_logical = ratio(t.dense, t.selected),
             .compression_aligned = ratio(t.dense, t.aligned * options.tile),
             .index = stored_bytes(c.indptr) + stored_bytes(c.indices) + stored_bytes(c.count),
             .index_normalized = narrow(4 * t.pages),
             .scales = narrow(t.scale_bytes),
             .transactions = narrow(128 * t.lines),
             .transaction_efficiency = ratio(bytes(t.selected), 128 * t.lines)};
  a.flops_logical = narrow(2 * (s.head_dim + s.v_head_dim) * t.flops);
  a.flops_aligned = narrow(2 * (s.head_dim + s.v_head_dim) * t.flops_aligned);
  a.workspace = workspace(options.splits, total_q, s);
  if (options.bandwidth > 0) a.floor_us = static_cast<double>(a.bytes.logical) / options.bandwidth * 1e6;
  return a;
}

Result<Accounting> explain(const Problem& problem, const AccountingOptions& options) {
  const Result<reference::Sets> sets = reference::build_sets(problem);
  if (!sets.ok()) return sets.status();
  return explain(problem, *sets, options);
}

}  // namespace tamis
