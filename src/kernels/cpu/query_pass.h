// Backward, pass over queries: for each tile S, P, dP and dS again, and dQ += dS K.
//
// With s the score of section 5 (docs/semantics.md), p = exp(s - LSE), dp = (dO . v) times the dropout
// factor:
//     dS = p (dp - delta) cap'(scale q.k),   delta = dO . O - d_lse.
// The scale itself is left to whoever finishes dQ and dK: dS is rounded to bf16 without it.
// Source: FlashAttention-2 (arXiv 2307.08691), Algorithm 2, with the loops exchanged. Values of unselected
// columns are replaced, never multiplied.
#pragma once

#include "kernels/cpu/backward_args.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/panel.h"
#include "kernels/cpu/tile.h"
#include "kernels/cpu/weights.h"

namespace tamis::cpu::TAMIS_ISA {

// Rows between whose products nothing leaves the first-level cache; even, so that pairs of rows stay
// together.
inline constexpr int kQueryBlock = 48;

class QueryPass {
 public:
  explicit QueryPass(const QueryPassArgs& args)
      : a_(args),
        k_stride_(round_up(args.k.head_dim, W)),
        v_stride_(round_up(args.v.head_dim, W)),
        wide_k_(reinterpret_cast<float*>(args.scratch)),
        wide_v_(wide_k_ + kTile * k_stride_),
        keys_(wide_v_ + kTile * v_stride_),
        values_(keys_ + kTile * k_stride_),
        key_rows_(values_ + kTile * v_stride_),
        s_(key_rows_ + kTile * k_stride_),
        dp_(s_ + kQueryBlock * kTile),
        halves_(reinterpret_cast<uint16_t*>(dp_ + kQueryBlock * kTile)) {}

  static int64_t scratch_bytes(int64_t head_dim, int64_t v_head_dim) {
    return 4 * kTile * (3 * round_up(head_dim, W) + 2 * round_up(v_head_dim, W) + 2 * kQueryBlock) +
           2 * kTile * kQueryBlock;
  }

  void run() {
    if (!a_.only_delta) store_rows();
    TileBuilder builder(a_);
    Tile tiles[2];
    int current = 0;
    int32_t number = 0;
    for (bool more = builder.next(&tiles[0]); more; current ^= 1, ++number) {
      more = builder.next(&tiles[current ^ 1]);
      step(tiles[current], tiles[current ^ 1], number);
    }
  }

 private:
  bool pairs() const { return a_.stored.pairs; }

  // Q and dO as the pass over keys reads them.
  void store_rows() {
#if defined(__AVX512BF16__)
    if (pairs()) {
      const bool finite_q =
          store_pairs(a_.q_pairs, a_.q_pair_stride, a_.k.head_dim, a_.stored.q, a_.stored.q_stride);
      const bool finite_g =
          store_pairs(a_.g_pairs, a_.g_pair_stride, a_.v.head_dim, a_.stored.g, a_.stored.g_stride);
      *a_.stored.one_by_one = !(finite_q && finite_g);
      return;
    }
#endif
    bool finite_rows = true;
    for (int r = 0; r < a_.rows && finite_rows; ++r)
      finite_rows =
          finite(a_.q + r * a_.q_stride, a_.k.head_dim) && finite(a_.g + r * a_.g_stride, a_.v.head_dim);
    *a_.stored.one_by_one = !finite_rows;
  }

#if defined(__AVX512BF16__)
  // False when some row is not finite.
  bool store_pairs(const uint32_t* rows, int64_t stride, int64_t dim, char* to, int64_t to_stride) {
    Side side{};
    side.element = Element::kBF16;
    side.head_dim = dim;
    uint64_t bad = 0;
    for (int first = 0; first < a_.rows; first += kTile) {
      Row at[kTile];
      const int count = a_.rows - first < kTile ? a_.rows - first : kTile;
      for (int i = 0; i < count; ++i)
        at[i] = {reinterpret_cast<const char*>(rows + (first + i) * stride), nullptr};
      bad |= join_pairs(side, Columns{at, count, nullptr, 0, 0, 0},
                        reinterpret_cast<uint32_t*>(to) + first / 2 * to_stride, to_stride);
    }
    return bad == 0;
  }
#endif

  void step(const Tile& tile, const Tile& next, int32_t number) {
    const Columns k = columns_of(a_.k, tile.k, tile.columns, next.k, next.columns);
    const Columns v = columns_of(a_.v, tile.v, tile.columns, next.v, next.columns);
    uint64_t bad = pack(k, v);
    if (tile.uniform || a_.only_delta) bad = 0;
    if (bad != 0 && pairs()) widen_rows(a_.k, k, wide_k_, k_stride_);
    if (!a_.only_delta) describe(tile, number);
    for (int first = 0; first < a_.rows; first += kQueryBlock) {
      const int count = a_.rows - first < kQueryBlock ? a_.rows - first : kQueryBlock;
      products(first, count, tile.columns);
      for (int r = first; r < first + count; ++r)
        gradients(tile, r, s_ + (r - first) * kTile, dp_ + (r - first) * kTile);
      if (a_.only_delta) continue;
      store_edges(number, first, count);
      if (bad != 0)
        for (int r = first; r < first + count; ++r) add_selected(tile, r, s_ + (r - first) * kTile);
      else
        add_queries(first, count, tile.columns);
    }
  }

