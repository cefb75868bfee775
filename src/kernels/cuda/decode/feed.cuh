// Brings K and V into a warp's ring, 16 keys a stage. Keys that no column selects are not read: their slots
// hold zeros, so nothing that lies in them can reach a product.
#pragma once

#include "kernels/cuda/decode/columns.cuh"
#include "kernels/cuda/device/ptx.cuh"

namespace tamis::cuda {

inline constexpr int kKeys = 16;    // of a stage: the m of an mma
inline constexpr int kQueue = 256;  // selected tokens a warp keeps in store

enum class Feeding : uint8_t { kBlocks, kTokens, kEither };

// What a stage holds, beside K and V.
struct StageNote {
  int32_t first;            // token of key 0; the others follow where keys are neighbours
  uint32_t live;            // bit k: some column selects key k
  int32_t token[kKeys];     // kTokens
  uint32_t columns[kKeys];  // kMany: bit c: column c selects the key
};

// Tokens waiting to be loaded.
struct TokenQueue {
  int32_t token[kQueue];
  int32_t entry[kQueue];  // kMany: of the member words
};

template <int kDim, int kStages, bool kMany, Feeding kFeeding>
class Feed {
 public:
  static constexpr int kSideBytes = kKeys * kDim * 2, kStageBytes = 2 * kSideBytes;

  // `entries`: where those of the bundle begin.
  __device__ Feed(const DecodeArgs& args, const Group& group, const DeviceTask& task, int64_t entries,
                  const Column* columns, uint32_t ring, StageNote* notes, TokenQueue* queue)
      : a_(args),
        g_(group),
        columns_(columns),
        notes_(notes),
        queue_(queue),
        entries_(entries),
        ring_(ring),
        lane_(static_cast<int>(threadIdx.x % 32)) {
    const int warp = static_cast<int>(threadIdx.x / 32), warps = static_cast<int>(blockDim.x / 32);
    k_ = a_.k.data + g_.kv_head * a_.k.head;
    v_ = a_.v.data + g_.kv_head * a_.v.head;
    if (tokens()) {
      const int32_t n = task.end - task.begin;
      at_ = task.begin + static_cast<int32_t>(int64_t{n} * warp / warps);
      end_ = task.begin + static_cast<int32_t>(int64_t{n} * (warp + 1) / warps);
    } else {
      first_ = task.begin << log2_pieces();
      step_ = warps;
      const int32_t all = (task.end - task.begin) << log2_pieces();
      at_ = warp;
      end_ = all;
    }
    rewind();
  }

  // To the first key: asks for its place and those of the next ones. The columns need not be known.
  __device__ void rewind() {
    queued_ = taken_ = 0;
    next_ = 0;
    next_entry_ = at_;
    if (tokens()) return;
    now_ = piece(0);
    then_ = piece(32);
  }

  // The columns are known from here on; only those of `filter` count.
  __device__ void start(uint32_t filter) {
    filter_ = filter;
    if (!kMany) one_ = columns_[0];
    if (!tokens()) settle(&now_);
  }

  // Starts the loads of the next keys into a stage. False, with nothing started, when there are none. Each
  // call ends one group of copies.
  __device__ bool issue(int stage) {
    const bool found = tokens() ? issue_tokens(stage) : issue_blocks(stage);
    device::copy_commit();
    return found;
  }

  // Zeros behind the head size, which no copy touches.
  __device__ void clear_padding() const {
    if (a_.k.dim == kDim && a_.v.dim == kDim) return;
    for (uint32_t at = static_cast<uint32_t>(lane_) * 16; at < kStages * kStageBytes; at += 32 * 16)
      device::store_piece(ring_ + at, make_uint4(0, 0, 0, 0));
    __syncwarp();
  }

  // 16-byte pieces of a row are permuted by the row, so that a column of eight rows touches every bank once.
  static __device__ uint32_t place_of(int row, int chunk) {
    return static_cast<uint32_t>(row * kDim * 2 + ((chunk ^ (row & 7)) << 4));
  }

  uint32_t loaded = 0;  // keys brought in

 private:
  static constexpr int kLanesOfRow = kDim / 8, kRowsACopy = 32 / kLanesOfRow;

