// The index set on the device: what lies where in a caller's memory, and how it is made there.
//
// Bundles are numbered (query block, KV head), or by query block alone where one list serves all heads. The
// entries of bundle b begin at b * capacity, so addresses do not move from step to step; or, where capacity
// would have to be far more than most bundles need (CSR), at a place of its own, see OwnPlaces.
#pragma once

#include <cstdint>

#include "core/hd.h"
#include "tamis/candidates.h"
#include "tamis/problem.h"
#include "tamis/status.h"

namespace tamis::index {

inline constexpr uint64_t kNoOffence = ~uint64_t{0};
inline constexpr uint32_t kUntouched = ~uint32_t{0};  // place of a block that no query sees a token of

// Offences in the order of docs/semantics.md section 10: smaller is reported first.
enum class Offence : uint8_t { kArgument = 0, kCandidate = 1, kPage = 2, kCapacity = 3 };

// `place` orders offences of a kind: row and position, or request and page.
TAMIS_HD inline uint64_t offence_key(Offence kind, uint64_t place) {
  return uint64_t{static_cast<uint8_t>(kind)} << 60 | (place & ((uint64_t{1} << 60) - 1));
}

// What went wrong, as in the record that poll() reads. Numbers of -1 do not apply.
struct OffenceRecord {
  int32_t code, request, row, page;
  int64_t value;
};

// One bundle as the kernels of attention know it.
struct alignas(16) DeviceBundle {
  int32_t request;  // -1: no such row in this step
  int32_t first_query, last_query;
  int32_t kv_len;
  int32_t base_slot;  // of token 0 of a contiguous cache; 0 where paged
  int32_t position;   // of query 0 of total_q, where positions follow from lengths
  int64_t begin;      // first of its entries
};

// What a bundle adds to the statistics. Its lists may hold more entries than 32 bits count, each fewer.
struct DeviceCounts {
  int64_t raw;
  int32_t padding, invalid, duplicates, unique, future;
  int32_t gaps, touched, selected;
};

// The counts with those that follow from others. Of more entries than 32 bits count, only `raw` is known:
// sums of their kinds may have wrapped, so they are given as the most there is.
TAMIS_HD inline DeviceCounts complete(DeviceCounts c) {
  constexpr int32_t most = (int64_t{1} << 31) - 1;
  c.gaps = c.gaps > 0 ? c.gaps - 1 : 0;
  if (c.raw <= most)
    c.unique = static_cast<int32_t>(c.raw) - c.padding - c.invalid - c.duplicates;
  else
    c.padding = c.invalid = c.duplicates = c.unique = c.future = most;
  return c;
}

// What an index set was made by and for: it must not run with anything else, whose sizes could lead out of
// memory and whose masks would reach pages that nobody judged.
struct IndexMark {
  uint64_t plan, problem;
};

// Head of the index memory. The stamp is that of the last step that was scheduled; 0 since a normalize.
struct IndexHead {
  uint64_t stamp;
  IndexMark mark;
  uint64_t unused;
};

// CSR: the rows of bundle b, one behind the other, hold raw entries [p, q) of all, by `indptr`. Each can
// touch `an_entry` blocks, window and sink of the bundle `extra` more. So entries from p * an_entry + b *
// extra on, (q - p) * an_entry + extra of them, always hold its blocks, and end where those of bundle b + 1
// begin: no sum over bundles, and listed * an_entry + bundles * extra in all.
struct OwnPlaces {
  int64_t an_entry;  // 0: bundles have no places of their own
  int64_t extra;
  int64_t listed;  // raw entries of all rows, at most
};

struct DeviceIndex {
  IndexHead* head;
  DeviceBundle* bundle;   // [bundles]
  int32_t* count;         // [bundles] blocks; -1: no such row in this step
  uint64_t* offence;      // [bundles] key of the first, or kNoOffence
  OffenceRecord* record;  // [bundles] of that offence
  DeviceCounts* counts;   // [bundles]
  int32_t* blocks;        // [entries]
  uint32_t* places;       // [entries] physical block of a paged cache, logical of a contiguous one
  uint64_t* members;      // [entries * lists]
  int64_t capacity;       // blocks of one bundle, at most
  OwnPlaces own;
  int32_t bundles, lists;
};

// Byte offsets of the parts of the index memory; `bytes` is all of it. `entries`: of all bundles.
struct IndexLayout {
  int64_t bundle, count, offence, record, counts, blocks, places, members, bytes;
};
IndexLayout index_layout(int64_t bundles, int64_t entries, int64_t lists);
DeviceIndex index_at(void* memory, const IndexLayout& layout, int64_t bundles, int64_t lists,
                     int64_t capacity, const OwnPlaces& own);

struct DeviceRequests {
  const int32_t *cu_q, *kv_len;
  const int32_t* q_pos;  // or null
  const int32_t* cu_kv;  // or null
  int32_t requests, total_q;
  int64_t kv_rows;       // of a contiguous cache
  int64_t table_tokens;  // that a row of the page table can map
  int64_t max_kv_len;    // the plan's
};

struct DevicePages {
  const int32_t* table;                        // null: contiguous
  const uint64_t *page_stamps, *table_stamps;  // or null
  int64_t table_stride, stamp_stride;          // from request to request
  int64_t pages, page_size;
};

struct DeviceCandidates {
  const int32_t* indices;
  int64_t row_stride;      // fixed width
  const void* indptr;      // CSR
  const int32_t* count;    // or null
  int64_t width, entries;  // K of fixed width; nnz of CSR
  int32_t rows, unit, query_block, index_heads;
  bool wide_indptr, every_token, reject_duplicates, reject_invalid;
};

struct NormalizeArgs {
  DeviceRequests requests;
  DevicePages pages;
  DeviceCandidates candidates;
  Mask mask;
  DeviceIndex out;
  int32_t block, log2_block;
  int32_t bundles_a_block;             // bundles of a query block
  int32_t blocks_a_page, log2_blocks;  // 0: contiguous, or pages that blocks do not divide; log2 or -1
  int32_t staged;                      // as in NormalizeShared
  int32_t rows_apart;                  // candidate rows from one bundle of a query block to the next
  bool all_blocks;
  IndexMark mark;
};

// Words of a bitmap over the blocks of a request.
TAMIS_HD inline int64_t bitmap_words(int64_t max_kv_len, int32_t block) {
  return (max_kv_len / block + 1 + 31) / 32;
}

// Bytes of shared memory normalize needs for a request of max_kv_len tokens, and whether blocks and member
// words fit there too.
struct NormalizeShared {
  int64_t bytes;
  bool lists;
  int32_t staged;  // entries of a row that are brought there before anything else is known
};
NormalizeShared normalize_shared(int64_t max_kv_len, int32_t block, int64_t capacity, int64_t lists,
                                 int64_t width, int64_t most_bytes);

// The same within `room` bytes, where bitmaps leave less of it than the plan took: fewer entries are staged.
NormalizeShared within(NormalizeShared shared, int64_t room);

// Whether an instance for what most steps are made of will do: one list a bundle, no dense path, blocks that
// divide pages; of one query, every entry inside one block.
inline bool is_plain(const NormalizeArgs& args, const NormalizeShared& shared) {
  return shared.lists && args.out.lists == 1 && !args.all_blocks &&
         (args.candidates.query_block > 1 || args.block % args.candidates.unit == 0) &&
         (args.pages.table == nullptr || args.blocks_a_page > 0);
}

// Threads of a CTA, which makes one bundle.
int normalize_threads(const NormalizeArgs& args, const NormalizeShared& shared);

Status launch_normalize(const NormalizeArgs& args, const NormalizeShared& shared, void* stream);

}  // namespace tamis::index
