// Member words against section 4 of docs/semantics.md, written as one condition per token.
#include "core/bits.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

namespace tamis {
namespace {

constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max(),
                  kInt64Max = std::numeric_limits<int64_t>::max();

int64_t pick(int64_t first, int64_t last) { return *rc::gen::inRange(first, last + 1); }

struct Query {
  int64_t pos, kv_len;
  bool causal;
  int64_t window, sink;

  Sight sight() const { return sight_of(pos, kv_len, causal, window, sink); }

  bool sees(int64_t t, bool listed) const {
    return pos >= 0 && 0 <= t && t < kv_len && (!causal || t <= pos) &&
           (listed || t < sink || (window > 0 && pos - t < window && t <= pos));
  }
};

// Positions negative and beyond the length, windows and sinks of every size up to absurd.
Query draw_query(int64_t kv_len) {
  Query q{.pos = pick(-3, kv_len + 200), .kv_len = kv_len, .causal = pick(0, 1) == 1, .window = 0, .sink = 0};
  const int64_t sizes[] = {0,     1,         2,         pick(0, kv_len + 3), kv_len,
                           q.pos, q.pos + 1, q.pos + 2, kInt32Max,           kInt64Max};
  q.window = std::max<int64_t>(0, sizes[pick(0, 9)]);
  q.sink = std::max<int64_t>(0, sizes[pick(0, 9)]);
  return q;
}

TEST(Bits, RangesHoldTheirTokens) {
  EXPECT_TRUE(rc::check("bit i of a range is token base + i", [] {
    const int64_t base = pick(0, 1) == 0 ? pick(0, 300) : kInt32Max - pick(0, 300);
    const int64_t first = base + pick(-100, 100), last = base + pick(-100, 100);
    const uint64_t bits = range_bits(first, last, base);
    for (int i = 0; i < kWordBits; ++i)
      RC_ASSERT((bits >> i & 1) == static_cast<uint64_t>(first <= base + i && base + i < last));
  }));
  EXPECT_EQ(range_bits(0, 64, 0), ~uint64_t{0});
  EXPECT_EQ(range_bits(0, int64_t{1} << 62, 1 << 20), ~uint64_t{0});
  EXPECT_EQ(range_bits(63, 64, 0), uint64_t{1} << 63);
  EXPECT_EQ(range_bits(64, 65, 0), 0u);
  EXPECT_EQ(range_bits(5, 5, 0), 0u);
  EXPECT_EQ(range_bits(9, 5, 0), 0u);
}

TEST(Bits, TheMaskOfABlock) {
  EXPECT_EQ(word_mask(16), 0xFFFFu);
  EXPECT_EQ(word_mask(32), 0xFFFFFFFFu);
  EXPECT_EQ(word_mask(64), ~uint64_t{0});
  EXPECT_EQ(word_mask(128), ~uint64_t{0});
}

TEST(Bits, TheSetOfAQueryTokenByToken) {
  EXPECT_TRUE(rc::check("set_bits is section 4", [] {
    const int block = *rc::gen::element(16, 32, 64, 128);
    const Query q = draw_query(pick(0, 400));
    const Sight sight = q.sight();
    // One block further than the tokens go: nothing may be seen there.
    for (int64_t block_base = 0; block_base <= q.kv_len; block_base += block)
      for (int64_t base = block_base; base < block_base + block; base += kWordBits) {
        const uint64_t listed = *rc::gen::arbitrary<uint64_t>() & word_mask(block);
        const uint64_t bits = set_bits(listed, sight, base) & word_mask(block);
        uint64_t want = 0;
        for (int i = 0; i < std::min(block, kWordBits); ++i)
          want |= static_cast<uint64_t>(q.sees(base + i, listed >> i & 1)) << i;
        RC_ASSERT(bits == want);
      }
  }));
}

TEST(Bits, AtTheEndOfTheIntegers) {
  for (const bool causal : {false, true})
    for (const int64_t pos : {kInt32Max - 1, kInt32Max})
      for (const int64_t window : {int64_t{0}, int64_t{1}, int64_t{70}, kInt32Max, kInt64Max})
        for (const int64_t sink : {int64_t{0}, int64_t{3}, kInt64Max}) {
          const Query q{pos, kInt32Max, causal, window, sink};
          for (const int64_t base :
               {int64_t{0}, int64_t{64}, kInt32Max / 64 * 64 - 64, kInt32Max / 64 * 64}) {
            const uint64_t listed = 0x8000000180000001u, bits = set_bits(listed, q.sight(), base);
            for (int i = 0; i < kWordBits; ++i)
              ASSERT_EQ(bits >> i & 1, q.sees(base + i, listed >> i & 1))
                  << "pos " << pos << " causal " << causal << " window " << window << " sink " << sink
                  << " token " << base + i;
          }
        }
}

TEST(Bits, ANegativePositionSeesNothing) {
  for (const int64_t pos : {int64_t{-1}, int64_t{-64}, int64_t{std::numeric_limits<int32_t>::min()}}) {
    const Sight s = sight_of(pos, 100, false, kInt64Max, kInt64Max);
    EXPECT_EQ(set_bits(~uint64_t{0}, s, 0), 0u);
    EXPECT_EQ(s.end, 0);
  }
}

// Kernels compute rows together when their sights are the same: that must mean the same set for every list.
TEST(Bits, SameSightsAreTheSameSets) {
  EXPECT_TRUE(rc::check("same_sight is no wider than it may be", [] {
    const int64_t kv_len = pick(0, 70);
    const Query a = draw_query(kv_len);
    Query b = a;
    if (pick(0, 1) == 0) b.pos = std::max<int64_t>(-1, a.pos + pick(-2, 2));
    if (pick(0, 2) == 0) b.causal = !a.causal;
    bool same = true;
    for (int64_t t = 0; t < kv_len; ++t)
      for (const bool listed : {false, true}) same = same && a.sees(t, listed) == b.sees(t, listed);
    if (same_sight(a.sight(), b.sight())) RC_ASSERT(same);
    RC_ASSERT(same_sight(a.sight(), a.sight()));
  }));
  // Each of the four numbers counts.
  const Sight s{40, 3, 30, 40};
  for (int64_t Sight::*field : {&Sight::end, &Sight::sink_end, &Sight::window_begin, &Sight::window_end}) {
    Sight other = s;
    --(other.*field);
    EXPECT_FALSE(same_sight(s, other));
    EXPECT_FALSE(same_sight(other, s));
  }
}

}  // namespace
}  // namespace tamis
