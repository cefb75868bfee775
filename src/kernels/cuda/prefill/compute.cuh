// A computing warpgroup: S = Q K^T, softmax, O += P V over the tiles of one row tile after another. The
// scores of a tile are under way while the values of the tile before are, and the results of a row tile are
// stored while the second scores of the next one are.
#pragma once

#include "kernels/cuda/prefill/store.cuh"

namespace tamis::cuda {

template <class C>
class Compute {
 public:
  using T = typename C::T;
  using Weights = typename Softmax<C>::Weights;
  using Sights = typename Softmax<C>::Sights;

  // group: which of the two. It comes from a shuffle, so that the compiler knows it to be the same in all
  // threads of a warp, and the products' operands need no vector registers.
  __device__ Compute(const PrefillArgs& args, typename C::Shared& shared, int group)
      : s_(shared),
        softmax_(args),
        store_(args),
        lane_(static_cast<int>(threadIdx.x % 32)),
        warp_(static_cast<int>(threadIdx.x / 32) - 4),
        group_(group),
        q_(device::matrix(device::shared_address(shared.q[0]) + static_cast<uint32_t>(group) * kGroupBytes,
                          16, 1024)),
        k_(device::matrix(device::shared_address(shared.k[0]), 16, C::kHalves * 1024)),
        v_(device::matrix(device::shared_address(shared.v[0]), 1024, C::kHalves * 1024)) {}

  // The weights of a tile are always in `even` but for a loop of two tiles: registers are copied from the
  // other ones, since what products read may not move.
  __device__ void run() {
    Weights even, odd;
    if (group_ == 1) pass_turn();
    while (next_item()) {
      first_tile(even);
      for (;;) {
        if (kFlowing || left_ > 0) {
          step<Kind::kSecond>(even, odd);
          copy(odd, even);
        }
        middle(even, odd);
        if (!kFlowing || !next_item()) break;
        step<Kind::kFirst>(even, odd);
        copy(odd, even);
      }
      last_values(even);
      if (kFlowing) return;  // it has gone from item to item
    }
  }

 private:
  static constexpr uint32_t kGroupBytes = 64 * C::kDim * 2;
  // A row tile is stored when the next one has begun. With one slot for query rows it cannot begin.
  static constexpr bool kFlowing = C::kSlots > 1;

  // Of a tile of keys: the first of its row tile, beside which the values of the row tile before end; the
  // second, before which that one's results are handed over; those behind it, whether all rows see them whole
  // or not.
  enum class Kind { kFirst, kSecond, kPlain, kMasked };

  // The tiles behind the second. Each kind has a loop of its own, so that its code lies together; plain ones,
  // which are most, go by twos.
  __device__ void middle(Weights& even, Weights& odd) {
    while (plain_ || masked_) {
      while (plain_) {
        step<Kind::kPlain>(even, odd);
        if (!plain_) {
          copy(odd, even);
          break;
        }
        step<Kind::kPlain>(odd, even);
      }
      while (masked_) {
        step<Kind::kMasked>(even, odd);
        copy(odd, even);
      }
    }
  }

  // The products of the two warpgroups go by turns, so that one's are under way while the other one makes
  // weights (FlashAttention-3, arXiv 2407.08608, section 3.1).
  __device__ void wait_for_turn() {
    const uint32_t first_tiles = kFlowing ? 1 : item_.count + 1;  // before which nobody waits
    device::barrier_wait(device::shared_address(&s_.turn[group_]), (tile_.count - first_tiles) % 2);
  }
  __device__ void pass_turn() {
    __syncwarp();  // all lanes have had theirs, which may come again before long
    arrive(&s_.turn[1 - group_]);
  }

  // The tile before.
  __device__ Turn<C::kStages> before() const { return Turn<C::kStages>{tile_.count - 1}; }

  // Goes on to the next row tile, and waits for it, its queries and first keys; false where there is none.
  __device__ bool next_item() {
    ++item_.count;
    device::barrier_wait(device::shared_address(&s_.item_full[item_.at()]), item_.parity());
    left_ = tiles_ = __shfl_sync(~0u, s_.items[item_.at()].tiles, 0);
    if (tiles_ == 0) return false;
    device::barrier_wait(device::shared_address(&s_.q_full[item_.at()]), item_.parity());
    wait_for_keys(tile_);
    return true;
  }
  __device__ void wait_for_keys(const Turn<C::kStages>& tile) {
    device::barrier_wait(device::shared_address(&s_.k_full[tile.at()]), tile.parity());
  }
  // Before the softmax, so that nothing has to be waited for behind it. After the last tile of a row tile
  // they are those of the next one, and after all of them nothing (end_keys()). The second tile's results are
  // not handed over yet: a row tile that ends with it has to wait for the next one later.
  template <Kind kKind>
  __device__ void wait_for_next_keys() {
    if ((!kFlowing || kKind == Kind::kSecond) && left_ == 1) return;
    wait_for_keys(Turn<C::kStages>{tile_.count + 1});
    next_masked_ = __any_sync(~0u, s_.notes[(tile_.count + 1) % kNotes].masked);
  }

