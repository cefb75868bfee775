// Brings keys or values in token by token, for caches that boxes do not fit: the threads of a warp copy 16
// bytes each. What no row sees is not read, and is zeros in the tile.
#pragma once

#include "kernels/cuda/prefill/config.cuh"

namespace tamis::cuda {

template <class C>
class TokenFeeder {
 public:
  __device__ TokenFeeder(const PrefillArgs& args, typename C::Shared& shared)
      : a_(args.step), s_(shared), lane_(static_cast<int>(threadIdx.x % 32)) {}

  // Of one warp: keys, or values.
  __device__ void run(bool keys) {
    Turn<C::kSlots> slot;
    Turn<C::kStages> stage;
    Turn<kNotes> note;
    for (;; slot.advance()) {
      wait(&s_.item_full[slot.at()], slot.parity());
      const PrefillItem& item = s_.items[slot.at()];
      if (item.tiles == 0) break;
      const DecodeSide& side = keys ? a_.k : a_.v;
      const char* head = side.data + item.group.kv_head * side.head;
      for (int32_t tiles = item.tiles; tiles > 0; --tiles, stage.advance(), note.advance()) {
        wait(&s_.note_full[note.at()], note.parity());
        wait(keys ? &s_.k_empty[stage.at()] : &s_.v_empty[stage.at()], stage.parity() ^ 1);
        if (keys) release_note(s_, note);
        const auto& n = s_.notes[note.at()];
        copy(head, side.dim, keys ? n.k_at : n.v_at,
             device::shared_address(keys ? s_.k[stage.at()] : s_.v[stage.at()]));
        device::copy_commit();
        if (under_way_ != nullptr) hand_over<1>();
        under_way_ = keys ? &s_.k_full[stage.at()] : &s_.v_full[stage.at()];
      }
      __syncwarp();
      arrive(&s_.slot_empty[slot.at()]);
    }
    if (under_way_ != nullptr) hand_over<0>();
    if (keys) end_keys<C>(s_, stage);
  }

 private:
  // Lines and pieces lie as the copy engine puts them. Eight lanes a token, for all of its halves.
  __device__ void copy(const char* head, int32_t dim, const int64_t* places, uint32_t to) const {
    const int row = lane_ / 8, piece = lane_ % 8;
    const uint32_t line = to + row * 128 + ((piece ^ row) << 4);
    head += piece * 16;
#pragma unroll 4
    for (int i = 0; i < C::kKeys / 4; ++i) {
      const int64_t place = places[4 * i + row];
      const bool here = place != kNoPlace;
      const char* from = head + (here ? place : 0);
      const uint32_t at = (line ^ (i % 2 * 64)) + i % 2 * 512 + i / 2 * (8 * C::kDim * 2);
#pragma unroll
      for (int h = 0; h < C::kHalves; ++h)
        device::copy_async(at + h * 1024, from + h * 128, here && h * 64 + piece * 8 < dim ? 16 : 0);
    }
  }

  // What is under way is handed over before anything that takes time: others may be waiting for it, and this
  // warp for them.
  __device__ void wait(const uint64_t* barrier, uint32_t parity) {
    const uint32_t address = device::shared_address(barrier);
    if (under_way_ != nullptr && !__all_sync(~0u, device::barrier_is_over(address, parity))) hand_over<0>();
    device::barrier_wait(address, parity);
  }

  // All but the last kLater tiles have landed: the products may see the one under way.
  template <int kLater>
  __device__ void hand_over() {
    device::copy_wait<kLater>();
    device::fence_async();
    __syncwarp();
    arrive(under_way_);
    under_way_ = nullptr;
  }

  const DecodeArgs& a_;
  typename C::Shared& s_;
  const int lane_;
  uint64_t* under_way_ = nullptr;  // the barrier of a tile whose copies are
};

}  // namespace tamis::cuda
