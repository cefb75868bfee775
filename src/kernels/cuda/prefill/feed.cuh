// Finds out where blocks lie and who sees them, and leaves that in each tile's note for the others: the work
// of one warp. Two more have the copy engine bring keys and values. With `tokens` the notes tell where each
// token lies, and tokens.cuh brings both.
#pragma once

#include "kernels/cuda/prefill/lookup.cuh"

namespace tamis::cuda {

template <class C>
class Feeder {
 public:
  static constexpr int kGroups = C::kKeys / 16;
  using Note = TileNote<C::kKeys>;

  __device__ Feeder(const PrefillArgs& args, typename C::Shared& shared) : a_(args), s_(shared) {}

  __device__ void run_notes() {
    Turn<C::kSlots> slot;
    Turn<kNotes> note;
    for (;; slot.advance()) {
      device::barrier_wait(device::shared_address(&s_.item_full[slot.at()]), slot.parity());
      const PrefillItem& item = s_.items[slot.at()];
      if (item.tiles == 0) return;
      Place now = ask(item, 0);
      for (int32_t t = 0; t < item.tiles; ++t, note.advance()) {
        device::barrier_wait(device::shared_address(&s_.note_empty[note.at()]), note.parity() ^ 1);
        const Place next = ask(item, t + 1);
        settle(item, &now);
        Note& n = s_.notes[note.at()];
        write_note(item, t, now, &n);
        __syncwarp();
        if (a_.step.tokens) count_tokens(Lookup<C>(a_).look_up(item, n));
        __syncwarp();
        arrive(&s_.note_full[note.at()]);
        now = next;
      }
      count(item);
      __syncwarp();
      arrive(&s_.slot_empty[slot.at()]);
    }
  }

  // Of one warp: keys, or values.
  template <bool kOfKeys>
  __device__ void run_boxes() {
    Turn<C::kSlots> slot;
    Turn<C::kStages> stage;
    Turn<kNotes> note;
    uint32_t landed = 0;  // bit: the parity of a stage's barrier for values that have holes
    for (;; slot.advance()) {
      device::barrier_wait(device::shared_address(&s_.item_full[slot.at()]), slot.parity());
      const PrefillItem& item = s_.items[slot.at()];
      if (item.tiles == 0) {
        if (kOfKeys) end_keys<C>(s_, stage);
        return;
      }
      for (int32_t t = 0; t < item.tiles; ++t, stage.advance(), note.advance()) {
        device::barrier_wait(device::shared_address(&s_.note_full[note.at()]), note.parity());
        const Note& n = s_.notes[note.at()];
        const bool holes = !kOfKeys && n.holes;
        // A lane a block, read while the place is not free yet.
        const int32_t block = min(lane(), blocks() - 1), page = n.page[block], token = n.token[block];
        uint64_t* full = (kOfKeys ? s_.k_full : s_.v_full) + stage.at();
        const uint32_t to = device::shared_address((kOfKeys ? s_.k : s_.v)[stage.at()]);
        device::barrier_wait(device::shared_address((kOfKeys ? s_.k_empty : s_.v_empty) + stage.at()),
                             stage.parity() ^ 1);
        if (kOfKeys) release_note(s_, note);
        uint64_t* barrier = holes ? &s_.v_landed[stage.at()] : full;
        arrive_and_expect(barrier, C::kTileBytes);
        __syncwarp();
        copy(kOfKeys ? a_.k : a_.v, item, page, token, to, device::shared_address(barrier));
        if (!holes) continue;
        device::barrier_wait(device::shared_address(barrier), landed >> stage.at() & 1);
        landed ^= 1u << stage.at();
        fill_holes(n, to);
        device::fence_async();
        __syncwarp();
        arrive(full);
      }
      __syncwarp();
      arrive(&s_.slot_empty[slot.at()]);
    }
  }

 private:
  static __device__ int lane() { return static_cast<int>(threadIdx.x % 32); }

  // Lane i knows block i % blocks of a tile, and of its lists every (32 / blocks)-th from i / blocks on.
  struct Place {
    int32_t block, page, token;  // block -1: there is none. page -1: nobody sees it; with tokens 0
    uint64_t word;               // of the first of the lane's lists
  };

