#include "kernels/cpu/backward_tasks.h"

#include <algorithm>
#include <bit>
#include <memory>

#include "index/transpose.h"
#include "kernels/cpu/numbers.h"
#include "kernels/cpu/rows.h"

namespace tamis::cpu {
namespace {

// Columns of one task: bounds what a slab must hold of a chunk with a long list.
constexpr int64_t kTaskColumns = 4096;

// Tokens of block `j` that some row of the chunk selects.
int64_t columns_of(const BundleView& view, const Bundle& bundle, const RowChunk& chunk, int64_t j) {
  int64_t columns = 0;
  for (int32_t w = 0; w < view.words; ++w) {
    const int64_t base = int64_t{view.blocks[bundle.begin + j]} * view.block + w * kWordBits;
    const uint64_t* listed = view.members + bundle.members_at + j * bundle.lists * view.words + w;
    uint64_t any = 0;
    for (int32_t g = 0; g < chunk.group_count; ++g)
      any |= set_bits(listed[chunk.groups[g].list * view.words], chunk.groups[g].sight, base);
    columns += std::popcount(any & word_mask(view.block));
  }
  return columns;
}

// The tasks of one item, in the order of its blocks.
void cut_item(const BundleView& view, const Bundle& bundle, const RowChunk& chunk, int32_t item,
              std::vector<BackwardTask>* tasks) {
  BackwardTask task{.item = item, .begin = 0, .end = 0, .columns = 0};
  for (int32_t j = 0; j < bundle.count; ++j) {
    const int64_t columns = columns_of(view, bundle, chunk, j);
    if (task.columns > 0 && task.columns + columns > kTaskColumns) {
      tasks->push_back(task);
      task = {.item = item, .begin = j, .end = j, .columns = 0};
    }
    task.columns += columns;
    task.end = j + 1;
  }
  if (task.columns > 0) tasks->push_back(task);
}

}  // namespace

int64_t BackwardTask::tiles() const { return (columns + kTile - 1) / kTile; }

StoreSizes store_sizes(const Shape& shape) {
  return {round_up(shape.head_dim, 16), round_up(shape.v_head_dim, 16)};
}

int64_t StoreSizes::bytes(const BackwardItem& item, const BackwardTask& task) const {
  const int64_t line = 64, tiles = task.tiles();
  const int64_t edges = tiles * item.rows * kTile * 4, rows = item.rows * 4;  // f32; pairs take less
  return 2 * edges + round_up(rows * q_stride, line) + round_up(rows * g_stride, line) +
         round_up(tiles * item.groups * 8, line) + tiles * kTile * 8 +
         round_up(task.columns * static_cast<int64_t>(sizeof(index::SlotRun)), line) +
         round_up(item.rows * 2, line) + line;
}

BackwardWork cut_backward(const Problem& problem, const Shape& shape, const BundleView& bundles,
                          const StoreSizes& sizes, int64_t slab_bytes) {
  BackwardWork work;
  std::vector<BackwardTask> tasks;
  const auto chunk_memory = std::make_unique<RowChunk>();
  work.item_begin = {0};
  for (int32_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head)
    for (int32_t b = 0; b < bundles.bundles; ++b) {
      const Bundle& bundle = bundles.bundle[b];
      if (kv_head < bundle.kv_head || kv_head >= bundle.kv_head + bundle.kv_heads) continue;
      for_each_chunk(problem, shape, bundles, bundle, kv_head, chunk_memory.get(),
                     [&](const RowChunk& chunk, int64_t first) {
                       const auto item = static_cast<int32_t>(work.items.size());
                       work.items.push_back({b, kv_head, first, chunk.count, chunk.group_count, work.rows});
                       work.rows += chunk.count;
                       cut_item(bundles, bundle, chunk, item, &tasks);
                       work.item_begin.push_back(static_cast<int64_t>(tasks.size()));
                     });
    }
  // First tasks of all items, then second ones, ...: tasks of one slab belong to different items.
  std::vector<int64_t> order(tasks.size());
  const auto turn = [&](int64_t t) { return t - work.item_begin[tasks[t].item]; };
  for (size_t t = 0; t < order.size(); ++t) order[t] = static_cast<int64_t>(t);
  std::stable_sort(order.begin(), order.end(), [&](int64_t x, int64_t y) { return turn(x) < turn(y); });
  work.item_tasks.resize(tasks.size());
  int64_t bytes = 0, last_turn = 0;
  for (const int64_t t : order) {
    const int64_t own = sizes.bytes(work.items[tasks[t].item], tasks[t]);
    if (work.tasks.empty() || bytes + own > slab_bytes || turn(t) != last_turn) {
      work.slabs.push_back(static_cast<int64_t>(work.tasks.size()));
      bytes = 0;
    }
    bytes += own;
    last_turn = turn(t);
    work.largest_slab = std::max(work.largest_slab, bytes);
    work.item_tasks[t] = static_cast<int64_t>(work.tasks.size());
    work.tasks.push_back(tasks[t]);
  }
  work.slabs.push_back(static_cast<int64_t>(work.tasks.size()));
  return work;
}

}  // namespace tamis::cpu
