// The set seen from the keys: physical spans, runs of columns, grouping by owner.
#include "index/transpose.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <map>

namespace tamis::index {
namespace {

// Spans written out: first slot and length of each.
std::vector<std::pair<int64_t, int64_t>> spans_of(int64_t page_size, int64_t slots) {
  std::vector<std::pair<int64_t, int64_t>> spans;
  const int64_t whole = page_size == 0 ? slots : page_size;
  for (int64_t page = 0; page < slots; page += whole)
    for (int64_t at = 0; at < whole; at += 64)
      spans.emplace_back(page + at, std::min<int64_t>(64, whole - at));
  return spans;
}

void expect_spans(int64_t page_size, int64_t slots) {
  SCOPED_TRACE(::testing::Message() << slots << " slots, pages of " << page_size);
  const PhysicalSpans spans(page_size, slots);
  const auto want = spans_of(page_size, slots);
  EXPECT_EQ(spans.size(), page_size == 0 ? 64 : std::min<int64_t>(page_size, 64));
  ASSERT_EQ(spans.count(), static_cast<int64_t>(want.size()));
  for (int64_t span = 0; span < spans.count(); ++span) {
    const auto [first, length] = want[span];
    ASSERT_EQ(spans.first(span), first) << span;
    ASSERT_EQ(spans.length(span), length) << span;
    for (int64_t i = 0; i < length; ++i) {
      ASSERT_EQ(spans.of(first + i), span) << first + i;
      ASSERT_EQ(spans.offset(first + i), i) << first + i;
    }
  }
}

TEST(PhysicalSpans, OfPages) {
  for (const int64_t page : {1, 2, 16, 48, 63, 64, 65, 100, 127, 128, 129, 256, 576})
    for (const int64_t pages : {0, 1, 2, 5}) expect_spans(page, page * pages);
}

TEST(PhysicalSpans, OfAContiguousCache) {
  for (const int64_t slots : {0, 1, 63, 64, 65, 127, 128, 200}) expect_spans(0, slots);
}

TEST(PhysicalSpans, BeyondThirtyTwoBits) {
  const int64_t pages = int64_t{1} << 33;
  const PhysicalSpans spans(100, pages * 100);
  EXPECT_EQ(spans.count(), 2 * pages);
  EXPECT_EQ(spans.of(pages * 100 - 1), 2 * pages - 1);
  EXPECT_EQ(spans.first(2 * pages - 1), pages * 100 - 36);
  EXPECT_EQ(spans.length(2 * pages - 1), 36);
}

struct Cut {
  int64_t slot;
  int32_t column, length;
  bool operator==(const Cut&) const = default;
};
void PrintTo(const Cut& x, std::ostream* to) { *to << x.slot << '@' << x.column << '+' << x.length; }

// The runs of a tile; nothing is written behind them.
std::vector<Cut> cut(const PhysicalSpans& spans, const std::vector<int64_t>& slots) {
  std::vector<SlotRun> room(slots.size() + 1, SlotRun{-7, -7, -7, -7});
  const int64_t runs = cut_runs(spans, slots, 5, room.data());
  EXPECT_LE(runs, static_cast<int64_t>(slots.size()));
  EXPECT_EQ(room[runs].slot, -7);
  std::vector<Cut> found;
  for (int64_t r = 0; r < runs; ++r) {
    EXPECT_EQ(room[r].tile, 5);
    found.push_back({room[r].slot, room[r].column, room[r].length});
  }
  return found;
}

TEST(CutRuns, ByHand) {
  const PhysicalSpans pages(4, 40), wide(100, 200), rows(0, 200);
  EXPECT_EQ(cut(pages, {}), (std::vector<Cut>{}));
  EXPECT_EQ(cut(pages, {9}), (std::vector<Cut>{{9, 0, 1}}));
  EXPECT_EQ(cut(pages, {8, 9, 10, 11}), (std::vector<Cut>{{8, 0, 4}}));
  EXPECT_EQ(cut(pages, {6, 7, 8, 9}), (std::vector<Cut>{{6, 0, 2}, {8, 2, 2}})) << "across a page";
  EXPECT_EQ(cut(pages, {8, 10, 11, 9}), (std::vector<Cut>{{8, 0, 1}, {10, 1, 2}, {9, 3, 1}}));
  EXPECT_EQ(cut(pages, {5, 5, 4, 5}), (std::vector<Cut>{{5, 0, 1}, {5, 1, 1}, {4, 2, 2}}))
      << "one slot thrice";
  EXPECT_EQ(cut(wide, {62, 63, 64, 65, 99, 100}),
            (std::vector<Cut>{{62, 0, 2}, {64, 2, 2}, {99, 4, 1}, {100, 5, 1}}));
  EXPECT_EQ(cut(rows, {63, 64, 65}), (std::vector<Cut>{{63, 0, 1}, {64, 1, 2}}));
}

TEST(CutRuns, ArePiecesAsLongAsTheyCanBe) {
  EXPECT_TRUE(rc::check("runs", [] {
    const int64_t page = *rc::gen::element<int64_t>(0, 1, 4, 48, 64, 100);
    const PhysicalSpans spans(page, 400);
    std::vector<int64_t> slots;
    while (slots.size() < 50)
      for (int64_t at = *rc::gen::inRange(0, 390), n = *rc::gen::inRange(1, 10); n > 0; --n)
        slots.push_back(at++);
    size_t column = 0;
    for (const Cut& run : cut(spans, slots)) {
      RC_ASSERT(run.column == static_cast<int32_t>(column) && run.length > 0);
      for (int32_t i = 0; i < run.length; ++i, ++column) {
        RC_ASSERT(slots[column] == run.slot + i);
        RC_ASSERT(spans.of(slots[column]) == spans.of(run.slot));
      }
      if (column == slots.size()) break;
      const int64_t last = slots[column - 1];
      RC_ASSERT(slots[column] != last + 1 || spans.of(slots[column]) != spans.of(last));
    }
    RC_ASSERT(column == slots.size());
  }));
}

// One Grouping is used over and over: its table must be clean after each use.
TEST(Grouping, IsAMapOfListsInOrderOfFirstMeeting) {
  Grouping grouping(20);
  Grouped out;
  EXPECT_TRUE(rc::check("grouping", [&] {
    std::vector<int64_t> keys(*rc::gen::inRange(0, 60));
    for (int64_t& key : keys) key = *rc::gen::inRange(0, 20);
    grouping.group(keys, &out);
    std::map<int64_t, std::vector<int64_t>> want;
    std::vector<int64_t> met;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (!want.contains(keys[i])) met.push_back(keys[i]);
      want[keys[i]].push_back(static_cast<int64_t>(i));
    }
    RC_ASSERT(out.keys == met);
    RC_ASSERT(out.begin.size() == met.size() + 1);
    RC_ASSERT(out.order.size() == keys.size());
    RC_ASSERT(out.begin.front() == 0);
    for (size_t o = 0; o < met.size(); ++o)
      RC_ASSERT(std::vector<int64_t>(out.order.begin() + out.begin[o],
                                     out.order.begin() + out.begin[o + 1]) == want[met[o]]);
  }));
}

}  // namespace
}  // namespace tamis::index