  __device__ int log2_blocks() const { return (C::kKeys == 128 ? 7 : 6) - a_.step.log2_block; }
  __device__ int32_t blocks() const { return 1 << log2_blocks(); }
  __device__ int32_t block_here() const { return lane() & (blocks() - 1); }
  __device__ int32_t list_here() const { return lane() >> log2_blocks(); }
  __device__ int32_t lists_at_once() const { return 32 >> log2_blocks(); }

  // Asks for what says where the lane's block of tile t lies; nothing waits for the answers yet.
  __device__ Place ask(const PrefillItem& item, int32_t t) const {
    Place p{-1, -1, 0, 0};
    const int32_t at = t * blocks() + block_here();
    if (at >= item.task.end - item.task.begin) return p;
    if (a_.step.every_token) {
      p.block = item.task.begin + at;
      p.page = 0;
      p.word = ~uint64_t{0};
      return p;
    }
    const int64_t entry = item.entry + at;
    p.block = a_.step.index.blocks[entry];
    p.page = a_.step.tokens ? 0 : static_cast<int32_t>(a_.step.index.places[entry]);
    // Lanes that no list is left for take the last one: of a single list all know all.
    p.word =
        a_.step.index.members[entry * a_.step.index.lists + item.list + min(list_here(), item.lists - 1)];
    return p;
  }

  // From what was asked for to a page and a token of it.
  __device__ void settle(const PrefillItem& item, Place* p) const {
    if (a_.step.tokens || p->block < 0 || p->page == -1) return;
    const int32_t first = p->block << a_.step.log2_block;
    const DecodePages& pages = a_.step.pages;
    if (pages.table == nullptr) {
      p->page = 0;
      p->token = item.group.base_slot + first;
    } else if (a_.step.every_token) {
      const int32_t logical = quotient(static_cast<uint32_t>(first), pages.log2_page, pages.page_size);
      const int32_t page = pages.table[item.group.request * pages.table_stride + logical];
      p->page = page >= 0 && page < pages.pages ? page : -1;
      p->token = first - logical * static_cast<int32_t>(pages.page_size);
    } else {
      const uint32_t place = static_cast<uint32_t>(p->page);
      p->page = quotient(place, pages.log2_blocks, pages.blocks_a_page);
      p->token = static_cast<int32_t>(
          (place - static_cast<uint32_t>(p->page) * static_cast<uint32_t>(pages.blocks_a_page))
          << a_.step.log2_block);
    }
  }

  __device__ void write_note(const PrefillItem& item, int32_t t, const Place& p, Note* note) const {
    const int32_t size = 1 << a_.step.log2_block, groups = size / 16, first_group = block_here() * groups;
    const bool here = p.block >= 0 && p.page >= 0;
    const int32_t base = here ? p.block << a_.step.log2_block : kNowhere;
    const uint64_t whole = word_mask(size);
    const auto keep = [&](int32_t l, uint64_t word) {
      for (int32_t g = 0; g < groups; ++g)
        note->listed[l][first_group + g] = static_cast<uint16_t>(word >> (16 * g));
    };
    uint64_t listed = here ? p.word : 0;            // by some list of the lane's
    bool full = here && (p.word & whole) == whole;  // by all of them
    for (int32_t l = list_here(); item.lists > 1 && l < item.lists; l += lists_at_once()) {
      uint64_t word = 0;
      if (here)
        word = l == list_here() || a_.step.every_token
                   ? p.word
                   : a_.step.index.members[(item.entry + t * blocks() + block_here()) * a_.step.index.lists +
                                           item.list + l];
      listed |= word;
      full = full && (word & whole) == whole;
      keep(l, word);
    }
    for (int d = blocks(); a_.step.index.lists > 1 && d < 32; d <<= 1) {
      listed |= __shfl_xor_sync(~0u, listed, d);
      full = static_cast<bool>(__shfl_xor_sync(~0u, static_cast<int>(full), d)) && full;
    }
    const int32_t last = base + size;
    const bool plain = here && ((full && last <= item.end) || last <= item.sink_end ||
                                (base >= item.window_begin && last <= item.window_end));
    const bool masked = __any_sync(~0u, !plain);
    const uint64_t seen = !masked ? whole : here ? seen_of(item.seen, listed, base, size) : 0;
    // V of a request's own tokens is taken to be numbers, whether or not rows see it: where it is not, they
    // are summed again. What lies behind the last token may be anything. Both CTAs of a pair, which bring
    // values in by the same barrier, have one request.
    const bool holes = __any_sync(~0u, here && last > item.group.kv_len);
    const bool ends = __any_sync(~0u, here && last > item.end);
    const bool adds = __any_sync(~0u, here && (item.seen.sink_end > base || (item.seen.window_begin < last &&
                                                                             item.seen.window_end > base)));
    if (lane() == 0) {
      note->masked = masked;
      note->holes = holes;
      note->ends = ends;
      note->adds = adds;
    }
    if (list_here() != 0) return;
    note->page[block_here()] = here ? p.page : -1;
    note->token[block_here()] = p.token;
    if (!C::kBent && !masked && !holes && !a_.step.tokens) return;  // nobody asks who sees what
    if (item.lists == 1) keep(0, listed);
    for (int32_t g = 0; g < groups; ++g) {
      note->base[first_group + g] = base == kNowhere ? kNowhere : base + 16 * g;
      note->seen[first_group + g] = here || a_.step.tokens ? static_cast<uint16_t>(seen >> (16 * g)) : 0xFFFF;
    }
  }

