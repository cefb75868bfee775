// What a Bundles owns. Where rows stay apart only `bundle` and `rows` are filled: the view's other arrays are
// the index's.
#pragma once

#include <cstddef>
#include <vector>

#include "tamis/bundle.h"

namespace tamis {

struct Bundles::Storage {
  BundleView view;
  BundleStats stats;

  std::vector<Bundle> bundle;
  std::vector<int32_t> rows;
  std::vector<int32_t> blocks;
  std::vector<uint64_t> members;
  std::vector<uint8_t> full;
  std::vector<int64_t> span_begin;
  std::vector<Span> spans;
};

namespace index {

// As many member words as an index may hold entries, 1 GiB. The words of lists that share nothing grow with
// the square of their number, and a small hostile input must not ask for all memory.
inline constexpr size_t kMostMemberWords = size_t{1} << 27;

// bundle() with another bound, for tests.
Result<Bundles> bundle_within(size_t most_words, const Problem& problem, const IndexSet& set,
                              const BundleOptions& options);

}  // namespace index
}  // namespace tamis
