// Chooses the next tile of query rows and brings its rows in, a tile ahead of the others, and sees to what
// the tile before in its slot has left to do: the work of one warp.
#pragma once

#include "kernels/cuda/prefill/store.cuh"

namespace tamis::cuda {

template <class C>
class Items {
 public:
  __device__ Items(const PrefillArgs& args, typename C::Shared& shared) : a_(args), s_(shared) {}

  __device__ void run() {
    Turn<C::kSlots> slot;
    bool more = true;
    for (int rest = C::kSlots; rest > 0; slot.advance()) {  // what is in the other slots ends later
      PrefillItem& item = s_.items[slot.at()];
      Column* rows = s_.rows[slot.at()];
      // Of a pair the first CTA draws for both, and must not be ahead of the other one.
      uint32_t number = more && C::kPair == 1 ? draw(slot) : kNone;
      finish(slot);
      if (more) {
        if (C::kPair > 1) number = device::cluster_rank() == 0 ? draw(slot) : drawn(slot);
        more = choose(&item, number);
        if (more) describe(&item, rows);
        __syncwarp();
        arrive(&s_.item_full[slot.at()]);
      }
      if (!more) {
        --rest;
        continue;
      }
      const uint32_t q = device::shared_address(s_.q[slot.at()]),
                     full = device::shared_address(&s_.q_full[slot.at()]);
      if (item.q_boxed) {
        bring_rows(rows, q, full);
      } else {
        load_rows(rows, q);
        device::barrier_arrive(full);
      }
    }
  }

 private:
  static __device__ int lane() { return static_cast<int>(threadIdx.x % 32); }

  static constexpr uint32_t kNone = ~0u;

  // Waits for a slot, and sees to what the row tile that was in it has left to do.
  __device__ void finish(const Turn<C::kSlots>& slot) const {
    device::barrier_wait(device::shared_address(&s_.slot_empty[slot.at()]), slot.parity() ^ 1);
    if (slot.count >= C::kSlots)
      Store<C>(a_).finish_boxes(s_.items[slot.at()], s_.rows[slot.at()], s_.sums[slot.at()]);
    __syncwarp();
  }

