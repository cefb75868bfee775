// Online softmax over the packed tiles of one chunk of query rows.
//
// Source: FlashAttention-2 (arXiv 2307.08691), Algorithm 1, without the final division. Scores, weights and
// sums are float32. A tile is either uniform (every row selects every column: the common case of decode and
// of the inside of a prefill) or carries a bit per row and column; masked scores are replaced, never
// multiplied, and a V row that is not finite never meets the weight 0 of a row that did not select it.
//
// Included by one .cpp per instruction set.
#pragma once

#include "kernels/cpu/args.h"
#include "kernels/cpu/products.h"
#include "kernels/cpu/tile.h"
#include "kernels/cpu/vec.h"

namespace tamis::cpu::TAMIS_ISA {

inline constexpr int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

// From this many rows on, K and V are widened to f32 once a tile instead of once a group of rows.
inline constexpr int kWidenRows = 2 * kRows + 1;

TAMIS_INLINE float element(DType dtype, const char* at) {
  if (dtype == DType::kF32) {
    float x;
    memcpy(&x, at, sizeof x);
    return x;
  }
  return dtype == DType::kBF16 ? widen_some(BF16{}, at, 1)[0] : widen_some(F16{}, at, 1)[0];
}

class Attention {
 public:
  Attention(const AttendArgs& args, AttendCounts* counts)
      : a_(args),
        counts_(*counts),
        k_stride_(round_up(args.k.head_dim, W)),
        v_stride_(round_up(args.v.head_dim, W)),
        s_(reinterpret_cast<float*>(args.scratch)),
        wide_k_(s_ + kRowChunk * kTile),
        wide_v_(wide_k_ + kTile * k_stride_) {}

  static int64_t scratch_bytes(int64_t head_dim, int64_t v_head_dim) {
    return 4 * kTile * (kRowChunk + round_up(head_dim, W) + round_up(v_head_dim, W));
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
      step(tiles[current], tiles[current ^ 1]);
    }
  }

 private:
  // `next` is empty behind the last tile.
  void step(const Tile& tile, const Tile& next) {
    ++counts_.tiles;
    counts_.tokens += tile.columns;
    Columns k{tile.k, tile.columns, next.k, next.columns, element_bytes(a_.k), row_bytes(a_.k)};
    Columns v{tile.v, tile.columns, next.v, next.columns, element_bytes(a_.v), row_bytes(a_.v)};
    const bool many = a_.rows >= kWidenRows, masked = !tile.uniform;
    const char* wide_k[kTile + 4];
    const char* wide_v[kTile + 4];
    uint64_t bad = 0;
    DType k_type = a_.k.dtype, v_type = a_.v.dtype;
    if (many || strided(a_.k)) {
      widen_rows(a_.k, &k, wide_k_, k_stride_, wide_k, nullptr);
      k_type = DType::kF32;
    }
    if (many || masked || strided(a_.v)) {
      widen_rows(a_.v, &v, wide_v_, v_stride_, wide_v, masked ? &bad : nullptr);
      v_type = DType::kF32;
    }
    with_type(k_type, [&](auto type) { score_all(type, k); });
    for (int g = 0; g < a_.group_count; ++g)
      for (int r = a_.groups[g].first; r < a_.groups[g].first + a_.groups[g].rows; ++r)
        weights(tile, masked ? tile.bits[g] : ~uint64_t{0}, r);
    with_type(v_type, [&](auto type) { weigh_all(type, v, tile, bad); });
  }

  static int64_t element_bytes(const Side& side) { return side.dtype == DType::kF32 ? 4 : 2; }
  static int64_t row_bytes(const Side& side) { return side.head_dim * element_bytes(side); }

  static bool strided(const Side& side) { return side.dim != element_bytes(side); }

  template <class F>
  TAMIS_INLINE static void with_type(DType dtype, const F& f) {
    if (dtype == DType::kF32)
      f(F32{});
    else if (dtype == DType::kBF16)
      f(BF16{});
    else
      f(F16{});
  }

  // Copies the rows to `to` as f32 and points *columns at the copies. Columns with a number that is not
  // finite are marked in *bad.
  void widen_rows(const Side& side, Columns* columns, float* to, int64_t stride, const char** rows,
                  uint64_t* bad) {
    for (int c = 0; c < columns->count; ++c) {
      if (c < columns->next_count) prefetch_row(columns->next[c], columns->next_bytes);
      float* row = to + c * stride;
      if (strided(side)) {
        for (int64_t d = 0; d < stride; ++d)
          row[d] = d < side.head_dim ? element(side.dtype, columns->row[c] + d * side.dim) : 0;
      } else {
        with_type(side.dtype, [&](auto type) {
          constexpr int kBytes = decltype(type)::kBytes;
          int64_t d = 0;
          for (; d + W <= side.head_dim; d += W) store(row + d, widen(type, columns->row[c] + d * kBytes));
          if (d < side.head_dim)
            store(row + d,
                  widen_some(type, columns->row[c] + d * kBytes, static_cast<int>(side.head_dim - d)));
        });
      }
      if (bad != nullptr && !finite(row, side.head_dim)) *bad |= uint64_t{1} << c;
    }
    for (int c = 0; c < round_up(columns->count, 4); ++c)
      rows[c] = reinterpret_cast<const char*>(to + (c < columns->count ? c : columns->count - 1) * stride);
    *columns = {rows, columns->count, nullptr, 0, 0, 0};
  }

  // Rows are zero up to a multiple of W.
  static bool finite(const float* row, int64_t dim) {
    Vec zero = {};
    for (int64_t d = 0; d < dim; d += W) {
      const Vec x = load(row + d);
      zero += x - x;  // 0, or NaN once anything is Inf or NaN
    }
    return sum(zero) == 0;
  }

