// What a backward has to do, cut into tasks of bounded size and slabs of tasks that run side by side.
//
// A task is a range of blocks for one chunk of query rows. All tasks of a chunk add to the same dQ, so a slab
// has at most one of them, and slabs follow each other: the order of every sum is fixed by the problem.
#pragma once

#include <vector>

#include "tamis/backward.h"

namespace tamis::cpu {

// One chunk of query rows of a (bundle, KV head).
struct BackwardItem {
  int32_t bundle, kv_head;
  int64_t first;  // its first row within the group
  int32_t rows, groups;
  int64_t first_row;  // of all items, one after the other
};

struct BackwardTask {
  int32_t item;
  int32_t begin, end;  // blocks of the bundle
  int64_t columns;     // tokens that some row selects

  int64_t tiles() const;
};

// Sizes that a task's store follows from.
struct StoreSizes {
  int64_t q_stride, g_stride;  // units of 4 bytes, of one row of Q and dO

  int64_t bytes(const BackwardItem& item, const BackwardTask& task) const;
};

struct BackwardWork {
  std::vector<BackwardItem> items;
  std::vector<BackwardTask> tasks;  // slab after slab
  std::vector<int64_t> slabs;       // [slabs + 1] first task
  std::vector<int64_t> item_tasks;  // indices of tasks by item, in order
  std::vector<int64_t> item_begin;  // [items + 1]
  int64_t rows = 0;                 // of all items
  int64_t largest_slab = 0;         // bytes
};

// Reads cu_q, kv_len and positions, which must have been checked.
BackwardWork cut_backward(const Problem& problem, const Shape& shape, const BundleView& bundles,
                          const StoreSizes& sizes, int64_t slab_bytes);

StoreSizes store_sizes(const Shape& shape);

}  // namespace tamis::cpu