  // Its keys are there.
  __device__ void issue_scores() {
    device::products_fence();
    const uint64_t q = device::further(q_, item_.at() * C::kQueryBytes),
                   k = device::further(k_, tile_.at() * C::kTileBytes);
#pragma unroll
    for (int i = 0; i < C::kDim / 16; ++i)
      device::multiply_ss(T{}, scores_, device::further(q, i / 4 * C::kLineBytes + i % 4 * 32),
                          device::further(k, i / 4 * 1024 + i % 4 * 32), i > 0);
    device::products_commit();
  }
  __device__ void scores_done() {
    device::settle(scores_);
    __syncwarp();  // the note of the tile before has been read by all lanes
    release(&s_.k_empty[tile_.at()]);
  }

  // Of the tile before. begins: it is the first of its row tile.
  __device__ void issue_values(const Weights& p, bool begins) {
    device::barrier_wait(device::shared_address(&s_.v_full[before().at()]), before().parity());
    device::products_fence();
    const uint64_t v = device::further(v_, before().at() * C::kTileBytes);
#pragma unroll
    for (int i = 0; i < C::kKeys / 16; ++i)
#pragma unroll
      for (int part = 0; part < C::kParts; ++part)
        device::multiply_rs(T{}, sums_[part], p + 4 * i,
                            device::further(v, part * 2 * 1024 + i * 2 * C::kHalves * 1024),
                            i > 0 || !begins);
    device::products_commit();
  }
  // Of the tile `ago` tiles ago.
  __device__ void values_done(uint32_t ago = 2) {
    device::products_wait<0>();
#pragma unroll
    for (int part = 0; part < C::kParts; ++part) device::settle(sums_[part]);
    __syncwarp();  // all lanes have waited
    release(&s_.v_empty[Turn<C::kStages>{tile_.count - ago}.at()]);
  }
  __device__ void scale(const float (&factor)[2]) {
#pragma unroll
    for (int part = 0; part < C::kParts; ++part)
#pragma unroll
      for (int k = 0; k < C::kPart; ++k) sums_[part][k] *= factor[k / 2 % 2];
  }

  // A place of keys or values, in the other CTA of a pair as well.
  __device__ void release(uint64_t* barrier) const {
    if constexpr (C::kPair == 1)
      arrive(barrier);
    else if (lane_ < 2)
      device::barrier_arrive_at(device::shared_address(barrier), static_cast<uint32_t>(lane_));
  }

  // Rows of the warp in a slot.
  __device__ const Column* rows_of(const Turn<C::kSlots>& item) const {
    return s_.rows[item.at()] + warp_ * 16;
  }

  // Scores to weights. False where the m at hand does not serve. first: of its row tile.
  __device__ bool weigh(Weights& p, bool first) {
    return softmax_.add(scores_, p, rows_, first ? Softmax<C>::kLeast : 0);
  }
  // The same by their maxima. factor: for what was summed before, where this is not the first.
  __device__ void raise(Weights& p, bool first, float (&factor)[2]) {
    if (first) rows_.m[0] = rows_.m[1] = -INFINITY;
    softmax_.add_raised(scores_, p, rows_, rows_of(item_), factor);
  }
  __device__ void advance() {
    tile_.advance();
    --left_;
    const bool middle = left_ > 0 && left_ < tiles_ - 1;
    masked_ = middle && (C::kBent || next_masked_);
    plain_ = middle && !masked_;
  }
  static __device__ void copy(const Weights& from, Weights& to) {
#pragma unroll
    for (int i = 0; i < C::kKeys / 4; ++i) to[i] = device::moved(from[i]);
  }

