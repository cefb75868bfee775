// Any rows, any layouts: the way back gives the same bits.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <set>

#include "tamis/convert.h"

namespace tamis {
namespace {

// The whole range in every try: small tries would be small in everything at once.
int64_t any(int64_t first, int64_t last) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(first, last + 1));
}

// Any bits for entries, but -1 and repetition often; empty rows often.
CandidateRows any_rows() {
  CandidateRows out{.indptr = {0}, .indices = {}};
  const int64_t rows = any(0, 7);
  for (int64_t r = 0; r < rows; ++r) {
    const auto row = *rc::gen::container<std::vector<int32_t>>(
        rc::gen::oneOf(rc::gen::inRange(-2, 4), rc::gen::arbitrary<int32_t>()));
    out.indices.insert(out.indices.end(), row.begin(), row.end());
    out.indptr.push_back(std::ssize(out.indices));
  }
  return out;
}

int64_t longest(const CandidateRows& rows) {
  int64_t most = 0;
  for (size_t r = 0; r + 1 < rows.indptr.size(); ++r)
    most = std::max(most, rows.indptr[r + 1] - rows.indptr[r]);
  return most;
}

// Edges of which the last holds every row.
std::vector<int64_t> any_edges(const CandidateRows& rows) {
  const auto drawn = *rc::gen::container<std::set<int64_t>>(rc::gen::inRange<int64_t>(0, 40));
  std::set<int64_t> edges(drawn.begin(), drawn.end());
  edges.insert(longest(rows) + any(0, 2));
  return {edges.begin(), edges.end()};
}

void same(const Result<CandidateRows>& got, const CandidateRows& want) {
  RC_ASSERT(got.ok());
  RC_ASSERT(got->indptr == want.indptr);
  RC_ASSERT(got->indices == want.indices);
}

RC_GTEST_PROP(Convert, FixedWidthAndBack, ()) {
  const CandidateRows rows = any_rows();
  const auto fixed = to_fixed_width(rows.view({}), longest(rows) + any(0, 2));
  RC_ASSERT(fixed.ok());
  same(to_csr(fixed->view({}), Padding::kKeep), rows);
}

RC_GTEST_PROP(Convert, TiersAndBack, ()) {
  const CandidateRows rows = any_rows();
  const std::vector<int64_t> edges = any_edges(rows);
  const auto tiers = to_tiers(rows.view({}), edges);
  RC_ASSERT(tiers.ok());
  same(to_csr(tiers->views(), Padding::kKeep), rows);
  for (size_t n = 0; n < edges.size(); ++n)
    for (const int32_t id : tiers->tiers[n].row_ids) {
      const int64_t length = rows.indptr[id + 1] - rows.indptr[id];
      RC_ASSERT(length <= edges[n]);
      const int64_t below = n > 0 ? edges[n - 1] : -1;  // RC_ASSERT would evaluate both sides of ||
      RC_ASSERT(length > below);
    }
  // A tier may hold its rows in any order, and the tiers may come in any order.
  std::vector<TierView> views = tiers->views();
  std::reverse(views.begin(), views.end());
  same(to_csr(views, Padding::kKeep), rows);
}

RC_GTEST_PROP(Convert, UtilizationIsThatOfTheEntries, ()) {
  const CandidateRows rows = any_rows();
  const std::vector<int64_t> edges = any_edges(rows);
  const auto tiers = to_tiers(rows.view({}), edges);
  RC_ASSERT(tiers.ok());
  const auto got = utilization(tiers->views());
  RC_ASSERT(got.ok());
  int64_t allocated = 0;
  for (size_t r = 0; r + 1 < rows.indptr.size(); ++r)
    allocated += edges[*tier_of(edges, rows.indptr[r + 1] - rows.indptr[r])];
  RC_ASSERT(got->total.allocated == allocated);
  RC_ASSERT(got->total.used ==
            std::ssize(rows.indices) - std::count(rows.indices.begin(), rows.indices.end(), -1));
}

}  // namespace
}  // namespace tamis