  // Sixteen neighbouring tokens of a block.
  struct Piece {
    int32_t token, entry;  // as asked for: the block
    int32_t page,
        in_page;    // as asked for: the place of the block, the offset in it. Page -1: nothing is touched
    uint64_t word;  // member word of the block
    uint32_t listed = 0;  // settled, one set for all columns: selected keys
  };

  __device__ bool tokens() const {
    return kFeeding == Feeding::kTokens || (kFeeding == Feeding::kEither && a_.tokens);
  }
  __device__ int log2_pieces() const { return a_.log2_block - 4; }

  // Asks for what places this lane's piece of those from `from` on; nothing waits for the answers yet.
  __device__ Piece piece(int32_t from) const {
    Piece p{0, 0, -1, 0, 0};
    const int32_t i = at_ + (from + lane_) * step_;
    if (i >= end_) return p;
    const int32_t at = first_ + i;
    p.entry = at >> log2_pieces();
    p.in_page = (at & ((1 << log2_pieces()) - 1)) * kKeys;
    p.page = 0;
    if (a_.every_token) {
      p.token = p.entry;
      return p;
    }
    p.token = a_.index.blocks[entries_ + p.entry];
    p.page = static_cast<int32_t>(a_.index.places[entries_ + p.entry]);
    if (!kMany) p.word = a_.index.members[entries_ + p.entry];
    return p;
  }

  // From what was asked for to where the keys are and, where all columns share one set, which are selected.
  __device__ void settle(Piece* p) const {
    if (p->page == -1) return;  // also a block that nobody touches
    const int32_t in_block = p->in_page, block = p->token;
    const uint32_t place = static_cast<uint32_t>(p->page);
    p->token = (block << a_.log2_block) + in_block;
    if (a_.pages.table == nullptr) {
      p->page = 0;
      p->in_page = g_.base_slot + p->token;
    } else if (a_.every_token) {
      const int32_t page = quotient(p->token, a_.pages.log2_page, a_.pages.page_size);
      p->page = page_at(page);
      if (p->page == -1) return;
      p->in_page = p->token - page * static_cast<int32_t>(a_.pages.page_size);
    } else {
      p->page = quotient(place, a_.pages.log2_blocks, a_.pages.blocks_a_page);
      const uint32_t block_of_page = place - static_cast<uint32_t>(p->page) * a_.pages.blocks_a_page;
      p->in_page = static_cast<int32_t>(block_of_page << a_.log2_block) + in_block;
    }
    if (kMany) return;
    const auto range = [&](int32_t first, int32_t last) -> uint32_t {
      const int32_t low = max(first - p->token, 0), high = min(last - p->token, kKeys);
      return high <= low ? 0 : (0xFFFFu >> (kKeys - (high - low))) << low;
    };
    const uint32_t listed = a_.every_token ? 0xFFFF : static_cast<uint32_t>(p->word >> in_block) & 0xFFFF;
    p->listed =
        (listed & range(0, one_.end)) | range(0, one_.sink_end) | range(one_.window_begin, one_.window_end);
  }

  // The page of a logical page; -1 where the table has changed to nonsense since it was judged.
  __device__ int32_t page_at(int32_t logical) const {
    const int32_t page = a_.pages.table[g_.request * a_.pages.table_stride + logical];
    return page >= 0 && page < a_.pages.pages ? page : -1;
  }

  __device__ bool issue_blocks(int stage) {
    for (;;) {
      if (at_ + next_ * step_ >= end_) return false;
      const int lane = next_ & 31;
      if (lane == 0 && next_ > 0) {
        now_ = then_;
        settle(&now_);
        then_ = piece(next_ + 32);
      }
      Piece p;
      p.token = __shfl_sync(~0u, now_.token, lane);
      p.page = __shfl_sync(~0u, now_.page, lane);
      p.in_page = __shfl_sync(~0u, now_.in_page, lane);
      p.listed = __shfl_sync(~0u, now_.listed, lane);
      p.entry = kMany ? __shfl_sync(~0u, now_.entry, lane) : 0;
      ++next_;
      if (p.page < 0) continue;
      const uint32_t live = kMany ? select(stage, p) : p.listed;
      if (live == 0) continue;
      if (lane_ == 0) {
        notes_[stage].first = p.token;
        notes_[stage].live = live;
      }
      copy_rows(stage, live, p.page, p.in_page);
      return true;
    }
  }