  // K and V as panels, and K's rows for dQ. Returns the rows of K that are not finite.
  uint64_t pack(const Columns& k, const Columns& v) {
#if defined(__AVX512BF16__)
    if (pairs()) {
      transpose_pairs(a_.k, k, reinterpret_cast<uint32_t*>(keys_));
      transpose_pairs(a_.v, v, reinterpret_cast<uint32_t*>(values_));
      return join_pairs(a_.k, k, reinterpret_cast<uint32_t*>(key_rows_), k_stride_);
    }
#endif
    widen_rows(a_.k, k, wide_k_, k_stride_);
    widen_rows(a_.v, v, wide_v_, v_stride_);
    transpose_rows(wide_k_, k_stride_, k.count, a_.k.head_dim, keys_);
    transpose_rows(wide_v_, v_stride_, v.count, a_.v.head_dim, values_);
    return bad_rows(wide_k_, k_stride_, k.count, a_.k.head_dim);
  }

  // Where the columns of the tile lie and which rows select them.
  void describe(const Tile& tile, int32_t number) {
    memcpy(a_.stored.slots + number * kTile, tile.slot, sizeof(int64_t) * static_cast<size_t>(tile.columns));
    const uint64_t all = ~uint64_t{0} >> (kTile - tile.columns);
    for (int g = 0; g < a_.group_count; ++g)
      a_.stored.bits[int64_t{number} * a_.group_count + g] = tile.uniform ? all : tile.bits[g] & all;
  }

  // q . k into s_, dO . v into dp_.
  void products(int first, int count, int columns) {
    columns = static_cast<int>(round_up(columns, W));
#if defined(__AVX512BF16__)
    if (pairs()) {
      panel<BF16Step, Start::kZero>({a_.q_pairs + first * a_.q_pair_stride, a_.q_pair_stride, 1}, count,
                                    {reinterpret_cast<const uint32_t*>(keys_), kTile, a_.k.head_dim / 2},
                                    nullptr, s_, kTile, columns);
      panel<BF16Step, Start::kZero>({a_.g_pairs + first * a_.g_pair_stride, a_.g_pair_stride, 1}, count,
                                    {reinterpret_cast<const uint32_t*>(values_), kTile, a_.v.head_dim / 2},
                                    nullptr, dp_, kTile, columns);
      return;
    }
#endif
    panel<F32Step, Start::kZero>({a_.q + first * a_.q_stride, a_.q_stride, 1}, count,
                                 {keys_, kTile, a_.k.head_dim}, nullptr, s_, kTile, columns);
    panel<F32Step, Start::kZero>({a_.g + first * a_.g_stride, a_.g_stride, 1}, count,
                                 {values_, kTile, a_.v.head_dim}, nullptr, dp_, kTile, columns);
  }

  // s: dot products to dS; dp: dO . v to the weights that multiplied V. 0 where not selected.
  TAMIS_INLINE void gradients(const Tile& tile, int r, float* s, float* dp) {
    const uint64_t mine = selected(a_, tile, r);
    if (mine == ~uint64_t{0} && !a_.dropout.active && !a_.only_delta && a_.score.softcap == 0 &&
        a_.score.slopes == nullptr)
      plain_gradients(r, s, dp);
    else
      any_gradients(tile, r, mine, s, dp);
  }

  // Every column selected, nothing dropped, no term but the scale.
  TAMIS_INLINE void plain_gradients(int r, float* s, float* dp) {
    const Vec lse = splat(a_.lse[r]), delta = splat(a_.delta[r]);
    for (int i = 0; i < kTileVectors; ++i) {
      const Vec p = weight(load(s + i * W) * a_.score.scale - lse);
      store(s + i * W, p * (load(dp + i * W) - delta));
      store(dp + i * W, p);
    }
  }

  // A score may pass the LSE by its rounding, or by far where the LSE is not this problem's.
  TAMIS_INLINE static Vec weight(Vec x) { return exp_negative(x > splat(88.f) ? splat(88.f) : x); }

