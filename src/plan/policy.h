// Tuning by backend: the numbers that change speed and never a result. Constants, so that a plan can be
// predicted by reading this file.
#pragma once

#include <cstdint>
#include <string>

#include "core/checks.h"
#include "tamis/device.h"

namespace tamis {

struct Policy {
  int32_t tile;  // KV tokens of a tile
  // Equal shares of a balanced schedule. Fixed, not the number of threads or SMs found, because the order of
  // additions follows from it: the same call gives the same bits on every machine.
  int32_t shares;
  // A batch-invariant piece grows with the query rows of a list so that partial states stay small beside the
  // K and V they come from: at this many rows or fewer it has the minimum length.
  int32_t piece_rows;
  // Rows that list more than this share of all blocks run dense under path `auto`. An assumption until the
  // crossover is measured: packed tiles keep the direct path near dense speed up to high shares.
  double dense_share;
};

constexpr Policy policy_of(Backend backend) {
  // 264: two CTAs on each of 132 SMs.
  if (backend == Backend::kCuda) return {.tile = 64, .shares = 264, .piece_rows = 16, .dense_share = 0.75};
  // 16: every share starts with a tile nobody asked for ahead of time, and a single decode step is bound by
  // memory well before 16 cores.
  return {.tile = 64, .shares = 16, .piece_rows = 16, .dense_share = 0.75};
}

inline std::string policy_text(const Policy& p) {
  return text("tile ", p.tile, ", shares ", p.shares, ", piece_rows ", p.piece_rows, ", dense_share ",
              p.dense_share);
}

}  // namespace tamis