  template <class T>
  void score_all(T type, Columns k) {
    int r = 0;
    for (; r + kRows <= a_.rows; r += kRows) {
      scores<kRows>(type, a_.q + r * a_.q_stride, a_.q_stride, k, a_.k.head_dim, s_ + r * kTile);
      k.next_count = 0;
    }
    for (; r < a_.rows; ++r) {
      scores<1>(type, a_.q + r * a_.q_stride, a_.q_stride, k, a_.k.head_dim, s_ + r * kTile);
      k.next_count = 0;
    }
  }

  // Scores of one row to weights relative to its running maximum; updates m and l and leaves in scale_ what O
  // is to be multiplied with.
  void weights(const Tile& tile, uint64_t selected, int r) {
    float* s = s_ + r * kTile;
    const int columns = tile.columns;
    Vec top = splat(-INFINITY);
    for (int c = 0; c < columns; c += W) {
      const Vec x = final_score(load(s + c), tile, r, c);
      const uint32_t in_tile = columns - c >= W ? ~0u : (1u << (columns - c)) - 1;
      const Vec masked = select(lanes(static_cast<uint32_t>(selected >> c) & in_tile), x, splat(-INFINITY));
      store(s + c, masked);
      top = max(masked, top);
    }
    const float old = a_.m[r], m = max_of(max(top, splat(old)));
    if (m == -INFINITY) {
      // No finite score so far: exp(-inf - -inf) would be NaN, so no exponent is taken. Selected scores of
      // -inf weigh nothing beside a finite one, in this tile or another; l = 1 remembers that the set is not
      // empty. A NaN score makes the row NaN.
      const uint64_t here = selected & (~uint64_t{0} >> (kTile - columns));
      bool nan = false;
      for (int c = 0; c < columns; ++c) nan = nan || ((here >> c & 1) != 0 && s[c] != s[c]);
      for (int c = 0; c < columns; c += W)
        store(s + c, select(lanes(nan ? static_cast<uint32_t>(here >> c) : 0), splat(NAN), Vec{}));
      if (here != 0) a_.l[r] = nan ? NAN : a_.l[r] + (a_.l[r] == 0 ? 1.f : 0.f);
      scale_[r] = 1;
      return;
    }
    Vec sum_of = {};
    for (int c = 0; c < columns; c += W) {
      const Vec p = exp_negative(load(s + c) - m);
      store(s + c, p);
      sum_of += p;
    }
    scale_[r] = old == -INFINITY ? 0 : old == m ? 1 : exp_negative(splat(old - m))[0];
    a_.m[r] = m;
    a_.l[r] = a_.l[r] * scale_[r] + sum(sum_of);
  }

  TAMIS_INLINE Vec final_score(Vec dot, const Tile& tile, int r, int c) const {
    Vec x = dot * a_.score.scale;
    if (a_.score.softcap > 0) x = a_.score.softcap * tanh(x / a_.score.softcap);
    if (a_.score.slopes == nullptr || a_.score.slopes[r] == 0) return x;
    IntVec at;
    memcpy(&at, tile.position + c, sizeof at);
    const Vec distance = __builtin_convertvector(at - static_cast<int32_t>(a_.score.positions[r]), Vec);
    return x - a_.score.slopes[r] * (distance < 0.f ? -distance : distance);
  }

  template <class T>
  void weigh_all(T type, Columns v, const Tile& tile, uint64_t bad) {
    if (bad != 0) return weigh_selected(v, tile, bad);
    int r = 0;
    for (; r + kRows <= a_.rows; r += kRows) {
      weigh<kRows>(type, s_ + r * kTile, v, a_.v.head_dim, scale_ + r, a_.o + r * a_.v.head_dim);
      v.next_count = 0;
    }
    for (; r < a_.rows; ++r) {
      weigh<1>(type, s_ + r * kTile, v, a_.v.head_dim, scale_ + r, a_.o + r * a_.v.head_dim);
      v.next_count = 0;
    }
  }

  // Some V row is not finite: rows that did not select it must not even multiply it by 0. Each row gets its
  // own list of columns; V is f32 here.
  void weigh_selected(const Columns& v, const Tile& tile, uint64_t bad) {
    for (int g = 0; g < a_.group_count; ++g) {
      const char* rows[kTile];
      int count = 0;
      for (uint64_t bits = tile.bits[g]; bits != 0; bits &= bits - 1)
        rows[count++] = v.row[__builtin_ctzll(bits)];
      const Columns own{rows, count, nullptr, 0, 0, 0};
      for (int r = a_.groups[g].first; r < a_.groups[g].first + a_.groups[g].rows; ++r) {
        float p[kTile];
        int at = 0;
        for (uint64_t bits = tile.bits[g]; bits != 0; bits &= bits - 1)
          p[at++] = s_[r * kTile + __builtin_ctzll(bits)];
        weigh<1>(F32{}, p, own, a_.v.head_dim, scale_ + r, a_.o + r * a_.v.head_dim);
        counts_.rows_redone += (bad & ~tile.bits[g]) != 0;
      }
    }
  }

  const AttendArgs& a_;
  AttendCounts& counts_;
  const int64_t k_stride_, v_stride_;  // floats
  float* const s_;                     // [kRowChunk, kTile] scores, then weights
  float* const wide_k_;                // [kTile, k_stride_]
  float* const wide_v_;                // [kTile, v_stride_]
  float scale_[kRowChunk];
};

inline void attend(const AttendArgs& args, AttendCounts* counts) { Attention(args, counts).run(); }

}  // namespace tamis::cpu::TAMIS_ISA
