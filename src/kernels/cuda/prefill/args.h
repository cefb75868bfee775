// What the prefill kernel is told.
#pragma once

#include "kernels/cuda/decode/args.h"
#include "kernels/cuda/device/tensor_map.h"

namespace tamis::cuda {

inline constexpr int32_t kPrefillRows = 128;  // query rows of a CTA
inline constexpr int32_t kPrefillLists = 32;  // most lists that they belong to
// Keys of a tile, by the larger head size.
constexpr int32_t prefill_keys(int64_t dim) { return dim <= 128 ? 128 : 64; }

// K or V for the copy engine. Axes: 64 elements, 8 tokens, halves of 64 elements, groups of 8 tokens, (page,
// head). A token of a page, or of a contiguous cache, is a coordinate of axis 1; groups reach over it.
struct PrefillSide {
  device::TensorMap block;  // boxes of a block
  device::TensorMap group;  // boxes of 8 tokens, for blocks that the end of a contiguous cache cuts
  int32_t page_apart;       // along axis 4, from a page to the next; from a head to the next: 1
  int32_t outside;          // a coordinate of axis 4 where there is nothing: zeros arrive
};

// Query rows, or rows of the result, for the copy engine, in boxes of kBoxRows neighbours of a group. Axes:
// elements, query heads, queries.
struct PrefillRows {
  device::TensorMap map;
  bool there;  // else threads copy them
};
inline constexpr int32_t kBoxRows = 16;

// A row tile whose rows another kernel has to sum again, alone: 16 rows of a group.
struct RedoEntry {
  int32_t task, tile;  // tasks[task] is one of the group's
};

// Work that CTAs hand each other. Counters return to 0 by themselves.
struct PrefillWork {
  uint32_t *next, *redo_count, *redo_done;
  RedoEntry* redo;
};

struct alignas(128) PrefillArgs {
  PrefillSide k, v;  // not there with step.tokens
  PrefillRows q, out;
  DecodeArgs step;
  PrefillWork work;
  int32_t row_tiles;  // of a group
  int32_t kv_heads;
  int32_t kv_rows;  // of a contiguous cache; 0: paged
  int32_t pair;  // CTAs of a cluster: 2, of two row tiles of a group, of whose blocks each brings half; or 1
  float scale2;  // of scores, to base 2, where they are neither capped nor slanted
};

}  // namespace tamis::cuda
