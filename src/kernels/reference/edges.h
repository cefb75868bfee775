// What one query head attends to, and its scores (docs/semantics.md section 5): where forward and backward
// start from.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/reference/cache.h"
#include "kernels/reference/dropout.h"
#include "kernels/reference/rows.h"
#include "tamis/reference.h"

namespace tamis::reference {

// A bound on what one result holds, so that a small hostile file cannot ask for all memory.
constexpr int64_t kMostNumbers = int64_t{1} << 30;

// A problem whose arguments, memory and pages have been found good, ready to be read. It points into the
// problem and the sets it was made from.
struct Reader {
  const Problem& problem;
  const Sets& sets;
  Shape shape;
  std::vector<int64_t> slots;  // of sets.tokens
  KvReader k, v;
};
Result<Reader> open(const Problem& problem, const Sets& sets);

struct Edge {
  int64_t token;
  KvReader::Place k, v;
  double keep;  // what dropout makes of its weight: 0, or 1 / (1 - p)
};

// A query head whose set is not empty.
struct Row {
  int64_t query, head, kv_head, position;
  std::vector<double> q;  // [D]
  std::vector<Edge> edges;
};

// The row of query head `head` of query `query` of request `request`; without edges when its set is empty.
Row read_row(const Reader& r, int64_t request, int64_t query, int64_t head);

// Calls f(row) for every query head whose set is not empty, in order.
template <class F>
void for_each_row(const Reader& r, const F& f) {
  for_each_query(r.problem, [&](int64_t b, int64_t i) {
    for (int64_t h = 0; h < r.shape.q_heads; ++h) {
      const Row row = read_row(r, b, i, h);
      if (!row.edges.empty()) f(row);
    }
  });
}

struct Scores {
  std::vector<double> value;  // s of section 5, for each edge
  std::vector<double> slope;  // ds / d(q . k)
};
Scores scores_of(const Reader& r, const Row& row);

}  // namespace tamis::reference
