// What the two passes of the backward are told.
//
// The pass over queries goes through the tiles of some query rows: it computes the weights P and the score
// gradients dS again, sums dQ, and stores P and dS. The pass over keys takes runs of neighbouring slots and
// sums dV = P^T dO and dK = dS^T Q over every tile that has them. Five products in all; nothing is summed by
// two threads.
#pragma once

#include "kernels/cpu/args.h"

namespace tamis::cpu {

// What a task of the pass over queries leaves for the pass over keys. As f32: P and dS [tiles, rows, kTile],
// queries and out gradients [rows, stride]. As pairs of bf16 (rows 2i and 2i + 1 in one unit): P and dS
// [tiles, rows / 2, kTile], queries and out gradients [rows / 2, stride]; an odd last row has 0 for a
// partner.
struct Stored {
  char* p;
  char* ds;
  char* q;
  char* g;                     // dO
  uint64_t* bits;              // [tiles, groups] columns the rows of a group select
  int64_t* slots;              // [tiles, kTile]
  int64_t q_stride, g_stride;  // units
  int32_t rows, groups;
  bool pairs;
  // Some row of Q or dO is not finite: rows that select a column are then added one by one.
  bool* one_by_one;

  int64_t depth() const { return pairs ? (rows + 1) / 2 : rows; }  // steps of a sum over rows
};

struct QueryPassArgs : TileArgs {
  ScoreArgs score;
  DropoutArgs dropout;
  const float* q;  // [rows, q_stride] f32, zero behind D; with pairs null
  const float* g;  // dO [rows, g_stride] likewise
  int64_t q_stride, g_stride;
  const uint32_t* q_pairs;  // [rows, q_pair_stride] pairs along the head, zero behind D; null: f32
  const uint32_t* g_pairs;
  int64_t q_pair_stride, g_pair_stride;
  const float* lse;  // [rows]
  float* delta;      // [rows] dO . O - d_lse
  bool only_delta;   // adds the sum over this task's edges of P dP to delta, and does nothing else
  float* dq;         // [rows, dq_stride], added to
  int64_t dq_stride;
  Stored stored;
  char* scratch;  // query_pass_scratch
};

// Adds one run of `length` columns from `column` of tile `tile` to dK and dV of its first slot.
struct KeyPassArgs {
  Stored stored;
  const int16_t* group_of;  // [rows]
  int32_t tile, column, length;
  float* dk;  // [length, dk_stride]
  float* dv;
  int64_t dk_stride, dv_stride;
  int64_t head_dim, v_head_dim;
};

}  // namespace tamis::cpu
