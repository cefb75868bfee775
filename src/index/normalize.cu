// normalize() on the device: one CTA a bundle. A bitmap of blocks gives each listed block its rank; member
// words are gathered at the ranks; an old bit of the first token of an entry tells a duplicate. No sort, and
// nothing is cleared or scanned but ceil(kv_len / block / 32) words and the words of the listed blocks.
//
// Blocks that hold only future tokens lie behind the visible ones: they are ranked, so that duplicates among
// them are found, and not counted.
#include <algorithm>

#include "core/bits.h"
#include "core/device.cuh"
#include "core/launch.h"
#include "index/device.h"

namespace tamis::index {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;

// The first offence that a thread has met.
struct Found {
  uint64_t key = kNoOffence;
  OffenceRecord record{};

  __device__ void add(Offence kind, uint64_t place, Code code, const OffenceRecord& r) {
    const uint64_t k = offence_key(kind, place);
    if (k >= key) return;
    key = k;
    record = r;
    record.code = static_cast<int32_t>(code);
  }
  __device__ void argument(int64_t request, int64_t row, int64_t value) {
    add(Offence::kArgument, static_cast<uint64_t>(request < 0 ? 0 : request), Code::kInvalidArgument,
        {0, static_cast<int32_t>(request), static_cast<int32_t>(row), -1, value});
  }
};

// The queries a bundle stands for.
struct Frame {
  int32_t request, first, last;  // request -1: no such query block
};

// What the queries of a bundle may see together; the windows are walked one by one.
struct Joined {
  int64_t end, sink_end, window_begin;  // of the earliest window
};

struct Shared {
  uint64_t parts[kWarps];
  int64_t sums[kWarps];
  Frame frame;
  int32_t last_block_unseen;
};

__device__ void check_request(const NormalizeArgs& a, int32_t b, Found* found) {
  const DeviceRequests& r = a.requests;
  const int64_t begin = r.cu_q[b], end = r.cu_q[b + 1], kv_len = r.kv_len[b];
  if (begin < 0 || end < begin || end > r.total_q || (b == 0 && begin != 0)) found->argument(b, -1, end);
  int64_t most = r.table_tokens;
  if (r.cu_kv != nullptr) {
    const int64_t first = r.cu_kv[b], last = r.cu_kv[b + 1];
    most = first < 0 || last < first || last > r.kv_rows ? -1 : last - first;
  }
  if (kv_len < 0 || kv_len > most) found->argument(b, -1, kv_len);
  if (kv_len > r.max_kv_len)
    found->add(Offence::kCapacity, static_cast<uint64_t>(b), Code::kCapacityExceeded, {0, b, -1, -1, kv_len});
}

// The request and the queries of query block `qb`. All threads take part.
__device__ Frame find_frame(const NormalizeArgs& a, int64_t qb, Shared& s) {
  const DeviceRequests& r = a.requests;
  const int64_t most = a.candidates.query_block;
  if (threadIdx.x == 0) s.frame = {-1, 0, 0};
  __syncthreads();
  int64_t before = 0;  // query blocks of the requests before this chunk
  for (int32_t at = 0; at < r.requests; at += kThreads) {
    const int32_t b = at + static_cast<int32_t>(threadIdx.x);
    int64_t begin = 0, length = 0;
    if (b < r.requests) {
      begin = clamp64(r.cu_q[b], 0, r.total_q);
      length = clamp64(r.cu_q[b + 1], begin, r.total_q) - begin;
    }
    if (most == 1) {  // cu_q counts the query blocks itself
      if (qb >= begin && qb < begin + length)
        s.frame = {b, static_cast<int32_t>(qb), static_cast<int32_t>(qb) + 1};
      continue;
    }
    const int64_t blocks = (length + most - 1) / most;
    int64_t total = 0;
    const int64_t first = before + device::block_prefix(blocks, s.sums, &total);
    if (qb >= first && qb < first + blocks) {
      const int64_t from = begin + (qb - first) * most, end = begin + length;
      s.frame = {b, static_cast<int32_t>(from), static_cast<int32_t>(from + most < end ? from + most : end)};
    }
    before += total;
  }
  __syncthreads();
  return s.frame;
}

__device__ Sight sight_of_query(const NormalizeArgs& a, const Frame& f, int32_t query, int64_t kv_len) {
  const int64_t pos =
      a.requests.q_pos != nullptr ? a.requests.q_pos[query] : kv_len - a.requests.cu_q[f.request + 1] + query;
  return sight_of(pos, kv_len, a.mask.causal, a.mask.window, a.mask.sink);
}

__device__ Joined join_sights(const NormalizeArgs& a, const Frame& f, int64_t kv_len) {
  Joined j{0, 0, kv_len};
  for (int32_t q = f.first; q < f.last; ++q) {
    const Sight s = sight_of_query(a, f, q, kv_len);
    j.end = s.end > j.end ? s.end : j.end;
    j.sink_end = s.sink_end > j.sink_end ? s.sink_end : j.sink_end;
    if (s.window_begin < s.window_end && s.window_begin < j.window_begin) j.window_begin = s.window_begin;
  }
  return j;
}

// The tokens of a block's word that some query of the bundle sees.
__device__ uint64_t visible_bits(const NormalizeArgs& a, const Frame& f, const Joined& j, int64_t kv_len,
                                 uint64_t listed, int64_t base) {
  uint64_t bits = (listed & range_bits(0, j.end, base)) | range_bits(0, j.sink_end, base);
  if (base + a.block > j.window_begin)
    for (int32_t q = f.first; q < f.last; ++q) {
      const Sight s = sight_of_query(a, f, q, kv_len);
      bits |= range_bits(s.window_begin, s.window_end, base);
    }
  return bits & word_mask(a.block);
}

// Sets bits [first, last) of the bitmap, the threads side by side.
__device__ void add_blocks(uint32_t* bitmap, int64_t first, int64_t last, int64_t thread, int64_t threads) {
  if (last <= first) return;
  for (int64_t w = first / 32 + thread; w <= (last - 1) / 32; w += threads) {
    const int64_t low = first > w * 32 ? first - w * 32 : 0, high = last < w * 32 + 32 ? last - w * 32 : 32;
    atomicOr(&bitmap[w], (~0u >> (32 - (high - low))) << low);
  }
}

// The raw entries of one candidate row, checked to be readable.
struct Row {
  const int32_t* entries;
  int64_t count;
};

__device__ Row row_of(const NormalizeArgs& a, int32_t request, int64_t row, bool report, Found* found) {
  const DeviceCandidates& c = a.candidates;
  if (c.indices == nullptr && c.indptr == nullptr && c.width == 0) return {nullptr, 0};
  if (c.indptr != nullptr) {
    const auto at = [&](int64_t i) -> int64_t {
      return c.wide_indptr ? static_cast<const int64_t*>(c.indptr)[i]
                           : static_cast<const int32_t*>(c.indptr)[i];
    };
    const int64_t begin = at(row), end = at(row + 1);
    if (begin < 0 || end < begin || end > c.entries || (row == 0 && begin != 0)) {
      if (report) found->argument(request, row, end);
      return {nullptr, 0};
    }
    return {c.indices + begin, end - begin};
  }
  const int64_t count = c.count != nullptr ? c.count[row] : c.width;
  if (count < 0 || count > c.width) {
    if (report) found->argument(request, row, count);
    return {nullptr, 0};
  }
  return {c.indices + row * c.row_stride, count};
}

__device__ void check_page(const NormalizeArgs& a, int32_t request, int64_t page, Found* found) {
  const DevicePages& p = a.pages;
  const int32_t entry = p.table[request * p.table_stride + page];
  Code code = Code::kOk;
  if (entry == -1)
    code = Code::kPageUnmapped;
  else if (entry < 0 || entry >= p.pages)
    code = Code::kPageOutOfRange;
  else if (p.page_stamps != nullptr &&
           p.page_stamps[entry] != p.table_stamps[request * p.stamp_stride + page])
    code = Code::kForeignPage;
  if (code != Code::kOk)
    found->add(Offence::kPage, static_cast<uint64_t>(request) << 30 | static_cast<uint64_t>(page), code,
               {0, request, -1, static_cast<int32_t>(page), entry});
}

struct Counts {
  int32_t raw = 0, padding = 0, invalid = 0, duplicates = 0, unique = 0, future = 0;
};

class Builder {
 public:
  __device__ Builder(const NormalizeArgs& args, Shared& shared, char* memory, bool members_shared)
      : a_(args), s_(shared), members_shared_(members_shared) {
    bundle_ = static_cast<int64_t>(blockIdx.x);
    first_entry_ = bundle_ * args.out.capacity;
    bitmap_ = reinterpret_cast<uint32_t*>(memory);
    const int64_t words = (args.requests.max_kv_len / args.block + 1 + 31) / 32;
    rank_ = bitmap_ + words;
    // 64-bit member words as two halves, because shared memory has 32-bit atomics.
    const int64_t at = (2 * words + 1) / 2 * 2;
    members_ = members_shared ? bitmap_ + at
                              : reinterpret_cast<uint32_t*>(args.out.members + first_entry_ * args.out.lists);
  }