  // Which keys are selected by some column; lane k < 16 asks for key k.
  __device__ uint32_t select(int stage, const Piece& p) {
    bool any = false;
    if (lane_ < kKeys) {
      const uint32_t columns = columns_of(p.token + lane_, p.entry) & filter_;
      notes_[stage].columns[lane_] = columns;
      any = columns != 0;
    }
    return __ballot_sync(~0u, any);
  }

  __device__ uint32_t columns_of(int32_t token, int32_t entry) const {
    uint32_t columns = 0;
    int32_t list = -1;
    bool listed = a_.every_token;
    for (int32_t c = 0; c < g_.columns; ++c) {
      const Column& column = columns_[c];
      if (column.list != list && !a_.every_token) {
        list = column.list;
        listed = a_.index.members[(entries_ + entry) * a_.index.lists + list] >>
                     (token & ((1 << a_.log2_block) - 1)) &
                 1;
      }
      columns |= static_cast<uint32_t>(column.sees(token, listed)) << c;
    }
    return columns;
  }

  // Neighbouring rows from one place.
  __device__ void copy_rows(int stage, uint32_t live, int32_t page, int32_t in_page) {
    loaded += __popc(live);
    const int row0 = lane_ / kLanesOfRow, chunk = lane_ % kLanesOfRow;
    const char* k = k_ + page * a_.k.page + (in_page + row0) * a_.k.token + chunk * 16;
    const char* v = v_ + page * a_.v.page + (in_page + row0) * a_.v.token + chunk * 16;
    const uint32_t to = ring_ + stage * kStageBytes + place_of(row0, chunk);
    if (live == 0xFFFF && a_.k.dim == kDim && a_.v.dim == kDim) {
#pragma unroll
      for (int i = 0; i < kKeys / kRowsACopy; ++i, k += kRowsACopy * a_.k.token)
        device::copy_async(step(to, i), k);
#pragma unroll
      for (int i = 0; i < kKeys / kRowsACopy; ++i, v += kRowsACopy * a_.v.token)
        device::copy_async(step(to, i) + kSideBytes, v);
      return;
    }
#pragma unroll
    for (int i = 0; i < kKeys / kRowsACopy; ++i) {
      const uint32_t bytes = live >> (i * kRowsACopy + row0) & 1 ? 16 : 0;
      if (chunk * 8 < a_.k.dim) device::copy_async(step(to, i), k + i * kRowsACopy * a_.k.token, bytes);
      if (chunk * 8 < a_.v.dim)
        device::copy_async(step(to, i) + kSideBytes, v + i * kRowsACopy * a_.v.token, bytes);
    }
  }

  // The place of row i * kRowsACopy + row0, from that of row0.
  static __device__ uint32_t step(uint32_t to, int i) {
    return (to + i * kRowsACopy * kDim * 2) ^ ((i * kRowsACopy & 7) << 4);
  }

  // Rows from anywhere; lane k holds where key k is.
  __device__ void gather_rows(int stage, uint32_t live, int32_t page, int32_t in_page) {
    loaded += __popc(live);
    const int row0 = lane_ / kLanesOfRow, chunk = lane_ % kLanesOfRow;
    const uint32_t to = ring_ + stage * kStageBytes + place_of(row0, chunk);
    // What a lane's key is at, from the head's first byte; K and V may differ in strides.
    const int64_t k_at = page * a_.k.page + in_page * a_.k.token,
                  v_at = page * a_.v.page + in_page * a_.v.token;
#pragma unroll
    for (int i = 0; i < kKeys / kRowsACopy; ++i) {
      const int row = i * kRowsACopy + row0;
      const char* k = k_ + __shfl_sync(~0u, k_at, row) + chunk * 16;
      const char* v = v_ + __shfl_sync(~0u, v_at, row) + chunk * 16;
      const uint32_t bytes = live >> row & 1 ? 16 : 0;
      if (chunk * 8 < a_.k.dim) device::copy_async(step(to, i), k, bytes);
      if (chunk * 8 < a_.v.dim) device::copy_async(step(to, i) + kSideBytes, v, bytes);
    }
  }

