// What normalize reads on the device, and how it is judged: requests, candidate rows, pages. Nothing that a
// caller wrote is followed before it was compared with what it may be.
#pragma once

#include "core/bits.h"
#include "core/device.cuh"
#include "core/hd.h"
#include "index/device.h"

namespace tamis::index {

inline constexpr int kMostWarps = 32;

__device__ inline int32_t threads() { return static_cast<int32_t>(blockDim.x); }
__device__ inline int32_t thread() { return static_cast<int32_t>(threadIdx.x); }

// The queries a bundle stands for, and their request.
struct Frame {
  int32_t request;  // -1: no such query block
  int32_t first, last;
  int32_t kv_len, base_slot, position;
};

// What the queries of a bundle may see together. Their windows lie in [window_begin, window_end) and are all
// of it, but where positions do not follow each other: then there may be holes, and windows are walked one by
// one.
struct Joined {
  int32_t end, sink_end, window_begin, window_end;
  bool holes;
};

// range_bits() for tokens, which fit 32 bits.
__device__ inline uint64_t token_bits(int32_t first, int32_t last, int32_t base) {
  const int32_t low = max(first - base, 0), high = min(last - base, 64);
  return high <= low ? 0 : (~uint64_t{0} >> (64 - (high - low))) << low;
}

// Of the queries of a bundle, where they are given: the lowest of at least 0, the highest, whether some query
// does not stand one behind the query before it.
struct Positions {
  int32_t lowest, highest, apart;
};
inline constexpr Positions kNoPositions{INT32_MAX, -1, 0};

struct Shared {
  int32_t sums[kMostWarps];
  int64_t wide_sums[kMostWarps];
  Frame frame;
  int32_t frame_request;  // who has written it; several would where cu_q is not ordered
  Positions positions;
  DeviceCounts counts;
  int32_t last_block_unseen;
  // The first offence that any thread has met, behind a lock: in memory, because almost no bundle has one.
  unsigned long long key;
  OffenceRecord record;
  int32_t lock;
};

// Never inline: almost never run, and its code would stand between what always is. Atomics also where the
// lock alone would do, so that tools that look for races need not know about locks.
static __device__ TAMIS_CALLED void report(Shared& s, Offence kind, uint64_t place, Code code,
                                           int32_t request, int32_t row, int32_t page, int64_t value) {
  static_assert(sizeof(OffenceRecord) % sizeof(int32_t) == 0);
  const unsigned long long key = offence_key(kind, place);
  const OffenceRecord record{static_cast<int32_t>(code), request, row, page, value};
  while (atomicCAS(&s.lock, 0, 1) != 0) {
  }
  __threadfence_block();
  if (key < atomicMin(&s.key, key)) {
    const int32_t* from = reinterpret_cast<const int32_t*>(&record);
    int32_t* to = reinterpret_cast<int32_t*>(&s.record);
    for (size_t i = 0; i < sizeof record / sizeof(int32_t); ++i) atomicExch(to + i, from[i]);
  }
  __threadfence_block();
  atomicExch(&s.lock, 0);
}
__device__ inline void report_argument(Shared& s, int32_t request, int32_t row, int64_t value) {
  report(s, Offence::kArgument, static_cast<uint64_t>(request < 0 ? 0 : request), Code::kInvalidArgument,
         request, row, -1, value);
}

// The offsets and lengths of a request, judged where `to` is given; `live` where they can be followed.
struct Request {
  int32_t begin, end, kv_len, base_slot;
  bool live;
};

__device__ inline Request read_request(const NormalizeArgs& a, int32_t b, Shared* to) {
  const DeviceRequests& r = a.requests;
  const int32_t begin = r.cu_q[b], end = r.cu_q[b + 1], kv_len = r.kv_len[b];
  int64_t most = r.table_tokens;
  int32_t base = 0;
  if (r.cu_kv != nullptr) {
    const int32_t last = r.cu_kv[b + 1];
    base = r.cu_kv[b];
    most = base < 0 || last < base || last > r.kv_rows ? -1 : last - base;
  }
  const bool ordered = begin >= 0 && end >= begin && end <= r.total_q && (b != 0 || begin == 0);
  const bool held = kv_len >= 0 && kv_len <= most;
  if (to != nullptr && !ordered) report_argument(*to, b, -1, end);
  if (to != nullptr && !held) report_argument(*to, b, -1, kv_len);
  if (to != nullptr && held && kv_len > r.max_kv_len)
    report(*to, Offence::kCapacity, static_cast<uint64_t>(b), Code::kCapacityExceeded, b, -1, -1, kv_len);
  const bool live = ordered && held && kv_len <= r.max_kv_len;
  return {ordered ? begin : 0, ordered ? end : 0, live ? kv_len : 0, base, live};
}

// Query blocks of a request.
__device__ inline int64_t blocks_of(const Request& r, int32_t query_block) {
  const uint32_t by = static_cast<uint32_t>(query_block);
  return (static_cast<uint32_t>(r.end - r.begin) + by - 1) / by;
}

inline constexpr int32_t kMostInARow = 8;  // requests, one behind the other, that a thread reads for one sum

// The request and the queries of query block `qb`, where they can be followed. Bundle 0 also judges all
// requests. All threads take part.
template <bool kOneQuery>  // query blocks of one query: cu_q counts them itself
__device__ inline Frame find_frame(const NormalizeArgs& a, int32_t qb, bool judge, Shared& s) {
  const int32_t most = a.candidates.query_block;
  if (threadIdx.x == 0) {
    s.frame = {-1, 0, 0, 0, 0, 0};
    s.frame_request = -1;
  }
  __syncthreads();
  int64_t before = 0;  // query blocks of the requests before this chunk
  const int32_t requests = a.requests.requests;
  const int32_t each = kOneQuery ? 1 : min((requests - 1) / threads() + 1, kMostInARow);
  for (int32_t at = 0; at < requests; at += threads() * each) {
    int32_t b = at + thread() * each;
    Request r{0, 0, 0, 0, false};
    int64_t first = 0, blocks = 0;
    if constexpr (kOneQuery) {
      if (b < requests) r = read_request(a, b, judge ? &s : nullptr);
      first = r.begin, blocks = r.end - r.begin;
      if (judge) before += blocks;
    } else {
#pragma unroll 1
      for (int32_t i = b; i < min(b + each, requests); ++i) {
        r = read_request(a, i, judge ? &s : nullptr);
        blocks += blocks_of(r, most);
      }
      int64_t total = 0;
      first = before + device::block_prefix(blocks, s.wide_sums, &total);
      before += total;
    }
    if (qb < first || qb >= first + blocks) continue;
    if (!kOneQuery && each > 1) {
#pragma unroll 1
      for (;; ++b) {
        r = read_request(a, b, nullptr);
        blocks = blocks_of(r, most);
        if (qb < first + blocks) break;
        first += blocks;
      }
    }
    const int64_t from = r.begin + (qb - first) * most;
    if (atomicCAS(&s.frame_request, -1, b) != -1) continue;
    s.frame = {r.live ? b : -1,
               static_cast<int32_t>(from),
               static_cast<int32_t>(from + most < r.end ? from + most : r.end),
               r.kv_len,
               r.base_slot,
               r.kv_len - r.end};
    if (!r.live) read_request(a, b, &s);
  }
  if (judge) {
    if (kOneQuery) before = device::block_sum(before, s.wide_sums);
    const int64_t rows = before * a.candidates.index_heads;
    if (rows > a.candidates.rows && threadIdx.x == 0) report_argument(s, -1, a.candidates.rows, rows);
  }
  __syncthreads();
  return s.frame;
}

__device__ inline Sight sight_of_query(const NormalizeArgs& a, const Frame& f, int32_t query) {
  const int64_t pos = a.requests.q_pos != nullptr ? a.requests.q_pos[query] : f.position + query;
  return sight_of(pos, f.kv_len, a.mask.causal, a.mask.window, a.mask.sink);
}

// Lowest and highest position of the frame's queries. All threads take part; `p` was begun before a barrier.
__device__ inline void find_positions(const NormalizeArgs& a, const Frame& f, Positions& p) {
  Positions mine = kNoPositions;
  const int32_t first = a.requests.q_pos[f.first];
  for (int32_t q = f.first + thread(); q < f.last; q += threads()) {
    const int32_t pos = a.requests.q_pos[q];
    if (pos >= 0) mine.lowest = min(mine.lowest, pos);
    mine.highest = max(mine.highest, pos);
    if (int64_t{pos} - first != q - f.first) mine.apart = 1;
  }
  mine.lowest = __reduce_min_sync(~0u, mine.lowest);
  mine.highest = __reduce_max_sync(~0u, mine.highest);
  mine.apart = __reduce_max_sync(~0u, mine.apart);
  if (threadIdx.x % 32 == 0) {
    atomicMin(&p.lowest, mine.lowest);
    atomicMax(&p.highest, mine.highest);
    atomicMax(&p.apart, mine.apart);
  }
  __syncthreads();
}

// Ends, sinks and windows move up with positions, so the lowest and the highest tell, however many there are.
// Neighbouring windows of positions that follow each other touch.
__device__ inline Joined join_sights(const NormalizeArgs& a, const Frame& f, Shared& s) {
  int64_t lowest = f.position + f.first, highest = f.position + f.last - 1;
  bool apart = false;
  if (a.requests.q_pos != nullptr) {
    find_positions(a, f, s.positions);
    lowest = s.positions.lowest, highest = s.positions.highest, apart = s.positions.apart != 0;
  } else if (lowest < 0) {
    lowest = 0;
  }
  const Sight high = sight_of(highest, f.kv_len, a.mask.causal, a.mask.window, a.mask.sink);
  Joined j{static_cast<int32_t>(high.end), static_cast<int32_t>(high.sink_end), 0, 0, false};
  if (a.mask.window == 0 || highest < 0) return j;
  const Sight low = sight_of(lowest, f.kv_len, a.mask.causal, a.mask.window, a.mask.sink);
  if (low.window_begin >= low.window_end) return j;
  j.window_begin = static_cast<int32_t>(low.window_begin);
  j.window_end = static_cast<int32_t>(high.window_end);
  j.holes = apart;
  return j;
}

// The tokens of a word that lie in the window of some query. Never inline: positions seldom have holes.
static __device__ TAMIS_CALLED uint64_t window_bits(const int32_t* positions, int32_t queries, int32_t kv_len,
                                                    int64_t window, int32_t base) {
  uint64_t bits = 0;
  for (int32_t q = 0; q < queries; ++q) {
    const Sight s = sight_of(positions[q], kv_len, true, window, 0);
    bits |= token_bits(static_cast<int32_t>(s.window_begin), static_cast<int32_t>(s.window_end), base);
  }
  return bits;
}

// Sets bits [first, last) of the bitmap, the threads side by side.
__device__ inline void add_blocks(uint32_t* bitmap, int32_t first, int32_t last, int32_t thread,
                                  int32_t threads) {
  if (last <= first) return;
  for (int32_t w = first / 32 + thread; w <= (last - 1) / 32; w += threads) {
    const int32_t low = max(first - w * 32, 0), high = min(last - w * 32, 32);
    atomicOr(&bitmap[w], (~0u >> (32 - (high - low))) << low);
  }
}

// Offset i of CSR rows, as it stands there.
__device__ inline int64_t offset_of(const DeviceCandidates& c, int64_t i) {
  return c.wide_indptr ? static_cast<const int64_t*>(c.indptr)[i] : static_cast<const int32_t*>(c.indptr)[i];
}

// Where a bundle's entries may lie.
struct Place {
  int64_t begin;
  int32_t capacity;
};

// A bundle's place of its own, from its first row. Offsets that lead out of the index set, and rows that this
// step does not have, give no room: either is an offence, which some bundle reports.
__device__ inline Place own_place(const NormalizeArgs& a, int32_t bundle, int32_t first_row) {
  const DeviceCandidates& c = a.candidates;
  const OwnPlaces& own = a.out.own;
  const int64_t last_row = int64_t{first_row} + a.out.lists;
  if (last_row > c.rows) return {0, 0};
  const int64_t begin = offset_of(c, first_row), end = offset_of(c, last_row);
  if (begin < 0 || end < begin || end > own.listed) return {0, 0};
  const int64_t room = (end - begin) * own.an_entry + own.extra;
  return {begin * own.an_entry + bundle * own.extra,
          static_cast<int32_t>(room < a.out.capacity ? room : a.out.capacity)};
}

inline constexpr int64_t kMostEntries = int64_t{1} << 28;  // of a row: places in one have 28 bits

// The raw entries of one candidate row; none where they cannot be followed.
struct Row {
  const int32_t* entries;
  int64_t count;
};

__device__ inline Row row_of(const NormalizeArgs& a, int32_t request, int32_t row, Shared* to) {
  const DeviceCandidates& c = a.candidates;
  if (row >= c.rows) return {nullptr, 0};  // a step with fewer rows than its plan
  if (c.indptr != nullptr) {
    const int64_t begin = offset_of(c, row), end = offset_of(c, int64_t{row} + 1);
    if (begin < 0 || end < begin || end > c.entries || end - begin >= kMostEntries ||
        (row == 0 && begin != 0)) {
      if (to != nullptr) report_argument(*to, request, row, end);
      return {nullptr, 0};
    }
    return {c.indices + begin, end - begin};
  }
  const int64_t count = c.count != nullptr ? c.count[row] : c.width;
  if (count < 0 || count > c.width) {
    if (to != nullptr) report_argument(*to, request, row, count);
    return {nullptr, 0};
  }
  return {c.indices + row * c.row_stride, count};
}

// What a page lookup brings; the loads of several are under way together.
struct PageEntry {
  int32_t entry;
  uint64_t mapped, now;
};

__device__ inline PageEntry read_page(const NormalizeArgs& a, int32_t request, int32_t page) {
  const DevicePages& p = a.pages;
  return {p.table[request * p.table_stride + page],
          p.page_stamps != nullptr ? p.table_stamps[request * p.stamp_stride + page] : 0, 0};
}

__device__ inline void read_stamp(const NormalizeArgs& a, PageEntry* e) {
  if (a.pages.page_stamps != nullptr && e->entry >= 0 && e->entry < a.pages.pages)
    e->now = a.pages.page_stamps[e->entry];
}

__device__ inline void judge_page(const NormalizeArgs& a, int32_t request, int32_t page, const PageEntry& e,
                                  Shared& s) {
  Code code = Code::kOk;
  if (e.entry == -1)
    code = Code::kPageUnmapped;
  else if (e.entry < 0 || e.entry >= a.pages.pages)
    code = Code::kPageOutOfRange;
  else if (e.mapped != e.now)
    code = Code::kForeignPage;
  if (code != Code::kOk)
    report(s, Offence::kPage, static_cast<uint64_t>(request) << 30 | static_cast<uint64_t>(page), code,
           request, -1, page, e.entry);
}

}  // namespace tamis::index
