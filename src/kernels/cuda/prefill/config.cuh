// Sizes of the prefill kernel, and what lies in the shared memory of a CTA.
#pragma once

#include <limits>

#include "kernels/cuda/decode/columns.cuh"
#include "kernels/cuda/device/hopper.cuh"
#include "kernels/cuda/prefill/args.h"

namespace tamis::cuda {

// A warpgroup that brings in, two that compute 64 query rows each.
inline constexpr int kPrefillThreads = 384, kComputingWarps = 8;
inline constexpr int kNotes = 8;  // a note outlives its keys by two tiles; the others are written ahead

inline constexpr int32_t kNowhere =
    0x7FFFFF00;  // the token of a column that holds none: nobody sees that far
inline constexpr int64_t kNoPlace = std::numeric_limits<int64_t>::min();

// The bits of tokens [first, last) among `size` from `base` on.
__device__ inline uint64_t token_range(int32_t first, int32_t last, int32_t base, int32_t size) {
  const int32_t low = max(first - base, 0), high = min(last - base, size);
  return high <= low ? 0 : (~uint64_t{0} >> (64 - (high - low))) << low;
}
// The same among 16, and of those below `last`.
__device__ inline uint32_t token_range16(int32_t first, int32_t last, int32_t base) {
  const int32_t low = max(first - base, 0), high = min(last - base, 16);
  return high <= low ? 0 : (0xFFFFu >> (16 - (high - low))) << low;
}
__device__ inline uint32_t tokens_below16(int32_t last, int32_t base) {
  return (1u << min(max(last - base, 0), 16)) - 1;
}

// Tokens that some row of a tile may see: listed ones below `end`, all below `sink_end` and in the window.
struct Seen {
  int32_t end, sink_end, window_begin, window_end;
};

// The rows of a tile: which they are, and the blocks that they attend to.
struct PrefillItem {
  DeviceTask task;
  Group group;      // `columns` rows are here
  int32_t task_at;  // its number
  int32_t tiles;    // of keys, at least kLeastTiles; 0: there are no more items
  int32_t list;     // of row 0
  int32_t lists;    // of all rows
  int64_t entry;    // of the first block
  // Tokens that every row sees: listed ones below `end`, all of [window_begin, window_end) and below
  // sink_end.
  int32_t end, window_begin, window_end, sink_end;
  Seen seen;  // by some row
  // All rows are there, and lie as the boxes of PrefillRows do: queries; results that go out as they are.
  bool q_boxed, out_boxed;
};

// A tile of keys, in groups of 16 columns.
template <int kKeys>
struct TileNote {
  static constexpr int kGroups = kKeys / 16;
  bool masked;            // some row does not see some column
  bool holes;             // some column holds what lies behind the request's last token, and may be anything
  bool ends, adds;        // where masked: some row's sight ends; sink or window of some row reach into it
  int32_t base[kGroups];  // token of a group's first column; far outside where there is none
  alignas(4) uint16_t seen[kGroups];                   // by some row; only of these sink and window count
  alignas(8) uint16_t listed[kPrefillLists][kGroups];  // where masked
  // Boxes: where each block lies; page -1: nowhere. Else each column, in bytes from the head's first element;
  // kNoPlace: it is not brought in.
  int32_t page[kGroups], token[kGroups];
  int64_t k_at[kKeys], v_at[kKeys];
};

template <class T_, int kDim_, bool kBent_, int kPair_>
struct PrefillConfig {
  using T = T_;
  static constexpr int kDim = kDim_;
  static constexpr bool kBent = kBent_;  // scores are capped, slanted or turned round
  static constexpr int kPair = kPair_;   // CTAs of a cluster: PrefillArgs::pair
  static constexpr int kKeys = prefill_keys(kDim);
  static constexpr int kHalves = kDim / 64;
  static constexpr int kLineBytes = 8192;  // of 64 query rows, a half of their elements
  // With one slot for query rows a tile of rows is finished before the next begins.
  static constexpr int kSlots = kDim <= 128 ? 2 : 1;
  static constexpr int kStages = 2;
  // Tiles of keys of a row tile, which may be empty: the results of the row tile before are stored during the
  // second, and before that no third row tile has a slot.
  static constexpr int kLeastTiles = kSlots;
  static constexpr uint32_t kQueryBytes = kPrefillRows * kDim * 2, kTileBytes = kKeys * kDim * 2;
  // Of a thread: 128 that bring in, 256 that compute.
  static constexpr int kFeedRegisters = 40, kComputeRegisters = 232;
  // More than the CTA was given is waited for for ever.
  static_assert(2 * kComputeRegisters + kFeedRegisters <= 65536 / kPrefillThreads / 8 * 8 * 3);
  // Accumulators of O, as parts that one product can write.
  static constexpr int kParts = kDim <= 128 ? 1 : 2, kPart = kDim == 64 ? 32 : 64;