  __device__ bool issue_tokens(int stage) {
    if (queued_ - taken_ < kKeys) refill();
    const int n = queued_ - taken_ < kKeys ? queued_ - taken_ : kKeys;
    if (n == 0) return false;
    const bool mine = lane_ < n;
    int32_t token = 0, entry = 0, page = 0, in_page = 0;
    if (mine) {
      token = queue_->token[taken_ + lane_];
      if (kMany) entry = queue_->entry[taken_ + lane_];
      if (a_.pages.table == nullptr) {
        in_page = g_.base_slot + token;
      } else {
        const int32_t logical = quotient(token, a_.pages.log2_page, a_.pages.page_size);
        page = page_at(logical);
        in_page = token - logical * static_cast<int32_t>(a_.pages.page_size);
      }
      notes_[stage].token[lane_] = token;
      if (kMany) notes_[stage].columns[lane_] = page >= 0 ? columns_of(token, entry) & filter_ : 0;
    } else if (kMany && lane_ < kKeys) {
      notes_[stage].columns[lane_] = 0;
    }
    const uint32_t live = __ballot_sync(~0u, mine && page >= 0);
    if (lane_ == 0) notes_[stage].live = live;
    taken_ += n;
    gather_rows(stage, live, page, in_page);
    return true;
  }

  // Each lane brings the selected tokens of one block, as many lanes as there is room for.
  __device__ void refill() {
    const int left = queued_ - taken_;
    int32_t token = 0, entry = 0;
    if (lane_ < left) {
      token = queue_->token[taken_ + lane_];
      entry = queue_->entry[taken_ + lane_];
    }
    __syncwarp();
    if (lane_ < left) {
      queue_->token[lane_] = token;
      queue_->entry[lane_] = entry;
    }
    queued_ = left;
    taken_ = 0;
    while (queued_ < kKeys && next_entry_ < end_) {
      const int32_t e = next_entry_ + lane_;
      uint64_t bits = 0;
      int32_t base = 0;
      if (e < end_) {
        base = (a_.every_token ? e : a_.index.blocks[entries_ + e]) << a_.log2_block;
        bits = selected(e, base);
      }
      int sum = __popcll(bits);
#pragma unroll
      for (int d = 1; d < 32; d <<= 1) {
        const int lower = __shfl_up_sync(~0u, sum, d);
        if (lane_ >= d) sum += lower;
      }
      const bool fits = e < end_ && queued_ + sum <= kQueue;
      const unsigned fitting = __ballot_sync(~0u, fits);
      int to = queued_ + sum - __popcll(bits);
      while (fits && bits != 0) {
        queue_->token[to] = base + __ffsll(static_cast<long long>(bits)) - 1;
        if (kMany) queue_->entry[to] = e;
        bits &= bits - 1;
        ++to;
      }
      const int lanes = __popc(fitting);
      queued_ += __shfl_sync(~0u, sum, lanes > 0 ? lanes - 1 : 0);
      next_entry_ += lanes;
    }
    __syncwarp();
  }

  __device__ uint64_t selected(int32_t entry, int32_t base) const {
    const uint64_t mask = word_mask(1 << a_.log2_block);
    if (!kMany)
      return mask & one_.sees_of(a_.every_token ? ~uint64_t{0} : a_.index.members[entries_ + entry], base);
    uint64_t bits = 0;
    for (int32_t c = 0; c < g_.columns; ++c) {
      if ((filter_ >> c & 1) == 0) continue;
      const Column& column = columns_[c];
      bits |= column.sees_of(
          a_.every_token ? ~uint64_t{0} : a_.index.members[(entries_ + entry) * a_.index.lists + column.list],
          base);
    }
    return bits & mask;
  }

  const DecodeArgs& a_;
  const Group& g_;
  const Column* columns_;
  StageNote* notes_;
  TokenQueue* queue_;
  const char *k_, *v_;
  int64_t entries_;
  uint32_t ring_, filter_ = ~0u;
  int lane_;
  int32_t first_ = 0, step_ = 1;  // kBlocks: this warp's pieces are first_ + at_ + i * step_
  int32_t at_ = 0, end_ = 0;      // pieces, or entries with kTokens
  int32_t next_ = 0;              // kBlocks: i of the next piece
  Piece now_{}, then_{};          // this lane's of the pieces under way
  Column one_{};                  // what all columns share, unless kMany
  int32_t next_entry_ = 0;        // kTokens
  int queued_ = 0, taken_ = 0;
};

}  // namespace tamis::cuda
