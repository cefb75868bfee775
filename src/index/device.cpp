// Where the parts of a device index set lie, and how much shared memory making it takes.
#include "index/device.h"

#include <algorithm>

#include "core/saturating.h"

namespace tamis::index {

IndexLayout index_layout(int64_t bundles, int64_t entries, int64_t lists) {
  IndexLayout l{};
  int64_t at = 0;
  const auto take = [&at](int64_t* offset, int64_t count, size_t bytes) {
    *offset = at;
    at += to_line(count * static_cast<int64_t>(bytes));
  };
  int64_t head = 0;
  take(&head, 1, sizeof(IndexHead));
  take(&l.bundle, bundles, sizeof(DeviceBundle));
  take(&l.count, bundles, sizeof(int32_t));
  take(&l.offence, bundles, sizeof(uint64_t));
  take(&l.record, bundles, sizeof(OffenceRecord));
  take(&l.counts, bundles, sizeof(DeviceCounts));
  take(&l.blocks, entries, sizeof(int32_t));
  take(&l.places, entries, sizeof(uint32_t));
  take(&l.members, entries * lists, sizeof(uint64_t));
  l.bytes = at;
  return l;
}

DeviceIndex index_at(void* memory, const IndexLayout& layout, int64_t bundles, int64_t lists,
                     int64_t capacity, const OwnPlaces& own) {
  char* at = static_cast<char*>(memory);
  return {.head = reinterpret_cast<IndexHead*>(at),
          .bundle = reinterpret_cast<DeviceBundle*>(at + layout.bundle),
          .count = reinterpret_cast<int32_t*>(at + layout.count),
          .offence = reinterpret_cast<uint64_t*>(at + layout.offence),
          .record = reinterpret_cast<OffenceRecord*>(at + layout.record),
          .counts = reinterpret_cast<DeviceCounts*>(at + layout.counts),
          .blocks = reinterpret_cast<int32_t*>(at + layout.blocks),
          .places = reinterpret_cast<uint32_t*>(at + layout.places),
          .members = reinterpret_cast<uint64_t*>(at + layout.members),
          .capacity = capacity,
          .own = own,
          .bundles = static_cast<int32_t>(bundles),
          .lists = static_cast<int32_t>(lists)};
}

NormalizeShared normalize_shared(int64_t max_kv_len, int32_t block, int64_t capacity, int64_t lists,
                                 int64_t width, int64_t most_bytes) {
  constexpr int64_t most_staged = 4096;
  const int64_t staged = std::min(width, most_staged);
  const int64_t maps = 2 * bitmap_words(max_kv_len, block) * 4 + staged * 4;
  const int64_t all = maps + capacity * (lists * 8 + 4);
  return {.bytes = all <= most_bytes ? all : maps,
          .lists = all <= most_bytes,
          .staged = static_cast<int32_t>(staged)};
}

NormalizeShared within(NormalizeShared shared, int64_t room) {
  if (shared.lists || shared.bytes <= room) return shared;
  const int64_t fewer = std::min<int64_t>(shared.staged, ceil_div(shared.bytes - room, 4));
  shared.staged -= static_cast<int32_t>(fewer);
  shared.bytes -= 4 * fewer;
  return shared;
}

namespace {

constexpr int32_t kMultiprocessors = 132;  // of the device that was measured
constexpr int64_t kWorkOfAThread = 4;

// What the threads of a CTA share among them: entries, blocks, words of the bitmap, pages, and requests, of
// which a thread reads several for one sum.
int64_t work_of(const NormalizeArgs& args) {
  const DeviceCandidates& c = args.candidates;
  const DeviceRequests& r = args.requests;
  int64_t work = r.requests / 2;
  if (c.every_token)
    return args.pages.table == nullptr ? work : std::max(work, r.max_kv_len / args.pages.page_size);
  const int64_t entries = c.indptr != nullptr ? c.entries / std::max(c.rows, 1) : c.width;
  const int64_t blocks = std::min(args.out.capacity, entries * std::max(c.unit / args.block, 1));
  return std::max({work, entries, blocks, bitmap_words(r.max_kv_len, args.block)});
}

}  // namespace

int normalize_threads(const NormalizeArgs& args, const NormalizeShared& shared) {
  const bool small = is_plain(args, shared) && args.candidates.query_block == 1;  // of few registers
  const int32_t bundles = args.out.bundles;
  // Few CTAs wait for memory and gain from more threads; many fill the chip and lose by the barriers, and by
  // the instructions that every warp runs, for however few entries.
  if (small && bundles <= 2 * kMultiprocessors && args.staged >= 1024) return 1024;
  int threads = 256;
  if (bundles <= (small ? 8 : 2) * kMultiprocessors) return threads;
  const int64_t work = work_of(args);
  while (threads > 32 && threads / 2 * kWorkOfAThread >= work) threads /= 2;
  return threads;
}

}  // namespace tamis::index
