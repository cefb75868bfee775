// What an IndexSet owns.
#pragma once

#include <cstdint>
#include <vector>

#include "tamis/index.h"

namespace tamis {

struct IndexSet::Storage {
  int32_t block = 0, words = 0;
  uint64_t source = 0;
  int64_t slots = 0;
  std::vector<RowInfo> row;
  std::vector<int64_t> begin;
  std::vector<int32_t> count;
  std::vector<int32_t> blocks;
  std::vector<uint64_t> members;
  std::vector<uint8_t> full;
  std::vector<int64_t> span_begin;
  std::vector<Span> spans;
  IndexStats stats;

  // Scratch of normalize, kept so that a reused set allocates nothing.
  std::vector<uint64_t> bitmap, page_bitmap, entry_bitmap;
  std::vector<uint64_t> seen;  // tokens of each kept block that some query of its row may see
  std::vector<int32_t> found, table;
  std::vector<int32_t> ranks;

  void clear();
};

}  // namespace tamis
