// Where the tokens of a tile lie, each looked up by itself: for tiles that tokens.cuh brings in.
#pragma once

#include "kernels/cuda/prefill/config.cuh"

namespace tamis::cuda {

template <class C>
class Lookup {
 public:
  using Note = TileNote<C::kKeys>;

  __device__ explicit Lookup(const PrefillArgs& args) : a_(args.step) {}

  // From a note that says what is seen to one that says where it is. A token whose page is none by now counts
  // as one that nobody sees and no list has. Returns how many tokens there are to bring.
  __device__ int32_t look_up(const PrefillItem& item, Note& note) const {
    constexpr int kMine = C::kKeys / 32;
    int32_t page[kMine];
#pragma unroll
    for (int i = 0; i < kMine; ++i) page[i] = page_of(item, note, 32 * i + lane());
    int32_t count = 0;
    bool lost = false;
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const bool here = page[i] >= 0 && (a_.pages.table == nullptr || page[i] < a_.pages.pages);
      lost = lost || (page[i] != kUnseen && !here);
      set_place(item, note, 32 * i + lane(), here ? page[i] : -1);
      const uint32_t all = __ballot_sync(~0u, here);
      count += __popc(all);
      if (lane() < 2) note.seen[2 * i + lane()] = static_cast<uint16_t>(all >> (16 * lane()));
    }
    if (__any_sync(~0u, lost)) drop_unseen(item, note);
    return count;
  }

 private:
  static constexpr int32_t kUnseen = -0x7FFFFFFF - 1;

  static __device__ int lane() { return static_cast<int>(threadIdx.x % 32); }

  __device__ int32_t logical_page(int32_t token) const {
    return quotient(static_cast<uint32_t>(token), a_.pages.log2_page, a_.pages.page_size);
  }

  // Not judged yet, so that several answers can be under way.
  __device__ int32_t page_of(const PrefillItem& item, const Note& note, int c) const {
    if ((note.seen[c / 16] >> (c % 16) & 1) == 0) return kUnseen;
    if (a_.pages.table == nullptr) return 0;
    const int32_t logical = logical_page(note.base[c / 16] + c % 16);
    // An entry that looks like kUnseen is no page either.
    return max(a_.pages.table[item.group.request * a_.pages.table_stride + logical], -1);
  }

  __device__ void set_place(const PrefillItem& item, Note& note, int c, int32_t page) const {
    int64_t k = kNoPlace, v = kNoPlace;
    if (page >= 0) {
      int32_t token = note.base[c / 16] + c % 16;
      token = a_.pages.table == nullptr
                  ? item.group.base_slot + token
                  : token - logical_page(token) * static_cast<int32_t>(a_.pages.page_size);
      k = page * a_.k.page + token * a_.k.token;
      v = page * a_.v.page + token * a_.v.token;
    }
    note.k_at[c] = k;
    note.v_at[c] = v;
  }

  // Lists are cut as well, since rows of any sight may have them.
  __device__ void drop_unseen(const PrefillItem& item, Note& note) const {
    __syncwarp();
    note.masked = true;
    for (int i = lane(); i < item.lists * Note::kGroups; i += 32)
      note.listed[i / Note::kGroups][i % Note::kGroups] &= note.seen[i % Note::kGroups];
  }

  const DecodeArgs& a_;
};

}  // namespace tamis::cuda
