// Builds the index set of one bundle, by one CTA. A bitmap of blocks gives each listed block its rank; member
// words are gathered at the ranks; an old bit of the first token of an entry tells a duplicate. No sort, and
// nothing is cleared or scanned but ceil(kv_len / block / 32) words and the words of the listed blocks.
//
// Blocks that hold only future tokens lie behind the visible ones: they are ranked, so that duplicates among
// them are found, and not counted. tests/emulated runs this code on the host.
//
// Longer than most files: the phases of one CTA share ranks, words and counts, and none can be read alone.
#pragma once

#include "index/read.cuh"

namespace tamis::index {

inline constexpr int kAtOnce = 4;  // page lookups under way in a thread

// kListsShared: blocks and member words are gathered in shared memory. kOneQuery: bundles have one query.
// kPlain: is_plain().
template <bool kListsShared, bool kOneQuery, bool kPlain>
class Builder {
 public:
  __device__ Builder(const NormalizeArgs& args, Shared& shared, char* memory) : a_(args), s_(shared) {
    bundle_ = static_cast<int32_t>(blockIdx.x);
    first_entry_ = has_own_place() ? 0 : int64_t{bundle_} * args.out.capacity;
    const int64_t words = bitmap_words(args.requests.max_kv_len, args.block);
    bitmap_ = reinterpret_cast<uint32_t*>(memory);
    rank_ = bitmap_ + words;
    staged_ = reinterpret_cast<int32_t*>(rank_ + words);
    members_ = reinterpret_cast<uint32_t*>(args.out.members + first_entry_ * args.out.lists);
    blocks_ = args.out.blocks + first_entry_;
    if (!kListsShared) return;
    members_ = rank_ + words + args.staged;
    blocks_ = reinterpret_cast<int32_t*>(members_ + args.out.capacity * args.out.lists * 2);
  }

  __device__ void build() {
    const int32_t qb = bundle_ / a_.bundles_a_block;
    first_row_ = qb * a_.candidates.index_heads + bundle_ % a_.bundles_a_block * a_.rows_apart;
    const DeviceCandidates& c = a_.candidates;
    // Offsets and counts are judged also where there is not one entry.
    const bool listed = c.indices != nullptr || c.indptr != nullptr || c.count != nullptr;
    // The candidates are asked for before their query block is found: the loads take as long as all that
    // follows. But rows beyond the end of cu_q are not read. There are no fewer query blocks than all queries
    // fill, so of a block among those, one number tells, which is under way while memory is cleared; of
    // blocks of one query, that is every block. Others wait for find_frame().
    const bool fixed = c.indices != nullptr && c.indptr == nullptr;
    const int32_t queries = fixed ? a_.requests.cu_q[a_.requests.requests] : 0;
    for (int32_t i = thread(); i < static_cast<int32_t>(sizeof(DeviceCounts) / 4); i += threads())
      reinterpret_cast<int32_t*>(&s_.counts)[i] = 0;
    if (threadIdx.x == 0) {
      s_.last_block_unseen = 0;
      s_.positions = kNoPositions;
      s_.key = kNoOffence;
      s_.lock = 0;
    }
    const int32_t words =
        a_.candidates.every_token ? 0 : static_cast<int32_t>(bitmap_words(a_.requests.max_kv_len, a_.block));
    for (int32_t w = thread(); w < words; w += threads()) bitmap_[w] = 0;
    asked_ = fixed && int64_t{qb} * c.query_block < queries;
    if (asked_) stage(row_of(a_, -1, first_row_, nullptr));
    frame_ = find_frame<kOneQuery>(a_, qb, bundle_ == 0, s_);
    if (frame_.request >= 0) {
      if (fixed && !asked_) {
        stage(row_of(a_, -1, first_row_, nullptr));
        asked_ = true;
      }
      if constexpr (kOneQuery) {
        const Sight s = sight_of_query(a_, frame_, frame_.first);
        const bool window = s.window_begin < s.window_end;
        joined_ = {static_cast<int32_t>(s.end), static_cast<int32_t>(s.sink_end),
                   window ? static_cast<int32_t>(s.window_begin) : 0,
                   window ? static_cast<int32_t>(s.window_end) : 0, false};
      } else {
        joined_ = join_sights(a_, frame_, s_);
      }
      if (a_.candidates.every_token)
        take_all();
      else
        take_listed(listed);
    }
    finish();
  }

