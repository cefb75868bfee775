// Chooses the next tile of query rows and brings its rows in: the work of one warp, a tile ahead of the
// others.
#pragma once

#include "kernels/cuda/prefill/config.cuh"

namespace tamis::cuda {

template <class C>
class Items {
 public:
  __device__ Items(const PrefillArgs& args, typename C::Shared& shared) : a_(args), s_(shared) {}

  __device__ void run() {
    Turn<C::kSlots> slot;
    for (;; slot.advance()) {
      PrefillItem& item = s_.items[slot.at()];
      Column* rows = s_.rows[slot.at()];
      device::barrier_wait(device::shared_address(&s_.slot_empty[slot.at()]), slot.parity() ^ 1);
      const bool more = choose(&item);
      if (more) describe(&item, rows);
      __syncwarp();
      arrive(&s_.item_full[slot.at()]);
      if (!more) return;
      load_rows(rows, device::shared_address(s_.q[slot.at()]));
      device::barrier_arrive(device::shared_address(&s_.q_full[slot.at()]));
    }
  }

 private:
  static __device__ int lane() { return static_cast<int>(threadIdx.x % 32); }

  // The next item that has rows; false, and bundle -1, where there is none. Each CTA draws one number too
  // many, so that the counter, which wraps, ends at 0.
  __device__ bool choose(PrefillItem* item) {
    const int32_t tasks = a_.step.scratch.head->tasks;
    const uint32_t items = static_cast<uint32_t>(tasks) * static_cast<uint32_t>(a_.row_tiles);
    for (;;) {
      uint32_t number = 0;
      if (lane() == 0) number = device::arrive(a_.work.next, items + gridDim.x - 1);
      number = __shfl_sync(~0u, number, 0);
      if (number >= items) {
        if (lane() == 0) item->task.bundle = -1;
        return false;
      }
      int32_t at;
      const int32_t first_row = place(number, tasks, &at) * kPrefillRows;
      const DeviceTask task = a_.step.scratch.tasks[at];
      const index::DeviceBundle bundle = a_.step.index.bundle[task.bundle];
      const int32_t queries = bundle.last_query - bundle.first_query,
                    rows = queries * a_.step.q.group - first_row;
      if (bundle.request < 0 || rows <= 0) continue;
      if (lane() == 0) {
        item->task = task;
        item->task_at = at;
        item->tiles = tiles_of(task);
        item->entry = bundle.begin + task.begin;
        item->group = {.request = bundle.request,
                       .first_query = bundle.first_query,
                       .queries = queries,
                       .kv_head = task.kv_head,
                       .kv_len = bundle.kv_len,
                       .base_slot = bundle.base_slot,
                       .position = bundle.position,
                       .first_row = first_row,
                       .columns = min(rows, kPrefillRows)};
      }
      __syncwarp();
      return true;
    }
  }

  // Item to task and tile of rows. Where no row is split, one KV head after the other, so that its keys stay
  // in L2, and the last queries first, which see most where attention is causal.
  __device__ int32_t place(uint32_t number, int32_t tasks, int32_t* task) const {
    const uint32_t tiles = static_cast<uint32_t>(a_.row_tiles), heads = static_cast<uint32_t>(a_.kv_heads);
    const uint32_t t = number / tiles, tile = number - t * tiles;
    const uint32_t blocks = static_cast<uint32_t>(tasks) / heads;
    if (a_.step.control->parts > 0) {
      *task = static_cast<int32_t>(t);
      return static_cast<int32_t>(tile);
    }
    const uint32_t head = t / blocks, block = blocks - 1 - (t - head * blocks);
    *task = static_cast<int32_t>(block * heads + head);
    return static_cast<int32_t>(tile);
  }

  __device__ void describe(PrefillItem* item, Column* rows) {
    constexpr int32_t most = 0x7FFFFFFF;
    int32_t end = most, sink = most, begin = 0, stop = most, low = most;
    int32_t last_end = 0, last_sink = 0, first = most, last = 0, high = 0;
#pragma unroll 1
    for (int i = lane(); i < kPrefillRows; i += 32) {
      const Column row = column_of(a_.step, item->group, i);
      rows[i] = row;
      if (row.query < 0) continue;
      end = min(end, row.end);
      sink = min(sink, row.sink_end);
      begin = max(begin, row.window_begin);
      stop = min(stop, row.window_end);
      last_end = max(last_end, row.end);
      last_sink = max(last_sink, row.sink_end);
      low = min(low, row.list);
      high = max(high, row.list);
      if (row.window_begin >= row.window_end) continue;
      first = min(first, row.window_begin);
      last = max(last, row.window_end);
    }
    item->end = __reduce_min_sync(~0u, end);
    item->sink_end = __reduce_min_sync(~0u, sink);
    item->window_begin = __reduce_max_sync(~0u, begin);
    item->window_end = __reduce_min_sync(~0u, stop);
    item->last_end = __reduce_max_sync(~0u, last_end);
    item->last_sink = __reduce_max_sync(~0u, last_sink);
    item->first_window = __reduce_min_sync(~0u, first);
    item->last_window = __reduce_max_sync(~0u, last);
    low = __reduce_min_sync(~0u, low);
    item->list = low;
    item->lists = __reduce_max_sync(~0u, high) - low + 1;
  }

  __device__ int32_t tiles_of(const DeviceTask& task) const {
    const int32_t blocks_a_tile = C::kKeys >> a_.step.log2_block;
    return max(C::kLeastTiles, (task.end - task.begin + blocks_a_tile - 1) / blocks_a_tile);
  }

  // Rows to [warpgroup][half][64 rows][128 bytes], 16-byte pieces permuted by the row. Rows and elements that
  // do not exist are zeros.
  __device__ void load_rows(const Column* rows, uint32_t to) {
    constexpr int kPieces = C::kDim / 8;
    const bool aligned = a_.step.q.aligned;
#pragma unroll 4
    for (int i = lane(); i < kPrefillRows * kPieces; i += 32) {
      const int row = i / kPieces, piece = i % kPieces, line = row % 64;
      const uint32_t at = to + row / 64 * (64 * C::kDim * 2) + piece / 8 * 8192 + line * 128 +
                          ((piece % 8 ^ (line & 7)) << 4);
      const Column& c = rows[row];
      const bool live = c.query >= 0 && piece * 8 < a_.step.q.head_dim;
      const char* from = live ? a_.step.q.data + c.query * a_.step.q.stride_query +
                                    c.head * a_.step.q.stride_head + piece * 16
                              : a_.step.q.data;
      if (aligned)
        device::copy_async(at, from, live ? 16 : 0);
      else
        device::store_piece(at, query_piece(a_.step, c, piece));
    }
    device::copy_commit();
    device::copy_wait<0>();
    device::fence_async();
  }

  const PrefillArgs& a_;
  typename C::Shared& s_;
};

}  // namespace tamis::cuda