  struct Shared {
    alignas(1024) char q[kSlots][kQueryBytes];
    alignas(1024) char k[kStages][kTileBytes];
    alignas(1024) char v[kStages][kTileBytes];
    PrefillItem items[kSlots];
    Column rows[kSlots][kPrefillRows];
    PartialSum sums[kSlots][kPrefillRows];  // of rows that have ended and are not stored yet
    TileNote<kKeys> notes[kNotes];
    alignas(8) uint64_t item_full[kSlots], q_full[kSlots], slot_empty[kSlots];
    uint64_t note_full[kNotes], note_empty[kNotes];
    uint64_t k_full[kStages], k_empty[kStages], v_full[kStages], v_empty[kStages];
    uint64_t v_landed[kStages];
    uint64_t turn[2];  // of a computing warpgroup: the other one's products are under way
    // Of the second CTA of a pair: what the first one has drawn.
    uint64_t drawn_full[kSlots];
    uint32_t drawn[kSlots];
  };
  static_assert(sizeof(Shared) <= 226 * 1024);
};

// A place in a ring of 1, 2, 4 or 8, and the parity of the pass over it.
template <uint32_t kPlaces>
struct Turn {
  uint32_t count = 0;
  __device__ uint32_t at() const { return count % kPlaces; }
  __device__ uint32_t parity() const { return count / kPlaces % 2; }
  __device__ void advance() { ++count; }
};

// The lanes that arrive for a warp. One is enough, after __syncwarp(); but racecheck seems not to follow what
// the others did before to the barrier, so in builds for it they all do.
#ifdef TAMIS_RACECHECK
inline constexpr uint32_t kArriving = 32;
#else
inline constexpr uint32_t kArriving = 1;
#endif
__device__ inline void arrive(uint64_t* barrier) {
  if (threadIdx.x % 32 < kArriving) device::barrier_arrive(device::shared_address(barrier));
}
__device__ inline void arrive_and_expect(uint64_t* barrier, uint32_t bytes) {
  if (threadIdx.x % 32 == 0)
    device::barrier_arrive_and_expect(device::shared_address(barrier), bytes);
  else
    arrive(barrier);
}

// By the warp of the keys, once a tile's slot was free: then all are done with the keys of the tile two back,
// and before that had made the weights of the tile three back and seen its values, which is the last use of
// its note. A barrier of its own tells that, because keys' slots may be filled and free again while nobody
// looks.
template <class S>
__device__ void release_note(S& s, const Turn<kNotes>& note) {
  if (note.count >= 3) arrive(&s.note_empty[Turn<kNotes>{note.count - 3}.at()]);
}

// By the warp of the keys, behind the last tile: who computes waits for the next tile's keys before the last
// weights.
template <class C>
__device__ void end_keys(typename C::Shared& s, const Turn<C::kStages>& next) {
  device::barrier_wait(device::shared_address(&s.k_empty[next.at()]), next.parity() ^ 1);
  __syncwarp();
  arrive(&s.k_full[next.at()]);
}

}  // namespace tamis::cuda