  __device__ void build() {
    const int64_t qb = bundle_ / a_.bundles_a_block;
    if (bundle_ == 0) check_frame();
    frame_ = find_frame(a_, qb, s_);
    if (frame_.request >= 0) check_request(a_, frame_.request, &found_);
    const bool sound = device::block_min(found_.key, s_.parts) == kNoOffence;
    kv_len_ = frame_.request >= 0 && sound ? a_.requests.kv_len[frame_.request] : 0;
    if (frame_.request >= 0 && sound) {
      joined_ = join_sights(a_, frame_, kv_len_);
      if (a_.candidates.every_token)
        take_all();
      else
        take_listed(qb);
    }
    report();
  }

 private:
  __device__ int64_t row(int64_t qb, int32_t list) const {
    return qb * a_.candidates.index_heads + (bundle_ % a_.bundles_a_block) * a_.rows_apart + list;
  }

  // What concerns the batch as a whole; bundle 0 looks.
  __device__ void check_frame() {
    const DeviceRequests& r = a_.requests;
    int64_t blocks = 0;
    for (int32_t b = static_cast<int32_t>(threadIdx.x); b < r.requests; b += kThreads) {
      check_request(a_, b, &found_);
      const int64_t length = static_cast<int64_t>(r.cu_q[b + 1]) - r.cu_q[b];
      if (length > 0) blocks += (length + a_.candidates.query_block - 1) / a_.candidates.query_block;
    }
    const int64_t rows = device::block_sum(blocks, s_.sums) * a_.candidates.index_heads;
    if (rows > a_.candidates.rows) found_.argument(-1, rows, rows);
  }