  void any_gradients(const Tile& tile, int r, uint64_t mine, float* s, float* dp) {
    const uint64_t kept = a_.dropout.active ? kept_columns(a_.dropout, tile, r) : ~uint64_t{0};
    const float factor = a_.dropout.active ? a_.dropout.keep : 1.f;
    const Vec lse = splat(a_.lse[r]), delta = splat(a_.only_delta ? 0.f : a_.delta[r]);
    Vec total = {};
    for (int i = 0; i < kTileVectors; ++i) {
      Vec slope;
      const Vec p = weight(final_score(a_.score, load(s + i * W), tile, r, i * W, &slope) - lse);
      const IntVec in_set = lanes(static_cast<uint32_t>(mine >> (i * W)));
      const IntVec keeps = lanes(static_cast<uint32_t>((mine & kept) >> (i * W)));
      const Vec g = select(keeps, load(dp + i * W) * factor, Vec{});
      const Vec ds = p * (g - delta);
      total += select(in_set, ds, Vec{});
      store(dp + i * W, select(keeps, p * factor, Vec{}));
      store(s + i * W, select(in_set, ds * slope, Vec{}));
    }
    if (a_.only_delta) a_.delta[r] += sum(total);
  }

#if defined(__AVX512BF16__)
  // Rows 2i and 2i + 1 of `from` as pairs of bf16; and one by one to `rows`, unless that is null.
  static void store_row_pairs(const float* from, int count, uint32_t* to, uint16_t* rows) {
    for (int r = 0; r < count; r += 2, to += kTile)
      for (int c = 0; c < kTile; c += W) {
        const bool two = r + 1 < count;
        const __m256bh low = _mm512_cvtneps_pbh(load(from + r * kTile + c));
        const __m256bh high = _mm512_cvtneps_pbh(two ? load(from + (r + 1) * kTile + c) : Vec{});
        const UintVec pair = widen_halves(low) | widen_halves(high) << 16;
        memcpy(to + c, &pair, sizeof pair);
        if (rows == nullptr) continue;
        memcpy(rows + r * kTile + c, &low, sizeof low);
        if (two) memcpy(rows + (r + 1) * kTile + c, &high, sizeof high);
      }
  }
#endif

  void store_edges(int32_t number, int first, int count) {
    const Stored& to = a_.stored;
#if defined(__AVX512BF16__)
    if (pairs()) {
      const int64_t at = (number * to.depth() + first / 2) * kTile;
      store_row_pairs(dp_, count, reinterpret_cast<uint32_t*>(to.p) + at, nullptr);
      store_row_pairs(s_, count, reinterpret_cast<uint32_t*>(to.ds) + at, halves_);
      return;
    }
#endif
    const int64_t at = (int64_t{number} * to.rows + first) * kTile;
    const size_t bytes = sizeof(float) * static_cast<size_t>(count * kTile);
    memcpy(reinterpret_cast<float*>(to.p) + at, dp_, bytes);
    memcpy(reinterpret_cast<float*>(to.ds) + at, s_, bytes);
  }

  void add_queries(int first, int count, int columns) {
    float* dq = a_.dq + first * a_.dq_stride;
#if defined(__AVX512BF16__)
    if (pairs())
      return panel<BF16Step, Start::kAdd>(
          {reinterpret_cast<const uint32_t*>(halves_), kTile / 2, 1}, count,
          {reinterpret_cast<const uint32_t*>(key_rows_), k_stride_, (columns + 1) / 2}, nullptr, dq,
          a_.dq_stride, a_.k.head_dim);
#endif
    panel<F32Step, Start::kAdd>({s_, kTile, 1}, count, {wide_k_, k_stride_, columns}, nullptr, dq,
                                a_.dq_stride, a_.k.head_dim);
  }

  // Some row of K is not finite: this row adds its own columns only.
  void add_selected(const Tile& tile, int r, const float* ds) {
    float* dq = a_.dq + r * a_.dq_stride;
    for (uint64_t bits = selected(a_, tile, r); bits != 0; bits &= bits - 1) {
      const int c = __builtin_ctzll(bits);
      const float* row = wide_k_ + c * k_stride_;
      for (int64_t d = 0; d < a_.k.head_dim; ++d) dq[d] += ds[c] * row[d];
    }
  }

  const QueryPassArgs& a_;
  const int64_t k_stride_, v_stride_;
  float* const wide_k_;                      // [kTile, k_stride_] rows as f32
  float* const wide_v_;                      // [kTile, v_stride_]
  float* const keys_;                        // [k_stride_, kTile] panels, or half as many units of pairs
  float* const values_;                      // [v_stride_, kTile]
  float* const key_rows_;                    // [kTile / 2, k_stride_] pairs of neighbouring rows
  float* const s_;                           // [kQueryBlock, kTile] scores, then dS
  float* const dp_;                          // [kQueryBlock, kTile] dO . v, then weights
  [[maybe_unused]] uint16_t* const halves_;  // [kQueryBlock, kTile] dS as bf16
};

inline void query_pass(const QueryPassArgs& args) { QueryPass(args).run(); }

}  // namespace tamis::cpu::TAMIS_ISA
