// The three ways to find and order the blocks of a row give the same list, and each is the cheapest
// somewhere.
#include "index/touched.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <set>

namespace tamis::index {
namespace {

constexpr Ordering kWays[] = {Ordering::kBitmap, Ordering::kSort, Ordering::kHash};

struct Memory {
  std::vector<uint64_t> bitmap;
  std::vector<int32_t> found, table, ranks;
};

TEST(TouchedBlocks, AreASetInOrder) {
  Memory memory;  // shared by all: nothing of an earlier row may shine through
  EXPECT_TRUE(rc::check("blocks and ranks", [&memory] {
    const int limit = *rc::gen::inRange(1, 700);
    TouchedBlocks touched(&memory.bitmap, &memory.found, &memory.table, &memory.ranks);
    for (const Ordering way : kWays) {
      std::set<int32_t> want;
      // The expected number is a hint: the hash has to grow when it is too small.
      touched.start(way, limit, *rc::gen::inRange(0, 40));
      for (int i = *rc::gen::inRange(0, 60); i > 0; --i) {
        const int first = *rc::gen::inRange(0, limit);
        if (*rc::gen::inRange(0, 4) == 0) {
          const int last = *rc::gen::inRange(0, limit + 1);  // also empty and backwards
          touched.add_range(first, last);
          for (int b = first; b < last; ++b) want.insert(b);
        } else {
          touched.add(first);
          want.insert(first);
        }
      }
      touched.finish();
      RC_ASSERT(touched.blocks() == std::vector<int32_t>(want.begin(), want.end()));
      RC_ASSERT(touched.ordering() == way);
      int64_t rank = 0;
      for (const int32_t b : want) RC_ASSERT(touched.rank(b) == rank++);
    }
  }));
}

TEST(TouchedBlocks, HashesOfAVeryLongContext) {
  Memory memory;
  TouchedBlocks touched(&memory.bitmap, &memory.found, &memory.table, &memory.ranks);
  touched.start(Ordering::kHash, int64_t{1} << 27, 1);
  std::set<int32_t> want;
  for (int64_t i = 0; i < 3000; ++i) {
    const int32_t block = static_cast<int32_t>(i * 44739 % (int64_t{1} << 27));
    touched.add(block);
    touched.add((int64_t{1} << 27) - 1);
    want.insert(block);
  }
  want.insert((1 << 27) - 1);
  touched.finish();
  EXPECT_EQ(touched.blocks(), std::vector<int32_t>(want.begin(), want.end()));
  EXPECT_EQ(touched.rank((1 << 27) - 1), static_cast<int64_t>(want.size()) - 1);
  EXPECT_LT(memory.table.size(), size_t{1} << 14) << "memory follows the entries, not the context";
}

TEST(CheapestOrdering, EachWinsSomewhere) {
  EXPECT_EQ(cheapest_ordering(64, 1024), Ordering::kBitmap) << "a context of 64K";
  EXPECT_EQ(cheapest_ordering(4, int64_t{1} << 24), Ordering::kSort) << "a short row of a long context";
  std::set<Ordering> won;
  for (int64_t adds = 1; adds <= int64_t{1} << 24; adds *= 2)
    for (int64_t limit = 1; limit <= int64_t{1} << 27; limit *= 2) won.insert(cheapest_ordering(adds, limit));
  EXPECT_EQ(won.size(), 3u);
  EXPECT_EQ(won.count(Ordering::kAuto), 0u);
  EXPECT_NE(cheapest_ordering(0, 0), Ordering::kAuto);
}

}  // namespace
}  // namespace tamis::index
