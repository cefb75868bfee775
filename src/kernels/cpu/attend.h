// Online softmax over the packed tiles of one chunk of query rows.
//
// Source: FlashAttention-2 (arXiv 2307.08691), Algorithm 1, without the final division. Sums are float32. A
// tile is either uniform (every row selects every column: the common case of decode and of the inside of a
// prefill) or carries a bit per row and column; masked scores are replaced, never multiplied, and a V row
// that is not finite never meets the weight 0 of a row that did not select it.
//
// Few rows (decode) read K and V where they lie. Many rows (prefill) pack a tile once and multiply panels.
//
// Included by one .cpp per instruction set.
#pragma once

#include "kernels/cpu/args.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/panel.h"
#include "kernels/cpu/products.h"
#include "kernels/cpu/tile.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/weights.h"

namespace tamis::cpu::TAMIS_ISA {

// From this many rows on, K and V are widened to f32 once a tile instead of once a group of rows; and from
// this many, packed into panels: packing costs what about ten rows do.
inline constexpr int kWidenRows = 2 * kRows + 1, kPanelsFrom = 24;
// Rows whose scores, weights and sums stay in the first-level cache between the two products.
inline constexpr int kPanelBlock = 48;

class Attention {
 public:
  Attention(const AttendArgs& args, AttendCounts* counts)
      : a_(args),
        counts_(*counts),
        k_stride_(round_up(args.k.head_dim, W)),
        v_stride_(round_up(args.v.head_dim, W)),
        s_(reinterpret_cast<float*>(args.scratch)),
        wide_k_(s_ + kRowChunk * kTile),
        wide_v_(wide_k_ + kTile * k_stride_),
        keys_(wide_v_ + kTile * v_stride_),
        halves_(reinterpret_cast<uint16_t*>(keys_ + kTile * k_stride_)) {}

  static int64_t scratch_bytes(int64_t head_dim, int64_t v_head_dim) {
    return 4 * kTile * (kRowChunk + 2 * round_up(head_dim, W) + round_up(v_head_dim, W)) +
           2 * kTile * kPanelBlock;
  }

  void run() {
    memset(a_.o, 0, sizeof(float) * static_cast<size_t>(a_.rows * a_.v.head_dim));
    for (int r = 0; r < a_.rows; ++r) {
      a_.m[r] = -INFINITY;
      a_.l[r] = 0;
    }
    TileBuilder builder(a_);
    Tile tiles[2];
    int current = 0;
    for (bool more = builder.next(&tiles[0]); more; current ^= 1) {
      more = builder.next(&tiles[current ^ 1]);
      ++counts_.tiles;
      counts_.tokens += tiles[current].columns;
      if (a_.rows >= kPanelsFrom)
        step_panels(tiles[current], tiles[current ^ 1]);
      else
        step_rows(tiles[current], tiles[current ^ 1]);
    }
  }

 private:
  TAMIS_INLINE void weights_of(const Tile& tile, int r) {
    weights(a_.score, a_.dropout, tile, selected(a_, tile, r), r, s_ + r * kTile,
            {&a_.m[r], &a_.l[r], &scale_[r]});
  }

  // --- few rows. `next` is empty behind the last tile.
  void step_rows(const Tile& tile, const Tile& next) {
    Columns k = columns_of(a_.k, tile.k, tile.columns, next.k, next.columns);
    Columns v = columns_of(a_.v, tile.v, tile.columns, next.v, next.columns);
    const bool many = a_.rows >= kWidenRows;
    Row wide_k[kTile + 4], wide_v[kTile + 4];
    const bool widen_k = many || strided(a_.k), widen_v = many || !tile.uniform || strided(a_.v);
    if (widen_k) k = widened(a_.k, k, wide_k_, k_stride_, wide_k);
    if (widen_v) v = widened(a_.v, v, wide_v_, v_stride_, wide_v);
    if (widen_k)
      score_all(Plain<F32>{}, k);
    else if (a_.q_pairs != nullptr)
      score_all_pairs(k);
    else
      with_loader(a_.k, [&](auto loader) { score_all(loader, k); });
    for (int r = 0; r < a_.rows; ++r) weights_of(tile, r);
    const uint64_t bad = tile.uniform ? 0 : bad_rows(wide_v_, v_stride_, v.count, a_.v.head_dim);
    if (bad != 0)
      for (int r = 0; r < a_.rows; ++r) weigh_selected(tile, r, bad);
    else if (widen_v)
      weigh_all(Plain<F32>{}, v);
    else if (a_.pair_weights && a_.v.head_dim % (2 * W) == 0)
      weigh_all_pairs(v);
    else
      with_loader(a_.v, [&](auto loader) { weigh_all(loader, v); });
  }