  // Full attention: the rows need no list, only their pages are looked at.
  __device__ void take_all() {
    count_ = static_cast<int32_t>((joined_.end + a_.block - 1) / a_.block);
    selected_ = threadIdx.x == 0 ? joined_.end : 0;
    if (a_.pages.table == nullptr) return;
    const int64_t pages = (joined_.end + a_.pages.page_size - 1) / a_.pages.page_size;
    for (int64_t p = threadIdx.x; p < pages; p += kThreads) {
      check_page(a_, frame_.request, p, &found_);
      ++touched_;
    }
  }

  __device__ void take_listed(int64_t qb) {
    const int64_t blocks = (kv_len_ + a_.block - 1) / a_.block;
    words_ = (blocks + 31) / 32;
    for (int64_t w = threadIdx.x; w < words_; w += kThreads) bitmap_[w] = 0;
    if (threadIdx.x == 0) s_.last_block_unseen = 0;
    __syncthreads();
    mark_entries(qb);
    mark_mask(blocks);
    __syncthreads();
    const int32_t ranked = rank_blocks();
    if (device::block_min(found_.key, s_.parts) != kNoOffence) return;
    if (ranked > a_.out.capacity) {
      if (threadIdx.x == 0)
        found_.add(Offence::kCapacity, static_cast<uint64_t>(row(qb, 0)), Code::kCapacityExceeded,
                   {0, frame_.request, static_cast<int32_t>(row(qb, 0)), -1, ranked});
      return;
    }
    const int64_t halves = int64_t{ranked} * a_.out.lists * 2;
    for (int64_t i = threadIdx.x; i < halves; i += kThreads) members_[i] = 0;
    write_blocks();
    __syncthreads();
    for (int32_t l = 0; l < a_.out.lists; ++l) gather(qb, l);
    __syncthreads();
    place_blocks();
  }

