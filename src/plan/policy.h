// Tuning by backend: the numbers that change speed and never a result. Constants, so that a plan can be
// predicted by reading this file.
#pragma once

#include <cstdint>
#include <string>

#include "core/checks.h"
#include "plan/partition.h"
#include "tamis/device.h"

namespace tamis {

struct Policy {
  int32_t tile;  // KV tokens of a tile
  Split split;   // of the default mode, neither forced nor batch-invariant: balanced or even
  // Equal shares that mode aims at. Fixed, not the number of threads or SMs found, because the order of
  // additions follows from it: the same call gives the same bits on every machine.
  int32_t shares;
  // Tiles of the shortest part, in the default mode and of a batch-invariant piece: below them, a part's own
  // start and its partial state cost more than it saves.
  int32_t min_tiles, invariant_tiles;
  // A batch-invariant piece grows with the query rows of a list so that partial states stay small beside the
  // K and V they come from: at this many rows or fewer it has the minimum length.
  int32_t piece_rows;
  // Rows that list more than this share of all blocks run dense under path `auto`. An assumption until the
  // crossover is measured: packed tiles keep the direct path near dense speed up to high shares.
  double dense_share;
};

constexpr Policy policy_of(Backend backend) {
  // 264: two CTAs on each of 132 SMs, all resident at once, hence even parts: none waits for a second wave. A
  // few long rows must reach all of them, so parts may be short. The tile counts are assumptions until
  // measured.
  if (backend == Backend::kCuda)
    return {.tile = 64,
            .split = Split::kEven,
            .shares = 264,
            .min_tiles = 2,
            .invariant_tiles = 4,
            .piece_rows = 16,
            .dense_share = 0.75};
  // 16: every share starts with a tile nobody asked for ahead of time, and a single decode step is bound by
  // memory well before 16 cores.
  return {.tile = 64,
          .split = Split::kBalanced,
          .shares = 16,
          .min_tiles = 8,
          .invariant_tiles = 8,
          .piece_rows = 16,
          .dense_share = 0.75};
}

// How a plan cuts rows: forced splits come first, then batch invariance, then the backend's default.
constexpr Split split_of(Backend backend, int64_t splits, bool batch_invariant) {
  if (splits > 0) return Split::kForced;
  return batch_invariant ? Split::kInvariant : policy_of(backend).split;
}

inline std::string policy_text(const Policy& p) {
  return text("tile ", p.tile, p.split == Split::kEven ? ", even" : ", balanced", ", shares ", p.shares,
              ", min_tiles ", p.min_tiles, ", invariant_tiles ", p.invariant_tiles, ", piece_rows ",
              p.piece_rows, ", dense_share ", p.dense_share);
}

}  // namespace tamis