  // Columns that point at f32 copies in `to`.
  static Columns widened(const Side& side, const Columns& columns, float* to, int64_t stride, Row* rows) {
    widen_rows(side, columns, to, stride);
    for (int c = 0; c < round_up(columns.count, 4); ++c)
      rows[c] = {reinterpret_cast<const char*>(to + (c < columns.count ? c : columns.count - 1) * stride),
                 nullptr};
    return {rows, columns.count, nullptr, 0, 0, 0};
  }

  template <class Load>
  void score_all(Load loader, Columns k) {
    int r = 0;
    for (; r + kRows <= a_.rows; r += kRows, k.next_count = 0)
      scores<kRows>(loader, a_.q + r * a_.q_stride, a_.q_stride, k, a_.k.head_dim, s_ + r * kTile);
    for (; r < a_.rows; ++r, k.next_count = 0)
      scores<1>(loader, a_.q + r * a_.q_stride, a_.q_stride, k, a_.k.head_dim, s_ + r * kTile);
  }

  template <class Load>
  void weigh_all(Load loader, Columns v) {
    int r = 0;
    for (; r + kRows <= a_.rows; r += kRows, v.next_count = 0)
      weigh<kRows>(loader, s_ + r * kTile, v, a_.v.head_dim, scale_ + r, a_.o + r * a_.v.head_dim);
    for (; r < a_.rows; ++r, v.next_count = 0)
      weigh<1>(loader, s_ + r * kTile, v, a_.v.head_dim, scale_ + r, a_.o + r * a_.v.head_dim);
  }

  // Where the instruction set has products of pairs; elsewhere there are no pairs and nobody comes here.
  void score_all_pairs([[maybe_unused]] Columns k) {
#if defined(__AVX512BF16__)
    int r = 0;
    for (; r + kRows <= a_.rows; r += kRows, k.next_count = 0)
      pair_scores<kRows>(a_.q_pairs + r * a_.q_pair_stride, a_.q_pair_stride, k, a_.k.head_dim,
                         s_ + r * kTile);
    for (; r < a_.rows; ++r, k.next_count = 0)
      pair_scores<1>(a_.q_pairs + r * a_.q_pair_stride, a_.q_pair_stride, k, a_.k.head_dim, s_ + r * kTile);
#endif
  }

  void weigh_all_pairs([[maybe_unused]] Columns v) {
#if defined(__AVX512BF16__)
    for (int i = 0; i < a_.rows * kTileVectors; ++i) store_halves(halves_ + i * W, load(s_ + i * W));
    const uint32_t* pairs = reinterpret_cast<const uint32_t*>(halves_);
    int r = 0;
    for (; r + kRows <= a_.rows; r += kRows, v.next_count = 0)
      weigh_pairs<kRows>(pairs + r * kTile / 2, kTile / 2, v, a_.v.head_dim, scale_ + r,
                         a_.o + r * a_.v.head_dim);
    for (; r < a_.rows; ++r, v.next_count = 0)
      weigh_pairs<1>(pairs + r * kTile / 2, kTile / 2, v, a_.v.head_dim, scale_ + r,
                     a_.o + r * a_.v.head_dim);
#endif
  }

  // Some V row of wide_v_ is not finite: a row that did not select it must not even multiply it by 0, so it
  // gets its own list of columns.
  void weigh_selected(const Tile& tile, int r, uint64_t bad) {
    Row rows[kTile];
    float p[kTile];
    int count = 0;
    const uint64_t mine = selected(a_, tile, r);
    for (uint64_t bits = mine; bits != 0; bits &= bits - 1, ++count) {
      const int c = __builtin_ctzll(bits);
      rows[count] = {reinterpret_cast<const char*>(wide_v_ + c * v_stride_), nullptr};
      p[count] = s_[r * kTile + c];
    }
    weigh<1>(Plain<F32>{}, p, Columns{rows, count, nullptr, 0, 0, 0}, a_.v.head_dim, scale_ + r,
             a_.o + r * a_.v.head_dim);
    counts_.rows_redone += (bad & ~mine) != 0;
  }

  // --- many rows
  void step_panels(const Tile& tile, const Tile& next) {
    const Columns k = columns_of(a_.k, tile.k, tile.columns, next.k, next.columns);
    const Columns v = columns_of(a_.v, tile.v, tile.columns, next.v, next.columns);
    pack_keys(k);
    uint64_t bad = pack_values(v);
    if (tile.uniform) bad = 0;
    if (bad != 0 && a_.pair_weights) clear_pairs(bad);
    for (int first = 0; first < a_.rows; first += kPanelBlock) {
      const int count = a_.rows - first < kPanelBlock ? a_.rows - first : kPanelBlock;
      score_panel(first, count, tile.columns);
      for (int r = first; r < first + count; ++r) weights_of(tile, r);
      if (bad != 0 && !a_.pair_weights) {
        for (int r = first; r < first + count; ++r) weigh_selected(tile, r, bad);
      } else {
        weigh_panel(first, count, tile.columns);
        if (bad != 0) add_bad(tile, first, count, bad);
      }
    }
  }

