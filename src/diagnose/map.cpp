// draw_map: folds the problem until its picture is small enough.
#include <algorithm>

#include "core/checks.h"
#include "core/saturating.h"
#include "diagnose/grid.h"
#include "diagnose/picture.h"
#include "tamis/explain.h"

namespace tamis {
namespace {

constexpr size_t kMaxBytes = 200'000;
// One screen pixel a column, two a row; with many heads the bands share about 2000 pixels of height.
constexpr int64_t kMaxColumns = 1024, kMaxRows = 256, kMaxRowsOfAllHeads = 1024, kMinRows = 8;

// Makes rows coarser: first more queries a row, then, once every request is one row, more requests a row.
// False when there is only one row left.
bool fold_rows(const Problem& problem, diagnose::Fold* fold) {
  const int64_t rows = diagnose::count_rows(problem, *fold);
  if (rows <= 1) return false;
  if (fold->requests == 1) {
    fold->queries *= 2;
    if (diagnose::count_rows(problem, *fold) < rows) return true;
  }
  fold->requests *= 2;
  return true;
}

}  // namespace

Result<std::string> draw_map(const Problem& problem, const reference::Sets& sets, int64_t block) {
  if (block < 1) return invalid("block", block, ", must be at least 1");
  const Result<Shape> shape = describe(problem);
  if (!shape.ok()) return shape.status();
  TAMIS_RETURN_IF_ERROR(check_arrays(problem, *shape));
  const int64_t total_q = problem.query.cu_q.at<int32_t>({shape->requests});
  if (static_cast<int64_t>(sets.indptr.size()) != total_q * shape->index_heads + 1)
    return invalid("sets", "has ", sets.indptr.size(), " bounds, the problem has ", total_q, " queries and ",
                   shape->index_heads, " index heads");

  // Beyond the longest request a block is all of it; the clamp keeps products in range.
  const int64_t tokens = std::max<int64_t>(1, diagnose::longest(problem));
  const int64_t blocks = ceil_div(tokens, std::min(block, tokens));
  diagnose::Fold fold{.tokens = std::min(block, tokens) * ceil_div(blocks, kMaxColumns)};
  const int64_t max_rows = std::clamp(kMaxRowsOfAllHeads / shape->index_heads, kMinRows, kMaxRows);
  while (diagnose::count_rows(problem, fold) > max_rows && fold_rows(problem, &fold)) {
  }

  for (;;) {
    const diagnose::Grid grid = diagnose::make_grid(problem, sets, fold);
    std::string picture = diagnose::draw(grid, problem, block);
    if (picture.size() <= kMaxBytes) return picture;
    // Columns first: a context has far more of them, and rows show how queries differ.
    if (grid.columns > 128 || !fold_rows(problem, &fold)) {
      if (grid.columns <= 1) return picture;
      fold.tokens *= 2;
    }
  }
}

}  // namespace tamis
