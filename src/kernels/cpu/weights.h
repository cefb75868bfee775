// Scores of one row and tile to softmax weights relative to the row's running maximum.
#pragma once

#include "core/philox.h"
#include "kernels/cpu/args.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/tile.h"
#include "kernels/cpu/vec.h"

namespace tamis::cpu::TAMIS_ISA {

inline constexpr int kTileVectors = kTile / W;

// scale * dot, soft cap and ALiBi of section 5, for columns [c, c + W) of row r. With `slope_of` also the
// derivative of the soft cap, which a backward needs.
TAMIS_INLINE Vec final_score(const ScoreArgs& score, Vec dot, const Tile& tile, int r, int c,
                             Vec* derivative = nullptr) {
  Vec x = dot * score.scale;
  if (derivative != nullptr) *derivative = splat(1.f);
  if (score.softcap > 0) {
    const Vec t = tanh(x / score.softcap);
    x = score.softcap * t;
    if (derivative != nullptr) *derivative = 1.f - t * t;
  }
  if (score.slopes == nullptr || score.slopes[r] == 0) return x;
  IntVec at;
  memcpy(&at, tile.position + c, sizeof at);
  const Vec distance = __builtin_convertvector(at - static_cast<int32_t>(score.positions[r]), Vec);
  return x - score.slopes[r] * (distance < 0.f ? -distance : distance);
}

// The columns whose edges to row r dropout keeps, as bits.
inline uint64_t kept_columns(const DropoutArgs& dropout, const Tile& tile, int r) {
  uint32_t kept[kTile];
  const uint32_t position = static_cast<uint32_t>(dropout.positions[r]), head = dropout.heads[r];
  for (int c = 0; c < kTile; ++c) {
    const uint32_t t = static_cast<uint32_t>(tile.position[c]);
    const PhiloxWords w = philox4x32(t / 4, position, head, dropout.request, dropout.seed);
    const uint32_t low = t & 1 ? w.word[1] : w.word[0], high = t & 1 ? w.word[3] : w.word[2];
    kept[c] = (t & 2 ? high : low) >= dropout.threshold;
  }
  uint64_t bits = 0;
  for (int c = 0; c < kTile; ++c) bits |= uint64_t{kept[c]} << c;
  return bits;
}

// What a step of online softmax leaves for one row.
struct RowState {
  float* m;
  float* l;
  float* scale;  // what O is to be multiplied with
};

// s: kTile dot products of the row; those of unselected columns may be anything. Afterwards the weights that
// multiply V: 0 where not selected or dropped. `selected` has no bit at or above tile.columns.
inline void weights(const ScoreArgs& score, const DropoutArgs& dropout, const Tile& tile, uint64_t selected,
                    int r, float* s, const RowState& state) {
  Vec x[kTileVectors];
  Vec top = splat(-INFINITY);
  if (score.softcap > 0 || score.slopes != nullptr || selected != ~uint64_t{0}) {
    for (int i = 0; i < kTileVectors; ++i) {
      const Vec y = final_score(score, load(s + i * W), tile, r, i * W);
      x[i] = select(lanes(static_cast<uint32_t>(selected >> (i * W))), y, splat(-INFINITY));
      top = max(x[i], top);
    }
  } else {
    for (int i = 0; i < kTileVectors; ++i) {
      x[i] = load(s + i * W) * score.scale;
      top = max(x[i], top);
    }
  }
  const float old = *state.m, m = max_of(max(top, splat(old)));
  if (m == -INFINITY) {
    // No finite score so far: exp(-inf - -inf) would be NaN, so no exponent is taken. Selected scores of -inf
    // weigh nothing beside a finite one, in this tile or another; l = 1 remembers that the set is not empty.
    // A NaN score makes the row NaN.
    uint64_t nan = 0;
    for (int i = 0; i < kTileVectors; ++i) {
      store(s + i * W, x[i]);
      for (int c = i * W; c < i * W + W; ++c) nan |= uint64_t{s[c] != s[c]} << c;
    }
    nan = nan == 0 ? 0 : selected;
    for (int i = 0; i < kTileVectors; ++i)
      store(s + i * W, select(lanes(static_cast<uint32_t>(nan >> (i * W))), splat(NAN), Vec{}));
    if (selected != 0) *state.l = nan != 0 ? NAN : *state.l + (*state.l == 0 ? 1.f : 0.f);
    *state.scale = 1;
    return;
  }
  Vec sum_of = {};
  for (int i = 0; i < kTileVectors; ++i) {
    x[i] = exp_negative(x[i] - m);
    sum_of += x[i];
  }
  if (dropout.active) {
    const uint64_t kept = kept_columns(dropout, tile, r);
    for (int i = 0; i < kTileVectors; ++i)
      x[i] = select(lanes(static_cast<uint32_t>(kept >> (i * W))), x[i] * dropout.keep, Vec{});
  }
  for (int i = 0; i < kTileVectors; ++i) store(s + i * W, x[i]);
  *state.scale = old == -INFINITY ? 0 : old == m ? 1 : exp_negative(splat(old - m))[0];
  *state.m = m;
  *state.l = *state.l * *state.scale + sum(sum_of);
}

}  // namespace tamis::cpu::TAMIS_ISA