  static __device__ uint64_t seen_of(const Seen& s, uint64_t listed, int32_t base, int32_t size) {
    return (listed & token_range(0, s.end, base, size)) | token_range(0, s.sink_end, base, size) |
           token_range(s.window_begin, s.window_end, base, size);
  }

  // The boxes of a tile: a lane a block, which lies there. Of a pair, each CTA sees to every other block, for
  // both.
  __device__ void copy(const PrefillSide& side, const PrefillItem& item, int32_t page, int32_t token,
                       uint32_t to, uint32_t barrier) const {
    if (lane() >= blocks()) return;
    if (C::kPair > 1 && lane() % 2 != static_cast<int>(device::cluster_rank())) return;
    const int32_t size = 1 << a_.step.log2_block;
    const int32_t at = page < 0 ? side.outside : page * side.page_apart + item.group.kv_head;
    const uint32_t from_here = to + lane() * size * C::kDim * 2;
    if (a_.kv_rows == 0 || page < 0 || token + size <= a_.kv_rows) {
      bring(from_here, side.block, barrier, token, at);
      return;
    }
    for (int32_t g = 0; g < size / 8; ++g)
      bring(from_here + g * 8 * C::kDim * 2, side.group, barrier, token + g * 8, at);
  }
  __device__ void bring(uint32_t to, const device::TensorMap& map, uint32_t barrier, int32_t token,
                        int32_t at) const {
    if (C::kPair > 1)
      device::copy_box_to_both(to, map, barrier, 0, token, 0, 0, at);
    else
      device::copy_box(to, map, barrier, 0, token, 0, 0, at);
  }

  // Values behind a request's last token may be anything, and 0 times NaN is NaN: zeros instead, for all that
  // no row sees. Lines are whole, so how pieces are permuted does not matter.
  __device__ void fill_holes(const Note& note, uint32_t to) const {
    const auto* seen = reinterpret_cast<const uint32_t*>(note.seen);
    const uint32_t here = to + lane() / 8 % 4 * 128 + lane() % 8 * 16;  // of columns 0 to 3
#pragma unroll
    for (int w = 0; w < C::kKeys / 32; ++w) {
      const uint32_t holes = ~seen[w] >> (lane() / 8);
#pragma unroll
      for (int i = 0; i < 32; i += 4)
        if (holes >> i & 1) {
#pragma unroll
          for (int h = 0; h < C::kHalves; ++h)
            device::store_piece(here + (w * 32 + i) / 8 * (8 * C::kDim * 2) + i % 8 * 128 + h * 1024,
                                make_uint4(0, 0, 0, 0));
        }
    }
  }

  __device__ void count(const PrefillItem& item) const {
    StepCounters* counters = a_.step.counters;
    if (counters == nullptr || lane() != 0 || item.group.columns <= 0) return;
    atomicAdd(&counters->tasks, 1ull);
    atomicAdd(&counters->tiles, static_cast<unsigned long long>(item.tiles * (C::kKeys / 64)));
    if (!a_.step.tokens) count_tokens(int64_t{item.task.end - item.task.begin} << a_.step.log2_block);
  }
  __device__ void count_tokens(int64_t tokens) const {
    if (a_.step.counters != nullptr && lane() == 0)
      atomicAdd(&a_.step.counters->tokens_loaded, static_cast<unsigned long long>(tokens));
  }

  const PrefillArgs& a_;
  typename C::Shared& s_;
};

}  // namespace tamis::cuda
