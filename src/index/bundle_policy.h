// When rows are worth joining.
//
// A bundle loads each block of its union once and scores it for all of its rows, those that lack it included
// (their scores are masked away). With everything counted per block and KV head, in units of scoring one
// block for one (query, head) row,
//
//     cost(bundle) = union_blocks * (ceil(rows / kTileRows) * load + rows)
//     load         = kLoadRows * (bits of one K token + bits of one V token) / (16 * (D + Dv))
//     rows         = queries of the bundle's lists * query heads that read a KV head through one list
//
// A kernel tile holds kTileRows rows; more rows pass over the blocks again and save no load. Member words (8
// bytes a list against some 32 KiB a block) are left out.
#pragma once

#include "index/bundle_cut.h"
#include "tamis/bundle.h"
#include "tamis/index.h"

namespace tamis::index {

// Loading a bf16 block takes as long as scoring it for about so many rows. H200: bf16 tensor rate some 650
// TFLOP/s; K and V arrive at 4.4 TB/s from memory (145 rows) and 8 to 10 TB/s from L2 (65 to 80). A CPU would
// say 10, but it skips a list whose word is empty and so does no masked work to weigh against the load.
inline constexpr double kLoadRows = 96;
inline constexpr int64_t kTileRows = 128;
// A coarser cut has to cost less than this share of the best finer one: building the union is not free, and
// lists of the next step may overlap less.
inline constexpr double kWorthwhile = 0.875;
// Runs of query blocks that are measured. Each is measured exactly; the runs are a fixed, evenly spread
// sample, because the choice only decides speed and the lists of one step resemble each other, while
// measuring all of them would cost as much as building the union.
inline constexpr int64_t kMostSamples = 64;
inline constexpr int32_t kMostTried = 8;  // query blocks

double bundle_cost(int64_t union_blocks, int64_t rows, double load);
double load_of_block(const Shape& shape);

// The cut with the least cost among: rows apart; the private lists of a KV head joined; the same over 2, 4
// and 8 query blocks. Deterministic.
Cut cheapest_cut(const Shape& shape, const IndexView& index);

}  // namespace tamis::index
