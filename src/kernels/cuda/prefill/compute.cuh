// A computing warpgroup: S = Q K^T, softmax, O += P V over the tiles of one row tile after another. The
// scores of a tile are under way while the values of the tile before are, and the results of a row tile are
// stored while the first scores of the next one are.
#pragma once

#include "kernels/cuda/prefill/store.cuh"

namespace tamis::cuda {

template <class C>
class Compute {
 public:
  using T = typename C::T;
  using Weights = typename Softmax<C>::Weights;

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

  __device__ void run() {
    Weights even, odd;
    if (group_ == 1) pass_turn();
    while (next_item()) {
      first_tile(even);
      while (step(even, odd)) {
        if (!step(odd, even)) {
#pragma unroll
          for (int i = 0; i < C::kKeys / 4; ++i) even[i] = odd[i];
          break;
        }
      }
      last_values(even);
      if (kFlowing) return;  // step() has gone from item to item
    }
  }

 private:
  static constexpr uint32_t kGroupBytes = 64 * C::kDim * 2;
  // A row tile is stored when the next one has begun. With one slot for query rows it cannot begin.
  static constexpr bool kFlowing = C::kSlots > 1;

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

  // Goes on to the next row tile; false where there is none.
  __device__ bool next_item() {
    if (next_tiles_ < 0) wait_for_item(tile_);
    ++item_.count;
    left_ = tiles_ = next_tiles_;
    next_tiles_ = -1;
    return tiles_ > 0;
  }
  // Waits for the next row tile, its queries and first keys. next_tiles_ is 0 where there is none.
  __device__ void wait_for_item(const Turn<C::kStages>& tile) {
    const Turn<C::kSlots> next{item_.count + 1};
    device::barrier_wait(device::shared_address(&s_.item_full[next.at()]), next.parity());
    const PrefillItem& item = s_.items[next.at()];
    next_tiles_ = item.task.bundle < 0 ? 0 : item.tiles;
    if (next_tiles_ == 0) return;
    device::barrier_wait(device::shared_address(&s_.q_full[next.at()]), next.parity());
    wait_for_keys(tile);
  }
  __device__ void wait_for_keys(const Turn<C::kStages>& tile) {
    device::barrier_wait(device::shared_address(&s_.k_full[tile.at()]), tile.parity());
  }

  // Before the softmax, so that nothing has to be waited for behind it. may_end: the next row tile may be
  // waited for, too.
  __device__ void wait_for_next_keys(bool may_end) {
    const Turn<C::kStages> next{tile_.count + 1};
    if (left_ > 1) [[likely]]
      wait_for_keys(next);
    else if (may_end)
      wait_for_item(next);
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

  // Of the tile before.
  __device__ void issue_values(const Weights& p) {
    device::barrier_wait(device::shared_address(&s_.v_full[before().at()]), before().parity());
    device::products_fence();
    const uint64_t v = device::further(v_, before().at() * C::kTileBytes);
#pragma unroll
    for (int i = 0; i < C::kKeys / 16; ++i)
#pragma unroll
      for (int part = 0; part < C::kParts; ++part)
        device::multiply_rs(T{}, sums_[part], p + 4 * i,
                            device::further(v, part * 2 * 1024 + i * 2 * C::kHalves * 1024),
                            i > 0 || !is_first(1));
    device::products_commit();
  }
  __device__ void values_done() {
#pragma unroll
    for (int part = 0; part < C::kParts; ++part) device::settle(sums_[part]);
  }
  // Values that step() has finished with are released once the next products are under way. Of the tile
  // `ago` tiles ago.
  __device__ void release_values(uint32_t ago) {
    release(&s_.v_empty[Turn<C::kStages>{tile_.count - ago}.at()]);
  }
  __device__ bool owes_values() const { return kFlowing ? tile_.count > 1 : !is_first(1); }
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

  // Whether the tile, or that `ago` tiles ago, is the first of its row tile.
  __device__ bool is_first(int32_t ago = 0) const { return left_ == tiles_ - ago; }

  // Scores to weights. False, with `factor`, where what was summed before has to be scaled. plain: of a tile
  // that is neither masked nor a row tile's first.
  __device__ bool weigh(Weights& p, bool plain, bool masked, float (&factor)[2]) {
    factor[0] = factor[1] = 1;  // set at any rate, or registers spill
    const bool first = is_first();
    if (!C::kBent && plain) [[likely]] {
      rows_.any = 3;
      if (softmax_.add(scores_, p, rows_)) return true;
    } else {
      if (first) rows_ = {{-INFINITY, -INFINITY}, {0, 0}, 0};
      softmax_.prepare(s_.notes[tile_.count % kNotes], masked, s_.items[item_.at()], rows_of(item_), scores_,
                       rows_);
      if (!first && softmax_.add(scores_, p, rows_)) return true;
    }
    softmax_.add_raised(scores_, p, rows_, rows_of(item_), factor);
    return first;
  }
  __device__ void advance() {
    tile_.advance();
    --left_;
  }
  __device__ bool masked() const { return s_.notes[tile_.count % kNotes].masked; }

  __device__ void first_tile(Weights& p) {
    issue_scores();
    const bool masked_here = masked();
    device::products_wait<0>();
    scores_done();
    wait_for_next_keys(false);
    float factor[2];
    weigh(p, false, masked_here, factor);
    advance();
  }

  // Scores and weights of the next tile, values of the one before; false, with those values still to come,
  // where there is no next tile.
  __device__ bool step(const Weights& p, Weights& next) {
    if (left_ == 0 && (!kFlowing || !next_item())) return false;
    wait_for_turn();
    issue_scores();
    if (owes_values()) release_values(2);
    const bool stores = kFlowing && is_first(1) && item_.count > 0;
    if (stores) [[unlikely]] {
      pass_turn();  // the other warpgroup's products may well be done meanwhile
      store_rows(Turn<C::kSlots>{item_.count - 1});
    }
    issue_values(p);
    if (!stores) [[likely]]
      pass_turn();
    if (is_first()) [[unlikely]]
      end_row(Turn<C::kSlots>{item_.count - 1});
    const bool masked_here = masked(), plain = !masked_here && !is_first();
    device::products_wait<1>();
    scores_done();
    wait_for_next_keys(kFlowing && !stores);  // its slot may be the one that is not free yet
    float factor[2];
    const bool held = weigh(next, plain, masked_here, factor);
    device::products_wait<0>();  // a product that is under way across the loop's edge serializes all
    values_done();
    if (!held) [[unlikely]]
      scale(factor);
    if (stores) [[unlikely]]
      free_slot(Turn<C::kSlots>{item_.count - 1});
    advance();
    return true;
  }

  __device__ void last_values(const Weights& p) {
    issue_values(p);
    if (owes_values()) release_values(2);
    device::products_wait<0>();
    values_done();
    release_values(1);
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
  Turn<C::kSlots> item_{~0u};     // counts row tiles
  Turn<C::kStages> tile_;         // counts tiles of keys, over all row tiles
  int32_t tiles_ = 0, left_ = 0;  // of this row tile
  int32_t next_tiles_ = -1;       // of the next one, where it has been waited for
};

}  // namespace tamis::cuda
