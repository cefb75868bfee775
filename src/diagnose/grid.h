// The cells of a map: which blocks of tokens each way of selection reaches, for each query row and index
// head.
//
// Only tokens of the sets count, so a candidate that causality or the length removed colours nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "tamis/problem.h"
#include "tamis/reference.h"

namespace tamis::diagnose {

// How a token entered a set (docs/semantics.md section 4); one token may have entered in several ways.
inline constexpr uint8_t kDynamic = 1, kWindow = 2, kSink = 4;

// What one cell stands for. Requests share a row only where even one row a request is too many; `requests` >
// 1 ignores `queries`.
struct Fold {
  int64_t tokens;        // of a column
  int64_t queries = 1;   // of a row
  int64_t requests = 1;  // of a row
};

// Queries begin .. end of the batch, the first of them from `request`, drawn as one row.
struct RowBin {
  int64_t begin, end, request;
  int64_t visible;  // tokens below kv_len and the causal edge, at most over the queries
};

struct Grid {
  Fold fold;
  int64_t heads, queries, requests, tokens;  // tokens: of the longest request
  int64_t columns;
  std::vector<RowBin> rows;
  std::vector<uint8_t> cells;     // [heads, rows, columns], the ways joined
  std::vector<int64_t> selected;  // [heads], sum of set sizes
  int64_t visible;                // tokens that full attention would select for one head

  const uint8_t* row(int64_t head, int64_t r) const {
    return cells.data() + (head * static_cast<int64_t>(rows.size()) + r) * columns;
  }
};

// Longest request, in tokens.
int64_t longest(const Problem& problem);

// Rows that a map of one index head would have.
int64_t count_rows(const Problem& problem, const Fold& fold);

// Needs a checked problem, its sets and fold fields >= 1.
Grid make_grid(const Problem& problem, const reference::Sets& sets, const Fold& fold);

}  // namespace tamis::diagnose
