// One candidate row on its way into an IndexSet.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/bits.h"
#include "index/storage.h"
#include "index/touched.h"
#include "tamis/problem.h"
#include "tamis/status.h"

namespace tamis::index {

// The raw entries of one row, in their stride.
struct RawRow {
  const int32_t* entries;
  int64_t stride, count;
};
RawRow raw_row(const CandidateView& candidates, int64_t row);

// What the queries of a row may see, joined.
struct RowSight {
  int64_t end = 0, sink_end = 0;                       // [0, end), [0, sink_end)
  std::vector<std::pair<int64_t, int64_t>> windows{};  // ascending, disjoint
};
void join_sights(const Problem& problem, const RowInfo& info, RowSight* sight);

// Where query `i` of a request sits.
inline int64_t position_of(const Problem& p, int64_t request, int64_t query) {
  if (p.query.q_pos.present()) return p.query.q_pos.at<int32_t>({query});
  const int64_t end = p.query.cu_q.at<int32_t>({request + 1});
  return p.cache.kv_len.at<int32_t>({request}) - end + query;
}

// Appends the blocks of one row: block numbers, member words, `full`, and in `seen` the tokens some query may
// see.
class RowBuilder {
 public:
  RowBuilder(const Problem& problem, const NormalizeOptions& options, IndexSet::Storage* out);

  Status add(const RowInfo& info, int64_t row);

 private:
  void collect(const RawRow& raw, int64_t kv_len);
  Status fill(const RawRow& raw, const RowInfo& info, int64_t row, int64_t kv_len, int64_t first);
  void keep_visible(int64_t kv_len, int64_t first);
  bool first_time(int64_t entry);
  bool set_tokens(int64_t begin, int64_t end, int64_t first);
  bool set_in_word(int64_t begin, int64_t end, int64_t first);
  uint64_t visible_bits(uint64_t listed, int64_t base, size_t* window) const;

  const Problem& problem_;
  const CandidateView& c_;
  const NormalizeOptions options_;
  IndexSet::Storage& out_;
  TouchedBlocks touched_;
  RowSight sight_;
  const int block_, log2_block_, words_;
  int64_t first_bad_ = -1;  // place of the first entry out of range, under `reject`
};

}  // namespace tamis::index