 private:
  static constexpr bool kInside = kPlain && kOneQuery;  // every entry lies in one block

  __device__ bool has_own_place() const { return a_.out.own.an_entry > 0; }
  __device__ int32_t lists() const { return kPlain ? 1 : a_.out.lists; }

  // Asks for the entries of the first list; each thread for those that it will read.
  __device__ void stage(const Row& row) {
    const int32_t count = static_cast<int32_t>(row.count < a_.staged ? row.count : a_.staged);
    for (int32_t i = thread(); i < count; i += threads()) device::copy_word(staged_ + i, row.entries + i);
  }

  // Calls f(place, entry) for the entries of a row that are this thread's. Short code that runs often beats
  // unrolled code that runs once: the instructions have to be fetched too.
  template <class F>
  __device__ void for_each_entry(int32_t list, const Row& row, const F& f) {
    const int32_t staged = list == 0 ? a_.staged : 0;
#pragma unroll 1
    for (int32_t i = thread(); i < row.count; i += threads()) f(i, i < staged ? staged_[i] : row.entries[i]);
  }

  // Full attention: the rows need no list, only their pages are looked at.
  __device__ void take_all() {
    count_ = up(joined_.end);
    if (threadIdx.x == 0) counts_.selected = joined_.end;
    if (a_.pages.table == nullptr) return;
    const int32_t size = static_cast<int32_t>(a_.pages.page_size);
    const int32_t pages = joined_.end == 0 ? 0 : (joined_.end - 1) / size + 1;
    for (int32_t first = thread(); first < pages; first += kAtOnce * threads()) {
      PageEntry e[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k)
        if (first + k * threads() < pages) e[k] = read_page(a_, frame_.request, first + k * threads());
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k)
        if (first + k * threads() < pages) read_stamp(a_, &e[k]);
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k)
        if (first + k * threads() < pages) {
          judge_page(a_, frame_.request, first + k * threads(), e[k], s_);
          ++counts_.touched;
        }
    }
  }

  __device__ void take_listed(bool listed) {
    words_ = (up(frame_.kv_len) + 31) / 32;
    int32_t capacity = static_cast<int32_t>(a_.out.capacity);
    if (has_own_place()) capacity = take_place();
    if (listed) mark_entries();
    mark_mask();
    __syncthreads();
    // Before the barriers that follow: behind them, what one thread reports another might see too early.
    const bool refused = s_.key != kNoOffence;
    const int32_t ranked = rank_blocks();
    if (refused) return;
    if (ranked > capacity) {
      if (threadIdx.x == 0)
        index::report(s_, Offence::kCapacity, static_cast<uint64_t>(first_row_), Code::kCapacityExceeded,
                      frame_.request, first_row_, -1, ranked);
      return;
    }
    const int64_t halves = int64_t{ranked} * lists() * 2;
    for (int64_t i = threadIdx.x; i < halves; i += threads()) members_[i] = 0;
    write_blocks();
    __syncthreads();
    if (listed)
      for (int32_t l = 0; l < lists(); ++l) gather(l);
    add_up_entries();
    __syncthreads();
    place_blocks();
  }

  // Goes to the bundle's own place. The room there.
  __device__ int32_t take_place() {
    const Place place = own_place(a_, bundle_, first_row_);
    first_entry_ = place.begin;
    if constexpr (!kListsShared) {
      members_ = reinterpret_cast<uint32_t*>(a_.out.members + first_entry_ * lists());
      blocks_ = a_.out.blocks + first_entry_;
    }
    return place.capacity;
  }

  // Entries of the unit are tokens [e * unit, e * unit + unit), cut at kv_len.
  __device__ int32_t limit() const {
    return frame_.kv_len == 0 ? 0 : (frame_.kv_len - 1) / a_.candidates.unit + 1;
  }
  __device__ int32_t up(int32_t token) const { return (token + a_.block - 1) >> a_.log2_block; }

  __device__ void mark_entries() {
    const int32_t unit = a_.candidates.unit, end = limit();
    for (int32_t l = 0; l < lists(); ++l) {
      const int32_t r = first_row_ + l;
      const Row raw = row_of(a_, frame_.request, r, &s_);
      if (l == 0) {
        if (!asked_) stage(raw);
        device::copies_done();
      }
      for_each_entry(l, raw, [&](int32_t i, int32_t e) {
        if (static_cast<uint32_t>(e) < static_cast<uint32_t>(end)) {
          const int32_t begin = e * unit, last = frame_.kv_len - begin > unit ? begin + unit : frame_.kv_len;
          const int32_t block = begin >> a_.log2_block;
          if (kInside || last <= (block + 1) << a_.log2_block)
            atomicOr(&bitmap_[block >> 5], 1u << (block & 31));
          else
            add_blocks(bitmap_, block, up(last), 0, 1);
        } else if (e != -1 && a_.candidates.reject_invalid) {
          index::report(s_, Offence::kCandidate, static_cast<uint64_t>(r) << 28 | static_cast<uint64_t>(i),
                        Code::kIndexOutOfRange, frame_.request, r, -1, e);
        }
      });
    }
  }

  __device__ void mark_mask() {
    add_blocks(bitmap_, 0, !kPlain && a_.all_blocks ? up(joined_.end) : up(joined_.sink_end), thread(),
               threads());
    if (!has_holes()) return add_window(joined_.window_begin, joined_.window_end, thread(), threads());
    for (int32_t q = frame_.first + thread(); q < frame_.last; q += threads()) {
      const Sight s = sight_of_query(a_, frame_, q);
      add_window(static_cast<int32_t>(s.window_begin), static_cast<int32_t>(s.window_end), 0, 1);
    }
  }
  __device__ bool has_holes() const { return !kOneQuery && joined_.holes; }
  __device__ void add_window(int32_t begin, int32_t end, int32_t thread, int32_t threads) {
    if (begin < end) add_blocks(bitmap_, begin >> a_.log2_block, up(end), thread, threads);
  }

  // Blocks before each word. Returns the number of all listed blocks; count_ gets that of the visible ones.
  __device__ int32_t rank_blocks() {
    const int32_t each = (words_ + threads() - 1) / threads();
    const int32_t first = thread() * each, last = min(first + each, words_);
    int32_t mine = 0;
    for (int32_t w = first; w < last; ++w) mine += __popc(bitmap_[w]);
    int32_t ranked = 0, before = device::block_prefix(mine, s_.sums, &ranked);
    for (int32_t w = first; w < last; ++w) {
      rank_[w] = static_cast<uint32_t>(before);
      before += __popc(bitmap_[w]);
    }
    __syncthreads();
    const int32_t visible = up(joined_.end);
    count_ = visible / 32 < words_ ? rank(visible) : ranked;
    return ranked;
  }

  // Listed blocks below `block`.
  __device__ int32_t rank(int32_t block) const {
    return static_cast<int32_t>(rank_[block >> 5]) + __popc(bitmap_[block >> 5] & ((1u << (block & 31)) - 1));
  }

  __device__ void write_blocks() {
    for (int32_t w = thread(); w < words_; w += threads()) {
      uint32_t bits = bitmap_[w];
      // A run begins where the block below is not listed. Runs of the visible blocks, less one, are the gaps.
      const uint32_t below = w > 0 ? bitmap_[w - 1] >> 31 : 0;
      const uint32_t begins = bits & ~(bits << 1 | below);
      int32_t at = static_cast<int32_t>(rank_[w]);
      while (bits != 0) {
        const int bit = __ffs(static_cast<int>(bits)) - 1;
        bits &= bits - 1;
        blocks_[at] = w * 32 + bit;
        counts_.gaps += at < count_ && (begins >> bit & 1);
        ++at;
      }
    }
  }

  // Sets the bits of tokens [begin, end), which lie in one block; the first bit's old state.
  __device__ bool set_bits_of(int32_t begin, int32_t end, int32_t list) {
    const int32_t block = begin >> a_.log2_block, offset = begin & (a_.block - 1);
    uint32_t* word = members_ + (int64_t{rank(block)} * lists() + list) * 2 + (offset >> 5);
    if (end - begin == 1) return atomicOr(word, 1u << (offset & 31)) >> (offset & 31) & 1;
    const uint64_t bits = (~uint64_t{0} >> (64 - (end - begin)))
                          << (offset & 31);  // from the half of `begin` on
    const uint32_t low = static_cast<uint32_t>(bits), high = static_cast<uint32_t>(bits >> 32);
    const bool repeated = atomicOr(word, low) >> (offset & 31) & 1;
    if (high != 0) atomicOr(word + 1, high);
    return repeated;
  }

  // Whether the entry was there before; its bits are set. Entries do not overlap, so the first token tells.
  __device__ bool add_entry(int32_t begin, int32_t last, int32_t list) {
    bool repeated = false;
    if constexpr (kInside) {
      repeated = set_bits_of(begin, last, list);
    } else {
      for (int32_t t = begin; t < last && !repeated;) {
        const int32_t stop = min(((t >> a_.log2_block) + 1) << a_.log2_block, last);
        repeated = set_bits_of(t, stop, list) && t == begin;
        t = stop;
      }
    }
    return repeated;
  }

  __device__ void gather(int32_t list) {
    const int32_t unit = a_.candidates.unit, end = limit(), r = first_row_ + list;
    const Row raw = row_of(a_, frame_.request, r, nullptr);
    if (thread() == 0) counts_.raw += raw.count;
    for_each_entry(list, raw, [&](int32_t i, int32_t e) {
      if (static_cast<uint32_t>(e) >= static_cast<uint32_t>(end)) {
        ++(e == -1 ? counts_.padding : counts_.invalid);
        return;
      }
      const int32_t begin = e * unit, last = frame_.kv_len - begin > unit ? begin + unit : frame_.kv_len;
      if (!add_entry(begin, last, list)) {
        counts_.future += begin >= joined_.end;
        return;
      }
      ++counts_.duplicates;
      if (a_.candidates.reject_duplicates)
        index::report(s_, Offence::kCandidate, static_cast<uint64_t>(r) << 28 | static_cast<uint64_t>(i),
                      Code::kDuplicateIndex, frame_.request, r, -1, e);
    });
  }

  // A member word. In memory it was gathered by atomics, which pass L1 by.
  __device__ uint64_t member(int32_t j, int32_t list) const {
    const uint32_t* word = members_ + (int64_t{j} * lists() + list) * 2;
    if (!kListsShared) return uint64_t{__ldcg(word + 1)} << 32 | __ldcg(word);
    return uint64_t{word[1]} << 32 | word[0];
  }

  // The tokens of a block that some query of the bundle sees, when these are listed.
  __device__ uint64_t seen_of(uint64_t listed, int32_t block) const {
    const int32_t base = block << a_.log2_block;
    // Most blocks lie between sink and window and before the end.
    if (base >= joined_.sink_end && base + a_.block <= joined_.end &&
        (base >= joined_.window_end || base + a_.block <= joined_.window_begin))
      return listed;
    uint64_t bits = (listed & token_bits(0, joined_.end, base)) | token_bits(0, joined_.sink_end, base);
    bits |= has_holes() ? window_bits(a_.requests.q_pos + frame_.first, frame_.last - frame_.first,
                                      frame_.kv_len, a_.mask.window, base)
                        : token_bits(joined_.window_begin, joined_.window_end, base);
    return bits & word_mask(a_.block);
  }
  __device__ uint64_t seen_bits(int32_t j, int32_t block) const {
    uint64_t listed = 0;
    for (int32_t l = 0; l < lists(); ++l) listed |= member(j, l);
    return seen_of(listed, block);
  }

  // Block j and its member words to where kernels read them. Returns the tokens that some query sees. A list
  // of which nobody sees a token there lacks the block, as on the host: its word is 0.
  __device__ uint64_t publish(int32_t j, int32_t block) {
    const uint64_t bits = seen_bits(j, block);
    for (int32_t l = 0; (kListsShared || lists() > 1) && l < lists(); ++l) {
      const uint64_t word = member(j, l);
      const bool lacks = lists() > 1 && !a_.all_blocks && seen_of(word, block) == 0;
      a_.out.members[(first_entry_ + j) * lists() + l] = lacks ? 0 : word;
    }
    if (kListsShared) a_.out.blocks[first_entry_ + j] = block;
    counts_.selected += __popcll(bits);
    // Only the block that the end of sight cuts can hold nothing visible; the dense path keeps it.
    if (bits == 0 && (kPlain || !a_.all_blocks)) {
      s_.last_block_unseen = 1;
      counts_.gaps -= block == 0 || (bitmap_[(block - 1) >> 5] >> ((block - 1) & 31) & 1) == 0;
    }
    return bits;
  }

  // Member words and blocks to where kernels read them, pages checked, places written: each thread first all
  // words of up to 32 blocks, then their pages, several lookups under way at once.
  __device__ void place_blocks() {
    const int32_t mine = thread();
    for (int32_t chunk = 0; chunk < count_; chunk += 32 * threads()) {
      const int32_t last = min(count_, chunk + 32 * threads());
      uint32_t seen = 0;  // bit i: some query sees a token of the thread's block i
#pragma unroll 1
      for (int32_t j = chunk + mine, i = 0; j < last; j += threads(), ++i) {
        const int32_t block = blocks_[j];
        const uint64_t bits = publish(j, block);
        seen |= static_cast<uint32_t>(bits != 0) << i;
        if (a_.blocks_a_page == 0) {
          const bool contiguous = a_.pages.table == nullptr;
          if (!kPlain && !contiguous) judge_pieces(j, block, bits);
          a_.out.places[first_entry_ + j] =
              contiguous && bits != 0 ? static_cast<uint32_t>(block) : kUntouched;
        }
      }
      if (a_.blocks_a_page > 0) find_places(chunk + mine, last, seen);
    }
  }

  __device__ void find_places(int32_t first, int32_t last, uint32_t seen) {
#pragma unroll 1
    for (; first < last; first += kAtOnce * threads(), seen >>= kAtOnce) {
      PageEntry e[kAtOnce];
      int32_t block[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k)
        if (seen >> k & 1) {
          block[k] = blocks_[first + k * threads()];
          e[k] = read_page(a_, frame_.request, page_of(block[k]));
        }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k)
        if (seen >> k & 1) read_stamp(a_, &e[k]);
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const int32_t j = first + k * threads();
        if (j >= last) break;
        uint32_t place = kUntouched;
        if (seen >> k & 1) {
          const int32_t page = page_of(block[k]), in_page = block[k] - page * a_.blocks_a_page;
          judge_page(a_, frame_.request, page, e[k], s_);
          counts_.touched += in_page == 0 || first_of_page(j, block[k], in_page);
          place = static_cast<uint32_t>(e[k].entry) * static_cast<uint32_t>(a_.blocks_a_page) +
                  static_cast<uint32_t>(in_page);
        }
        a_.out.places[first_entry_ + j] = place;
      }
    }
  }

  // Whether no block before entry j, `in_page` blocks into its page, is seen: then the page is counted there.
  // Listed blocks are all seen, but for the dense path, which lists every block.
  __device__ bool first_of_page(int32_t j, int32_t block, int32_t in_page) const {
    if (kPlain || !a_.all_blocks) return rank(block) == rank(block - in_page);
    const int32_t base = block << a_.log2_block;
    return !touched_before(j, base - (in_page << a_.log2_block), base);
  }

  __device__ int32_t page_of(int32_t block) const {
    return a_.log2_blocks >= 0 ? block >> a_.log2_blocks : block / a_.blocks_a_page;
  }

  // Pages that blocks do not divide: each piece of the block by itself. A page is counted at the first block
  // that touches it.
  __device__ void judge_pieces(int32_t j, int32_t block, uint64_t seen) {
    const int32_t base = block << a_.log2_block, last = min(base + a_.block, frame_.kv_len);
    const int64_t size = a_.pages.page_size;
    for (int64_t t = base; t < last;) {
      const int64_t page = t / size, stop = min((page + 1) * size, int64_t{last});
      if ((seen & range_bits(t, stop, base)) != 0) {
        PageEntry e = read_page(a_, frame_.request, static_cast<int32_t>(page));
        read_stamp(a_, &e);
        judge_page(a_, frame_.request, static_cast<int32_t>(page), e, s_);
        counts_.touched += page * size >= base || !touched_before(j, page * size, base);
      }
      t = stop;
    }
  }

  // Whether a block before entry j touches the page of tokens from `begin` on, which reaches to `end`.
  __device__ bool touched_before(int32_t j, int64_t begin, int64_t end) const {
    while (--j >= 0) {
      const int32_t block = blocks_[j], base = block << a_.log2_block;
      if (base + a_.block <= begin) return false;
      if ((seen_bits(j, block) & range_bits(begin, end, base)) != 0) return true;
    }
    return false;
  }

  // Adds up a count of all threads. As soon as the phase that counts ends: counts need not wait in registers.
  __device__ static void add_up(int32_t& mine, int32_t* sum) {
    const int32_t of_warp = __reduce_add_sync(~0u, mine);
    if (threadIdx.x % 32 == 0 && of_warp != 0) atomicAdd(sum, of_warp);
    mine = 0;
  }
  __device__ void add_up_entries() {
    DeviceCounts& sums = s_.counts;
    if (threadIdx.x == 0) sums.raw = counts_.raw;
    add_up(counts_.padding, &sums.padding);
    add_up(counts_.invalid, &sums.invalid);
    add_up(counts_.duplicates, &sums.duplicates);
    add_up(counts_.future, &sums.future);
  }
  __device__ void add_up_places() {
    DeviceCounts& sums = s_.counts;
    add_up(counts_.gaps, &sums.gaps);
    add_up(counts_.touched, &sums.touched);
    add_up(counts_.selected, &sums.selected);
  }

  __device__ void finish() {
    add_up_places();
    __syncthreads();
    const bool refused = s_.key != kNoOffence;
    if (threadIdx.x != 0) return;
    a_.out.counts[bundle_] = complete(s_.counts);
    a_.out.bundle[bundle_] = {.request = frame_.request,
                              .first_query = frame_.first,
                              .last_query = frame_.last,
                              .kv_len = frame_.kv_len,
                              .base_slot = frame_.base_slot,
                              .position = frame_.position,
                              .begin = first_entry_};
    a_.out.count[bundle_] = frame_.request < 0 ? -1
                            : refused          ? 0
                                      : count_ - (a_.candidates.every_token ? 0 : s_.last_block_unseen);
    a_.out.offence[bundle_] = s_.key;
    if (refused) a_.out.record[bundle_] = s_.record;
    if (bundle_ == 0) *a_.out.head = {.stamp = 0, .mark = a_.mark, .unused = 0};
  }

  const NormalizeArgs& a_;
  Shared& s_;
  int32_t bundle_, first_row_ = 0, words_ = 0, count_ = 0;
  int64_t first_entry_;
  uint32_t *bitmap_, *rank_, *members_;
  int32_t *blocks_, *staged_;
  bool asked_ = false;  // for the entries of the first list
  Frame frame_{-1, 0, 0, 0, 0, 0};
  Joined joined_{0, 0, 0, 0, false};
  DeviceCounts counts_{};
};

}  // namespace tamis::index
