// The lists of the device benches: decode steps by batch, context, share, page size and distribution. All of
// it happens on the host and is the same for the same seed.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lists.h"
#include "tamis/cache.h"
#include "work.h"

namespace tamis::bench {

// One query a request, 32 query and 8 KV heads of 128 in bf16, a list for each KV head.
struct StepWork {
  int64_t requests = 1, kv_len = 65536, page = Scale::kPage;
  bool dense = false;           // every token, contiguous, HND: the four below do not apply
  int64_t listed = 256;         // entries of a row; of kHot the mean
  int64_t unit = Scale::kPage;  // tokens of an entry: the page, or 1
  int64_t window = Scale::kWindow;
  Spread spread = Spread::kUniform;
  Layout layout = Layout::kNHD;
  // For readings that touch no K and V: page tables lead into one small pool that all share, with stamps.
  bool index_only = false;
  uint64_t seed = 64;

  int64_t pages() const { return kv_len / page; }                                       // of a request
  int64_t most_listed() const { return spread == Spread::kHot ? 4 * listed : listed; }  // of any row
  int64_t units() const { return kv_len / unit; }
};

// Draws the rows of a step.
class RowMaker {
 public:
  // `trace`: for kRecorded; must outlive the maker.
  RowMaker(const StepWork& work, const Trace* trace) : work_(work), trace_(trace), random_(work.seed) {}

  // The rows of one request's KV heads: entries in random order, none twice.
  std::vector<std::vector<int32_t>> rows(int64_t turn, int64_t request);

  Random& random() { return random_; }

 private:
  std::vector<int32_t> uniform();
  std::vector<int32_t> clustered();
  // Half of each row are pages of a hot set that all heads of the request favour; lengths have a long tail.
  std::vector<std::vector<int32_t>> hot_rows(int64_t heads);
  std::vector<int32_t> different(int64_t limit, int64_t count);

  // Entries below the window, and how many of the window's a list holds: half of them.
  int64_t in_window() const { return work_.window / work_.unit / 2; }
  int64_t below() const { return work_.units() - work_.window / work_.unit; }
  void add_window_half(std::vector<int32_t>* row);

  const StepWork work_;
  const Trace* trace_;
  Random random_;
  std::vector<uint8_t> seen_;
};

// The entries a row selects, ascending: the listed ones and the window's.
std::vector<int32_t> with_window(const StepWork& work, std::vector<int32_t> row);

// Places of the K and the V of these entries, in rows of 256 bytes from the pool's start (DevicePieces). V
// starts `v_rows` rows after K; `table` are the request's pages.
void add_pieces(const StepWork& work, const std::vector<int32_t>& entries, const int32_t* table, int64_t head,
                int64_t v_rows, std::vector<int32_t>* at);

// The `case` of a reading.
Json describe_step(const StepWork& work);

}  // namespace tamis::bench
