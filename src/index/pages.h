// Which pages the rows touch, whether they may be, and where their tokens lie.
#pragma once

#include "index/storage.h"
#include "tamis/problem.h"
#include "tamis/status.h"

namespace tamis::index {

// Checks the touched pages (docs/semantics.md section 9), first offence by (request, logical page) first, and
// cuts the blocks of every row into spans. With `all_blocks` a row's spans also cover the pages only other
// rows touch.
Status map_pages(const Problem& problem, const Shape& shape, bool all_blocks, IndexSet::Storage* set);

}  // namespace tamis::index