  // The first of all, or with one slot of any row tile.
  __device__ void first_tile(Weights& p) {
    issue_scores();
    rows_ = {{0, 0}, {0, 0}, 0};
    Sights sights;
    const bool masked = look<Kind::kFirst>(sights);
    device::products_wait<0>();
    scores_done();
    wait_for_next_keys<Kind::kSecond>();
    finish_scores(masked, sights);
    advance();
    float factor[2];
    if (!weigh(p, true)) raise(p, true, factor);
  }

  // What rows see, while products are under way; false where all see all.
  template <Kind kKind>
  __device__ bool look(Sights& sights) {
    const typename Softmax<C>::Note& note = s_.notes[tile_.count % kNotes];
    if (kKind == Kind::kPlain || ((C::kBent || kKind != Kind::kMasked) && !note.masked)) {
      rows_.any = 3;
      return false;
    }
    softmax_.look(note, s_.items[item_.at()], rows_of(item_), sights, rows_);
    return true;
  }
  // Scores to their final form but for the scale.
  __device__ void finish_scores(bool masked, const Sights& sights) {
    if constexpr (C::kBent) softmax_.bend(s_.notes[tile_.count % kNotes], rows_of(item_), scores_);
    if (masked) Softmax<C>::mask(sights, scores_);
  }

  // Scores of the next tile and values of the one before under way, as they are asked for in turn, then
  // weights.
  template <Kind kKind>
  __device__ void step(const Weights& p, Weights& next) {
    constexpr bool kBegins = kKind == Kind::kFirst;
    const Turn<C::kSlots> old{item_.count - 1};
    const bool stores = kFlowing && kKind == Kind::kSecond && item_.count > 0;
    wait_for_turn();
    issue_scores();
    if (stores) {
      pass_turn();  // the other warpgroup's products may well be done meanwhile
      store_rows(old);
    }
    issue_values(p, kKind == Kind::kSecond);
    if (!stores) pass_turn();
    if (kBegins) {
      end_row(old);
      rows_ = {{0, 0}, {0, 0}, 0};
    }
    Sights sights;
    const bool masked = look<kKind>(sights);
    device::products_wait<1>();
    scores_done();
    wait_for_next_keys<kKind>();
    finish_scores(masked, sights);
    advance();
    // What is seldom comes before the wait: the branch around it depends on all sums, so that the compiler
    // cannot wait for values before weights are made. One wait for all, since the four warps of the group
    // have to wait in the same place; and here, since products that are under way across the loop's edge
    // serialize.
    float factor[2] = {1, 1};
    const bool held = weigh(next, kBegins);
    if (!held) [[unlikely]]
      raise(next, kBegins, factor);
    values_done();
    if (stores) free_slot(old);
    if (!kBegins && !held) [[unlikely]]
      scale(factor);
  }

  __device__ void last_values(const Weights& p) {
    issue_values(p, tiles_ == 1);
    values_done(1);
    const Turn<C::kSlots> old{kFlowing ? item_.count - 1 : item_.count};
    end_row(old);
    store_rows(old);
    device::boxes_wait();  // shared memory lasts as long as the CTA
    free_slot(old);
  }

  __device__ void end_row(const Turn<C::kSlots>& item) {
    softmax_.finish(rows_, s_.sums[item.at()] + warp_ * 16);
    __syncwarp();
  }

  // What a row tile has come to. The query rows' place takes up the result on its way.
  __device__ void store_rows(const Turn<C::kSlots>& item) {
    char* staging = s_.q[item.at()] + group_ * kGroupBytes + warp_ % 4 * (kBoxRows * 128);
    store_.store(s_.items[item.at()], rows_of(item), s_.sums[item.at()] + warp_ * 16, warp_ * 16, sums_,
                 staging);
  }
  __device__ void free_slot(const Turn<C::kSlots>& item) {
    device::boxes_wait_read();
    __syncwarp();
    arrive(&s_.slot_empty[item.at()]);
  }

  typename C::Shared& s_;
  const Softmax<C> softmax_;
  const Store<C> store_;
  const int lane_, warp_, group_;
  const uint64_t q_, k_, v_;  // what the first slots hold, for the products
  float scores_[C::kKeys / 2], sums_[C::kParts][C::kPart];
  RowSums rows_{};
  Turn<C::kSlots> item_{~0u};            // counts row tiles
  Turn<C::kStages> tile_;                // counts tiles of keys, over all row tiles
  int32_t tiles_ = 0, left_ = 0;         // of this row tile
  bool next_masked_ = false;             // the next tile, where it is one of this row tile
  bool plain_ = false, masked_ = false;  // it is of that kind
};

}  // namespace tamis::cuda