  // Rows of V that are not finite become 0 among the pairs, so that products with them are what they are with
  // any number of weight 0: whoever did not select them gets the very bits of a clean tile.
  void clear_pairs(uint64_t bad) {
    uint32_t* pairs = reinterpret_cast<uint32_t*>(wide_v_);
    for (; bad != 0; bad &= bad - 1) {
      const int c = __builtin_ctzll(bad);
      for (int64_t d = 0; d < v_stride_; ++d)
        pairs[c / 2 * v_stride_ + d] &= c % 2 == 0 ? 0xFFFF0000 : 0xFFFF;
    }
  }

  // What clear_pairs took from the rows that selected it.
  void add_bad(const Tile& tile, int first, int count, uint64_t bad) {
    float* row = wide_v_ + kTile / 2 * v_stride_;  // behind the pairs
    for (uint64_t bits = bad; bits != 0; bits &= bits - 1) {
      const int c = __builtin_ctzll(bits);
      widen_row(a_.v, tile.v[c], row);
      for (int r = first; r < first + count; ++r) {
        if ((selected(a_, tile, r) >> c & 1) == 0) continue;
        float* o = a_.o + r * a_.v.head_dim;
        for (int64_t d = 0; d < a_.v.head_dim; ++d) o[d] += s_[r * kTile + c] * row[d];
      }
    }
    for (int r = first; r < first + count; ++r) counts_.rows_redone += (bad & ~selected(a_, tile, r)) != 0;
  }

  void pack_keys(const Columns& k) {
#if defined(__AVX512BF16__)
    if (a_.q_pairs != nullptr) return transpose_pairs(a_.k, k, reinterpret_cast<uint32_t*>(keys_));
#endif
    widen_rows(a_.k, k, wide_k_, k_stride_);
    transpose_rows(wide_k_, k_stride_, k.count, a_.k.head_dim, keys_);
  }

  // Returns the rows that are not finite.
  uint64_t pack_values(const Columns& v) {
#if defined(__AVX512BF16__)
    if (a_.pair_weights) return join_pairs(a_.v, v, reinterpret_cast<uint32_t*>(wide_v_), v_stride_);
#endif
    widen_rows(a_.v, v, wide_v_, v_stride_);
    return bad_rows(wide_v_, v_stride_, v.count, a_.v.head_dim);
  }

  void score_panel(int first, int count, int columns) {
    float* s = s_ + first * kTile;
    columns = static_cast<int>(round_up(columns, W));
#if defined(__AVX512BF16__)
    if (a_.q_pairs != nullptr)
      return panel<BF16Step, Start::kZero>(
          {a_.q_pairs + first * a_.q_pair_stride, a_.q_pair_stride, 1}, count,
          {reinterpret_cast<const uint32_t*>(keys_), kTile, a_.k.head_dim / 2}, nullptr, s, kTile, columns);
#endif
    panel<F32Step, Start::kZero>({a_.q + first * a_.q_stride, a_.q_stride, 1}, count,
                                 {keys_, kTile, a_.k.head_dim}, nullptr, s, kTile, columns);
  }

  void weigh_panel(int first, int count, int columns) {
    float* o = a_.o + first * a_.v.head_dim;
#if defined(__AVX512BF16__)
    if (a_.pair_weights) {
      for (int i = 0; i < count * kTileVectors; ++i)
        store_halves(halves_ + i * W, load(s_ + first * kTile + i * W));
      uint32_t* pairs = reinterpret_cast<uint32_t*>(halves_);
      return panel<BF16Step, Start::kScaled>(
          {pairs, kTile / 2, 1}, count,
          {reinterpret_cast<const uint32_t*>(wide_v_), v_stride_, (columns + 1) / 2}, scale_ + first, o,
          a_.v.head_dim, a_.v.head_dim);
    }
#endif
    panel<F32Step, Start::kScaled>({s_ + first * kTile, kTile, 1}, count, {wide_v_, v_stride_, columns},
                                   scale_ + first, o, a_.v.head_dim, a_.v.head_dim);
  }

  const AttendArgs& a_;
  AttendCounts& counts_;
  const int64_t k_stride_, v_stride_;        // floats
  float* const s_;                           // [kRowChunk, kTile] scores, then weights
  float* const wide_k_;                      // [kTile, k_stride_]
  float* const wide_v_;                      // [kTile, v_stride_]; or pairs of its rows
  float* const keys_;                        // [k_stride_, kTile] K of a tile as a panel
  [[maybe_unused]] uint16_t* const halves_;  // [kPanelBlock, kTile] weights as bf16
  float scale_[kRowChunk];
};

inline void attend(const AttendArgs& args, AttendCounts* counts) { Attention(args, counts).run(); }

}  // namespace tamis::cpu::TAMIS_ISA
