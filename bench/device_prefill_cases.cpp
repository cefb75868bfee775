// The prefill benches of the device by name (docs/benchmarks.md).
#include "core/checks.h"
#include "device_cases.h"
#include "device_prefill.h"

namespace tamis::bench {
namespace {

constexpr int64_t k16 = 16384, k32 = 32768, k64 = 65536, k128 = 131072;

// A share of the key blocks: dN, N % in whole numbers.
struct Share {
  int64_t sixteenths;
  std::string name() const { return text("d", 100 * sixteenths / 16); }
};
constexpr Share kSixteenth{1}, kQuarter{4}, kShares[] = {{1}, {2}, {4}, {8}, {16}};

std::string describe_what(const PrefillWork& w) {
  std::string what = w.queries == w.kv_len ? text("L ", w.kv_len)
                                           : text("the last ", w.queries, " of ", w.kv_len, " tokens");
  if (w.listing == Listing::kAll)
    what += ", every token";
  else
    what += text(", ", w.q_heads, "/", w.kv_heads, " heads, lists of blocks of ", w.block, " for ",
                 w.query_block, w.query_block == 1 ? " query" : " queries");
  if (w.listing == Listing::kUniform || w.listing == Listing::kRuns)
    what += text(", ", 100 * w.sixteenths / w.share_of(), " %");
  if (w.listing == Listing::kRuns) what += text(" in runs of ", w.kRun, " tokens");
  if (w.masked) what += ", an eighth of each missing";
  if (w.causal) what += ", causal";
  if (w.pairs) what += ", CTAs in pairs";
  if (w.page > 0) what += text(", pages of ", w.page, w.layout == Layout::kNHD ? ", NHD" : ", HND");
  return what;
}

Case case_of(const PrefillCase& c) {
  const auto run = [c](Session& session, const std::string&) {
    return c.index_only ? prefill_index_readings(session, c.reading, c.work)
                        : prefill_readings(session, "prefill." + c.reading, c.work, c.parts);
  };
  return {.name = (c.index_only ? "cuda.prefill.normalize." : "cuda.prefill.") + c.reading,
          .what = (c.index_only ? "normalize and schedule: " : "") + describe_what(c.work),
          .run = run,
          .needs_trace = c.work.listing == Listing::kRecorded,
          .device = true};
}

// Lists of key blocks as large as `block`, of the whole of `length` tokens.
PrefillWork blocks(int64_t block, int64_t length, Share share) {
  return {.queries = length,
          .kv_len = length,
          .block = block,
          .query_block = block == 64 ? 64 : 128,
          .sixteenths = share.sixteenths};
}

std::string block_name(int64_t block, int64_t length, Share share) {
  return text("block", block, ".L", length / 1024, "k.", share.name());
}

PrefillWork causal(PrefillWork w) { return w.causal = true, w; }
PrefillWork masked(PrefillWork w) { return w.masked = true, w; }
PrefillWork in_pairs(PrefillWork w) { return w.pairs = true, w; }
PrefillWork of_kv_heads(PrefillWork w, int64_t heads) { return w.kv_heads = heads, w; }
PrefillWork of_layout(PrefillWork w, Layout layout) { return w.layout = layout, w; }
PrefillWork paged(PrefillWork w, Layout layout) { return w.page = 16, w.layout = layout, w; }

void add_blocks(std::vector<PrefillCase>* all) {
  for (const int64_t block : {16, 64, 128})
    for (const int64_t length : {k16, k32})
      for (const Share share : kShares) {
        const bool target = length == k32 && (share.name() == "d6" || share.name() == "d25");
        all->push_back({block_name(block, length, share), blocks(block, length, share), target});
      }
  for (const int64_t length : {k16, k32})
    for (const Share share : {kSixteenth, kQuarter})
      all->push_back({block_name(128, length, share) + ".kv32", of_kv_heads(blocks(128, length, share), 32),
                      length == k32});
  for (const int64_t block : {16, 64, 128})
    for (const Share share : {kSixteenth, kQuarter}) {
      const std::string name = block_name(block, k32, share);
      const PrefillWork w = blocks(block, k32, share);
      all->push_back({name + ".causal", causal(w)});
      all->push_back({name + ".masked", masked(w)});
      all->push_back({name + ".nhd", of_layout(w, Layout::kNHD)});
      all->push_back({name + ".pairs", in_pairs(w)});
      all->push_back({name + ".paged", paged(w, Layout::kNHD)});
      all->push_back({name + ".paged.hnd", paged(w, Layout::kHND)});
    }
}

void add_dense(std::vector<PrefillCase>* all) {
  const PrefillWork w{.queries = k16, .kv_len = k16, .listing = Listing::kAll};
  all->push_back({"dense.L16k", w});
  all->push_back({"dense.L16k.causal", causal(w)});
  all->push_back({"dense.L16k.pairs", in_pairs(w)});
  all->push_back({"dense.L16k.paged", paged(w, Layout::kNHD)});
  all->push_back({"dense.L16k.paged.hnd", paged(w, Layout::kHND)});
}

// The last queries of a long request, over a paged cache. 128 queries are fewer row tiles than there are
// multiprocessors, so that their rows are split.
void add_chunks(std::vector<PrefillCase>* all) {
  const PrefillWork lists =
      causal(paged({.queries = 2048, .kv_len = k128, .block = 64, .query_block = 64}, Layout::kNHD));
  PrefillWork dense = lists, few = lists, few_dense;
  dense.listing = Listing::kAll, dense.query_block = 128;
  few.queries = 128, few.sixteenths = kQuarter.sixteenths;
  few_dense = dense, few_dense.queries = 128;
  all->push_back({"chunk.2k.on128k", lists, true});
  all->push_back({"chunk.2k.on128k.hnd", of_layout(lists, Layout::kHND)});
  all->push_back({"chunk.2k.on128k.dense", dense});
  all->push_back({"chunk.128.on128k", few, true});
  all->push_back({"chunk.128.on128k.dense", few_dense, true});
}

// Where lists begin to pay: whole steps beside the dense step of the same length.
void add_crossover(std::vector<PrefillCase>* all) {
  for (const int64_t length : {8192, 16384, 32768, 65536, 131072}) {
    const std::string at = text("cross.L", length / 1024, "k.");
    all->push_back({at + "dense", {.queries = length, .kv_len = length, .listing = Listing::kAll}, true});
    for (const int64_t block : {16, 64, 128})
      for (const int64_t of64 : {1, 4, 16, 32, 48})
        for (const Listing listing : {Listing::kUniform, Listing::kRuns}) {
          PrefillWork w = blocks(block, length, Share{of64});
          w.finer = true, w.listing = listing;
          all->push_back(
              {text(at, "block", block, ".d", 100 * of64 / 64, ".", listing_name(listing)), w, true});
        }
  }
}

// One list a query and KV head. Rows are not joined: 16 of a tile's 128 are taken.
void add_lists(std::vector<PrefillCase>* all) {
  PrefillWork w = causal({.queries = k64,
                          .kv_len = k64,
                          .q_heads = 64,
                          .kv_heads = 4,
                          .listing = Listing::kNear,
                          .block = 64,
                          .query_block = 1});
  all->push_back({"lists.random.T64k", w});
  w.listing = Listing::kRecorded;
  all->push_back({"lists.trace.T64k", w});
}

}  // namespace

std::vector<PrefillCase> prefill_cases() {
  std::vector<PrefillCase> all;
  add_dense(&all);
  add_blocks(&all);
  add_chunks(&all);
  add_crossover(&all);
  add_lists(&all);
  for (const int64_t block : {16, 64, 128})
    for (const Share share : {kSixteenth, kQuarter})
      all.push_back({block_name(block, k32, share), blocks(block, k32, share), false, true});
  return all;
}

std::vector<Case> device_prefill_cases() {
  std::vector<Case> all;
  for (const PrefillCase& c : prefill_cases()) all.push_back(case_of(c));
  return all;
}

}  // namespace tamis::bench