  __device__ void mark_entries(int64_t qb) {
    const int64_t unit = a_.candidates.unit;
    const int64_t limit = kv_len_ == 0 ? 0 : (kv_len_ - 1) / unit + 1;
    for (int32_t l = 0; l < a_.out.lists; ++l) {
      const int64_t r = row(qb, l);
      const Row raw = row_of(a_, frame_.request, r, true, &found_);
      for (int64_t i = threadIdx.x; i < raw.count; i += kThreads) {
        const int32_t e = raw.entries[i];
        if (e >= 0 && e < limit) {
          const int64_t begin = e * unit, end = begin + unit < kv_len_ ? begin + unit : kv_len_;
          add_blocks(bitmap_, begin >> a_.log2_block, ((end - 1) >> a_.log2_block) + 1, 0, 1);
        } else if (e != -1 && a_.candidates.reject_invalid) {
          found_.add(Offence::kCandidate, static_cast<uint64_t>(r) << 28 | static_cast<uint64_t>(i),
                     Code::kIndexOutOfRange, {0, frame_.request, static_cast<int32_t>(r), -1, e});
        }
      }
    }
  }

  __device__ void mark_mask(int64_t blocks) {
    const auto up = [&](int64_t end) { return (end + a_.block - 1) >> a_.log2_block; };
    add_blocks(bitmap_, 0, a_.all_blocks ? up(joined_.end) : up(joined_.sink_end), threadIdx.x, kThreads);
    if (a_.mask.window == 0) return;
    for (int32_t q = frame_.first; q < frame_.last; ++q) {
      const Sight s = sight_of_query(a_, frame_, q, kv_len_);
      if (s.window_begin < s.window_end)
        add_blocks(bitmap_, s.window_begin >> a_.log2_block, up(s.window_end), threadIdx.x, kThreads);
    }
  }

  // Blocks before each word. Returns the number of all listed blocks; count_ gets that of the visible ones.
  __device__ int32_t rank_blocks() {
    const int64_t each = (words_ + kThreads - 1) / kThreads, first = threadIdx.x * each;
    const int64_t last = first + each < words_ ? first + each : words_;
    int64_t mine = 0;
    for (int64_t w = first; w < last; ++w) mine += __popc(bitmap_[w]);
    int64_t ranked = 0, before = device::block_prefix(mine, s_.sums, &ranked);
    for (int64_t w = first; w < last; ++w) {
      rank_[w] = static_cast<uint32_t>(before);
      before += __popc(bitmap_[w]);
    }
    __syncthreads();
    const int64_t visible = (joined_.end + a_.block - 1) >> a_.log2_block;
    count_ = static_cast<int32_t>(visible / 32 < words_ ? rank(visible) : ranked);
    return static_cast<int32_t>(ranked);
  }

  // Listed blocks below `block`.
  __device__ int64_t rank(int64_t block) const {
    return rank_[block >> 5] + __popc(bitmap_[block >> 5] & ((1u << (block & 31)) - 1));
  }

  __device__ void write_blocks() {
    for (int64_t w = threadIdx.x; w < words_; w += kThreads) {
      uint32_t bits = bitmap_[w];
      // A run begins where the block below is not listed. Runs of the visible blocks, less one, are the gaps.
      const uint32_t below = w > 0 ? bitmap_[w - 1] >> 31 : 0;
      uint32_t begins = bits & ~(bits << 1 | below);
      int32_t at = static_cast<int32_t>(rank_[w]);
      while (bits != 0) {
        const int bit = __ffs(bits) - 1;
        bits &= bits - 1;
        a_.out.blocks[first_entry_ + at] = static_cast<int32_t>(w * 32 + bit);
        gaps_ += at < count_ && (begins >> bit & 1);
        ++at;
      }
    }
  }

  // Sets the bits of tokens [begin, end), which lie in one block; the first bit's old state.
  __device__ bool set_bits_of(int64_t begin, int64_t end, int32_t list) {
    const int64_t block = begin >> a_.log2_block;
    uint32_t* word = members_ + (rank(block) * a_.out.lists + list) * 2;
    const uint64_t bits = range_bits(begin, end, block << a_.log2_block);
    const int offset = static_cast<int>(begin & (a_.block - 1));
    uint32_t old = 0;
    for (int half = 0; half < 2; ++half) {
      const uint32_t part = static_cast<uint32_t>(bits >> (32 * half));
      if (part == 0) continue;
      const uint32_t was = atomicOr(word + half, part);
      if (offset / 32 == half) old = was;
    }
    return old >> (offset & 31) & 1;
  }

