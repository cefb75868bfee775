#include "diagnose/grid.h"

#include <algorithm>

namespace tamis::diagnose {
namespace {

int64_t requests_of(const Problem& p) { return p.query.cu_q.shape[0] - 1; }
int64_t first_query(const Problem& p, int64_t b) { return p.query.cu_q.at<int32_t>({b}); }
int64_t length(const Problem& p, int64_t b) { return p.cache.kv_len.at<int32_t>({b}); }

int64_t position(const Problem& p, int64_t b, int64_t i) {
  if (p.query.q_pos.present()) return p.query.q_pos.at<int32_t>({i});
  return length(p, b) - first_query(p, b + 1) + i;  // the last query is the last token
}

int64_t visible(const Problem& p, int64_t b, int64_t i) {
  const int64_t at = position(p, b, i);
  if (at < 0) return 0;
  return p.mask.causal ? std::min(length(p, b), at + 1) : length(p, b);
}

// Calls row(begin, end, request) for each row of the map.
template <class Row>
void for_each_row(const Problem& p, const Fold& fold, Row row) {
  const int64_t requests = requests_of(p);
  for (int64_t b = 0; b < requests; b += fold.requests) {
    const int64_t end = first_query(p, std::min(requests, b + fold.requests));
    const int64_t step = fold.requests > 1 ? std::max<int64_t>(1, end - first_query(p, b)) : fold.queries;
    for (int64_t i = first_query(p, b); i < end; i += step) row(i, std::min(end, i + step), b);
  }
}

// The units a candidate row offers, ascending: its entries less padding and whatever is out of range.
std::vector<int64_t> offered(const CandidateView& c, int64_t row, int64_t kv_len) {
  std::vector<int64_t> units;
  const auto offer = [&](int64_t e) {
    if (e >= 0 && kv_len > 0 && e <= (kv_len - 1) / c.unit) units.push_back(e);
  };
  if (c.form == CandidateForm::kCsr) {
    const bool wide = c.indptr.dtype == DType::kI64;
    const auto bound = [&](int64_t r) {
      return wide ? c.indptr.at<int64_t>({r}) : static_cast<int64_t>(c.indptr.at<int32_t>({r}));
    };
    for (int64_t j = bound(row); j < bound(row + 1); ++j) offer(c.indices.at<int32_t>({j}));
  } else if (c.form == CandidateForm::kFixedWidth) {
    const int64_t n = c.count.present() ? c.count.at<int32_t>({row}) : c.indices.shape[1];
    for (int64_t j = 0; j < n; ++j) offer(c.indices.at<int32_t>({row, j}));
  }
  std::sort(units.begin(), units.end());
  return units;
}

// Joins into `cells` the ways by which the tokens of one set, ascending, were reached.
void mark(const Problem& p, const int32_t* begin, const int32_t* end, const std::vector<int64_t>& units,
          int64_t at, int64_t tokens_per_cell, uint8_t* cells) {
  const bool all = p.candidates.form == CandidateForm::kAll;
  auto unit = units.begin();
  for (const int32_t* t = begin; t != end; ++t) {
    while (unit != units.end() && *unit < *t / p.candidates.unit) ++unit;
    uint8_t ways = 0;
    if (all || (unit != units.end() && *unit == *t / p.candidates.unit)) ways |= kDynamic;
    if (p.mask.window > 0 && *t <= at && *t > at - p.mask.window) ways |= kWindow;
    if (*t < p.mask.sink) ways |= kSink;
    cells[*t / tokens_per_cell] |= ways;
  }
}

// Fills in the rows and what they see; returns the row of each query.
std::vector<int64_t> make_rows(const Problem& p, Grid* grid) {
  std::vector<int64_t> row_of(grid->queries);
  for_each_row(p, grid->fold, [&](int64_t begin, int64_t end, int64_t request) {
    RowBin row{begin, end, request, 0};
    for (int64_t i = begin, b = request; i < end; ++i) {
      while (i >= first_query(p, b + 1)) ++b;
      row_of[i] = static_cast<int64_t>(grid->rows.size());
      row.visible = std::max(row.visible, visible(p, b, i));
      grid->visible += visible(p, b, i);
    }
    grid->rows.push_back(row);
  });
  return row_of;
}

// Calls block(number, request, first query, one past the last).
template <class Block>
void for_each_query_block(const Problem& p, Block block) {
  int64_t number = 0;
  for (int64_t b = 0; b < requests_of(p); ++b) {
    const int64_t last = first_query(p, b + 1);
    for (int64_t begin = first_query(p, b); begin < last;) {
      const int64_t end = begin + std::min(p.candidates.query_block, last - begin);
      block(number++, b, begin, end);
      begin = end;
    }
  }
}

}  // namespace

int64_t longest(const Problem& problem) {
  int64_t tokens = 0;
  for (int64_t b = 0; b < requests_of(problem); ++b) tokens = std::max(tokens, length(problem, b));
  return tokens;
}

int64_t count_rows(const Problem& problem, const Fold& fold) {
  int64_t n = 0;
  for_each_row(problem, fold, [&](int64_t, int64_t, int64_t) { ++n; });
  return n;
}

Grid make_grid(const Problem& problem, const reference::Sets& sets, const Fold& fold) {
  const CandidateView& c = problem.candidates;
  const int64_t requests = requests_of(problem), tokens = longest(problem);
  Grid grid{.fold = fold,
            .heads = c.index_heads,
            .queries = first_query(problem, requests),
            .requests = requests,
            .tokens = tokens,
            .columns = tokens > 0 ? (tokens - 1) / fold.tokens + 1 : 0,
            .rows = {},
            .cells = {},
            .selected = std::vector<int64_t>(c.index_heads),
            .visible = 0};
  const std::vector<int64_t> row_of = make_rows(problem, &grid);
  const int64_t rows = grid.rows.size();
  grid.cells.resize(grid.heads * rows * grid.columns);

  for_each_query_block(problem, [&](int64_t block, int64_t request, int64_t begin, int64_t end) {
    for (int64_t g = 0; g < grid.heads; ++g) {
      const auto units = offered(c, block * grid.heads + g, length(problem, request));
      for (int64_t i = begin; i < end; ++i) {
        const int64_t from = sets.indptr[i * grid.heads + g], to = sets.indptr[i * grid.heads + g + 1];
        mark(problem, sets.tokens.data() + from, sets.tokens.data() + to, units,
             position(problem, request, i), fold.tokens,
             grid.cells.data() + (g * rows + row_of[i]) * grid.columns);
        grid.selected[g] += to - from;
      }
    }
  });
  return grid;
}

}  // namespace tamis::diagnose