  // What was drawn; false, and no tiles, where there was nothing. Of a pair, the row tile of the second CTA
  // may have no rows.
  __device__ bool choose(PrefillItem* item, uint32_t number) {
    const uint32_t rank = C::kPair > 1 ? device::cluster_rank() : 0;
    if (number == kNone) {
      if (lane() == 0) item->tiles = 0;
      return false;
    }
    int32_t at;
    const int32_t first_row = (place(number, &at) + static_cast<int32_t>(rank)) * kPrefillRows;
    const DeviceTask task = a_.step.scratch.tasks[at];
    const index::DeviceBundle bundle = a_.step.index.bundle[task.bundle];
    const int32_t queries = bundle.last_query - bundle.first_query;
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
                     .columns = min(queries * a_.step.q.group - first_row, kPrefillRows)};
    }
    __syncwarp();
    return true;
  }

  // The next that has rows. Each CTA, or pair, draws one number too many, so that the counter, which wraps,
  // ends at 0.
  __device__ uint32_t draw(const Turn<C::kSlots>& slot) {
    constexpr uint32_t pair = C::kPair;
    const uint32_t items = static_cast<uint32_t>(a_.step.scratch.head->tasks) * (a_.row_tiles / pair);
    uint32_t number;
    do {
      number = 0;
      if (lane() == 0) number = device::arrive(a_.work.next, items + gridDim.x / pair - 1);
      number = __shfl_sync(~0u, number, 0);
    } while (number < items && !has_rows(number));
    if (number >= items) number = kNone;
    if (pair > 1 && lane() == 0)
      device::send_word(device::shared_address(&s_.drawn[slot.at()]), number,
                        device::shared_address(&s_.drawn_full[slot.at()]), 1);
    return number;
  }

  // The first CTA draws into a slot when that is free, which it is not before this one has taken what was
  // drawn for it before: they go through the tiles of keys together.
  __device__ uint32_t drawn(const Turn<C::kSlots>& slot) {
    const uint32_t barrier = device::shared_address(&s_.drawn_full[slot.at()]);
    if (lane() == 0) device::barrier_arrive_and_expect(barrier, 4);
    device::barrier_wait(barrier, slot.parity());
    return *static_cast<volatile uint32_t*>(&s_.drawn[slot.at()]);
  }

  __device__ bool has_rows(uint32_t number) const {
    int32_t at;
    const int32_t first_row = place(number, &at) * kPrefillRows;
    const index::DeviceBundle& bundle = a_.step.index.bundle[a_.step.scratch.tasks[at].bundle];
    return bundle.request >= 0 && (bundle.last_query - bundle.first_query) * a_.step.q.group > first_row;
  }

  // Item to task and, of a pair the first, tile of rows. Where no row is split, one KV head after the other,
  // so that its keys stay in L2, and the last queries first, which see most where attention is causal.
  __device__ int32_t place(uint32_t number, int32_t* task) const {
    const uint32_t pair = C::kPair, tiles = static_cast<uint32_t>(a_.row_tiles) / pair,
                   heads = static_cast<uint32_t>(a_.kv_heads),
                   tasks = static_cast<uint32_t>(a_.step.scratch.head->tasks);
    const uint32_t t = number / tiles, tile = (number - t * tiles) * pair;
    *task = static_cast<int32_t>(t);
    if (a_.step.control->parts > 0) return static_cast<int32_t>(tile);
    const uint32_t blocks = tasks / heads, head = t / blocks, block = blocks - 1 - (t - head * blocks);
    *task = static_cast<int32_t>(block * heads + head);
    return static_cast<int32_t>(tile);
  }

  __device__ void describe(PrefillItem* item, Column* rows) {
    constexpr int32_t most = 0x7FFFFFFF;
    int32_t end = most, sink = most, begin = 0, stop = most, low = most, high = 0;
    Seen seen{0, 0, most, 0};
    const int32_t heads = a_.step.list_heads, at = lane() % kBoxRows;
    bool boxed = true;
#pragma unroll 1
    for (int i = lane(); i < kPrefillRows; i += 32) {
      const Column row = column_of(a_.step, item->group, i);
      rows[i] = row;
      const int32_t query = __shfl_sync(~0u, row.query, lane() - at),
                    head = __shfl_sync(~0u, row.head, lane() - at);
      boxed = boxed && row.query >= 0 && row.query - query == at / heads && row.head - head == at % heads;
      if (row.query < 0) continue;
      end = min(end, row.end);
      sink = min(sink, row.sink_end);
      begin = max(begin, row.window_begin);
      stop = min(stop, row.window_end);
      low = min(low, row.list);
      high = max(high, row.list);
      widen(row, &seen);
    }
    item->end = __reduce_min_sync(~0u, end);
    item->sink_end = __reduce_min_sync(~0u, sink);
    item->window_begin = __reduce_max_sync(~0u, begin);
    item->window_end = __reduce_min_sync(~0u, stop);
    item->seen = of_warp(seen);
    low = min(__reduce_min_sync(~0u, low), static_cast<int32_t>(__reduce_max_sync(~0u, high)));
    item->list = low;
    item->lists = __reduce_max_sync(~0u, high) - low + 1;
    boxed = __all_sync(~0u, boxed);
    item->q_boxed = boxed && a_.q.there;
    item->out_boxed = boxed && a_.out.there && item->task.part < 0;
  }
  static __device__ void widen(const Column& row, Seen* seen) {
    seen->end = max(seen->end, row.end);
    seen->sink_end = max(seen->sink_end, row.sink_end);
    if (row.window_begin >= row.window_end) return;
    seen->window_begin = min(seen->window_begin, row.window_begin);
    seen->window_end = max(seen->window_end, row.window_end);
  }
  static __device__ Seen of_warp(const Seen& s) {
    return {__reduce_max_sync(~0u, s.end), __reduce_max_sync(~0u, s.sink_end),
            __reduce_min_sync(~0u, s.window_begin), __reduce_max_sync(~0u, s.window_end)};
  }

  __device__ int32_t tiles_of(const DeviceTask& task) const {
    const int32_t blocks_a_tile = C::kKeys >> a_.step.log2_block;
    return max(C::kLeastTiles, (task.end - task.begin + blocks_a_tile - 1) / blocks_a_tile);
  }

  // A lane a box: rows to the places where load_rows() brings them.
  __device__ void bring_rows(const Column* rows, uint32_t to, uint32_t full) const {
    if (lane() == 0)
      device::barrier_arrive_and_expect(full, C::kQueryBytes);
    else
      device::barrier_arrive(full);
    __syncwarp();
    constexpr int kBoxes = kPrefillRows / kBoxRows;
#pragma unroll 1
    for (int i = lane(); i < kBoxes * C::kHalves; i += 32) {
      const int box = i % kBoxes, half = i / kBoxes;
      const Column& row = rows[box * kBoxRows];
      device::copy_box(to + box / 4 * (64 * C::kDim * 2) + half * C::kLineBytes + box % 4 * (kBoxRows * 128),
                       a_.q.map, full, half * 64, row.head, row.query, 0, 0);
    }
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