  __device__ void gather(int64_t qb, int32_t list) {
    const int64_t unit = a_.candidates.unit;
    const int64_t limit = kv_len_ == 0 ? 0 : (kv_len_ - 1) / unit + 1;
    const int64_t r = row(qb, list);
    const Row raw = row_of(a_, frame_.request, r, false, &found_);
    for (int64_t i = threadIdx.x; i < raw.count; i += kThreads) {
      const int32_t e = raw.entries[i];
      ++counts_.raw;
      if (e < 0 || e >= limit) {
        ++(e == -1 ? counts_.padding : counts_.invalid);
        continue;
      }
      const int64_t begin = e * unit, end = begin + unit < kv_len_ ? begin + unit : kv_len_;
      // Entries do not overlap, so the first token of one tells whether it was there before.
      bool repeated = false;
      for (int64_t t = begin; t < end && !repeated;) {
        const int64_t stop = ((t >> a_.log2_block) + 1) << a_.log2_block;
        const bool old = set_bits_of(t, stop < end ? stop : end, list);
        if (t == begin) repeated = old;
        t = stop;
      }
      if (!repeated) {
        ++counts_.unique;
        counts_.future += begin >= joined_.end;
        continue;
      }
      ++counts_.duplicates;
      if (a_.candidates.reject_duplicates)
        found_.add(Offence::kCandidate, static_cast<uint64_t>(r) << 28 | static_cast<uint64_t>(i),
                   Code::kDuplicateIndex, {0, frame_.request, static_cast<int32_t>(r), -1, e});
    }
  }

  // Member words to where kernels read them, pages checked, places written.
  __device__ void place_blocks() {
    const int32_t lists = a_.out.lists;
    for (int32_t j = static_cast<int32_t>(threadIdx.x); j < count_; j += kThreads) {
      const int64_t block = a_.out.blocks[first_entry_ + j], base = block << a_.log2_block;
      uint64_t listed = 0;
      for (int32_t l = 0; l < lists; ++l) {
        const uint32_t* halves = members_ + (int64_t{j} * lists + l) * 2;
        const uint64_t word = uint64_t{halves[1]} << 32 | halves[0];
        if (members_shared_) a_.out.members[(first_entry_ + j) * lists + l] = word;
        listed |= word;
      }
      const uint64_t seen = visible_bits(a_, frame_, joined_, kv_len_, listed, base);
      selected_ += __popcll(seen);
      // Only the block that the end of sight cuts can hold nothing visible; the dense path keeps it.
      if (seen == 0 && !a_.all_blocks) {
        s_.last_block_unseen = 1;
        gaps_ -= block == 0 || (bitmap_[(block - 1) >> 5] >> ((block - 1) & 31) & 1) == 0;
      }
      a_.out.places[first_entry_ + j] = place_of(block, base, seen);
    }
  }

  __device__ uint32_t place_of(int64_t block, int64_t base, uint64_t seen) {
    if (seen == 0) return kUntouched;
    const DevicePages& p = a_.pages;
    if (p.table == nullptr) return static_cast<uint32_t>(block);
    if (p.page_size % a_.block == 0) {
      const int64_t page = base / p.page_size;
      check_page(a_, frame_.request, page, &found_);
      count_page(page, block);
      const int32_t entry = p.table[frame_.request * p.table_stride + page];
      return static_cast<uint32_t>(entry * (p.page_size / a_.block) + (base - page * p.page_size) / a_.block);
    }
    const int64_t last = base + a_.block < kv_len_ ? base + a_.block : kv_len_;
    for (int64_t t = base; t < last;) {
      const int64_t page = t / p.page_size, stop = (page + 1) * p.page_size;
      if ((seen & range_bits(t, stop < last ? stop : last, base)) != 0) {
        check_page(a_, frame_.request, page, &found_);
        touched_ += t == page * p.page_size || t == base;
      }
      t = stop;
    }
    return kUntouched;
  }

  // A page is counted at the first listed block in it.
  __device__ void count_page(int64_t page, int64_t block) {
    const int64_t first = page * a_.pages.page_size >> a_.log2_block;
    touched_ += block == first || rank(block) == rank(first);
  }

  __device__ void report() {
    const auto sum = [&](int32_t value) {
      return static_cast<int32_t>(device::block_sum<int64_t>(value, s_.sums));
    };
    const uint64_t key = device::block_min(found_.key, s_.parts);
    const int64_t selected = device::block_sum<int64_t>(selected_, s_.sums);
    const int32_t raw = sum(counts_.raw), padding = sum(counts_.padding), invalid = sum(counts_.invalid),
                  duplicates = sum(counts_.duplicates), unique = sum(counts_.unique),
                  future = sum(counts_.future), gaps = sum(gaps_), touched = sum(touched_);
    DeviceBundle& out = a_.out.bundle[bundle_];
    if (threadIdx.x == 0) {
      const bool contiguous = a_.requests.cu_kv != nullptr && frame_.request >= 0;
      out.request = frame_.request;
      out.first_query = frame_.first;
      out.last_query = frame_.last;
      out.count = key == kNoOffence ? count_ - s_.last_block_unseen * !a_.candidates.every_token : 0;
      out.base_slot = contiguous ? a_.requests.cu_kv[frame_.request] : 0;
      out.offence = key;
      out.raw = raw;
      out.padding = padding;
      out.invalid = invalid;
      out.duplicates = duplicates;
      out.unique = unique;
      out.future = future;
      out.gaps = gaps > 0 ? gaps - 1 : 0;
      out.touched = touched;
      out.selected = static_cast<int32_t>(selected);
      out.kv_len = static_cast<int32_t>(kv_len_);
      if (bundle_ == 0) a_.out.head->epoch = 0;
    }
    if (key != kNoOffence && found_.key == key) out.record = found_.record;
  }

  const NormalizeArgs& a_;
  Shared& s_;
  const bool members_shared_;
  int64_t bundle_, first_entry_, words_ = 0, kv_len_ = 0, selected_ = 0;
  uint32_t *bitmap_, *rank_, *members_;
  Frame frame_{-1, 0, 0};
  Joined joined_{0, 0, 0};
  Found found_;
  Counts counts_;
  int32_t count_ = 0, gaps_ = 0, touched_ = 0;
};

template <bool kMembersShared>
__global__ void __launch_bounds__(kThreads) normalize_kernel(const __grid_constant__ NormalizeArgs args) {
  extern __shared__ __align__(16) char memory[];
  __shared__ Shared shared;
  device::let_successor_start();
  Builder(args, shared, memory, kMembersShared).build();
}

int64_t to_line(int64_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

IndexLayout index_layout(int64_t bundles, int64_t capacity, int64_t lists) {
  IndexLayout l{};
  l.bundle = to_line(sizeof(IndexHead));
  l.blocks = l.bundle + to_line(bundles * static_cast<int64_t>(sizeof(DeviceBundle)));
  l.places = l.blocks + to_line(bundles * capacity * 4);
  l.members = l.places + to_line(bundles * capacity * 4);
  l.bytes = l.members + to_line(bundles * capacity * lists * 8);
  return l;
}

DeviceIndex index_at(void* memory, const IndexLayout& layout, int64_t bundles, int64_t capacity,
                     int64_t lists) {
  char* at = static_cast<char*>(memory);
  return {.head = reinterpret_cast<IndexHead*>(at),
          .bundle = reinterpret_cast<DeviceBundle*>(at + layout.bundle),
          .blocks = reinterpret_cast<int32_t*>(at + layout.blocks),
          .places = reinterpret_cast<uint32_t*>(at + layout.places),
          .members = reinterpret_cast<uint64_t*>(at + layout.members),
          .capacity = capacity,
          .bundles = static_cast<int32_t>(bundles),
          .lists = static_cast<int32_t>(lists)};
}

NormalizeShared normalize_shared(int64_t max_kv_len, int32_t block, int64_t capacity, int64_t lists,
                                 int64_t most_bytes) {
  const int64_t words = (max_kv_len / block + 1 + 31) / 32, maps = (2 * words + 1) / 2 * 2 * 4;
  const int64_t all = maps + capacity * lists * 8;
  return all <= most_bytes ? NormalizeShared{all, true} : NormalizeShared{maps, false};
}

Status launch_normalize(const NormalizeArgs& args, const NormalizeShared& shared, void* stream) {
  if (args.out.bundles == 0) return {};
  return device::launch(shared.members ? &normalize_kernel<true> : &normalize_kernel<false>,
                        {.blocks = dim3(static_cast<unsigned>(args.out.bundles)),
                         .threads = kThreads,
                         .shared_bytes = shared.bytes},
                        args, static_cast<cudaStream_t>(stream), "normalize");
}

}  // namespace tamis::index
