// The random words of dropout, against the known answers of Random123 (kat_vectors, philox4x32 with 10
// rounds).
#include "core/philox.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "kernels/reference/dropout.h"

namespace tamis {
namespace {

using Words = std::array<uint32_t, 4>;

Words words(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint64_t seed) {
  const PhiloxWords w = philox4x32(c0, c1, c2, c3, seed);
  return {w.word[0], w.word[1], w.word[2], w.word[3]};
}

TEST(Philox, KnownAnswers) {
  EXPECT_EQ(words(0, 0, 0, 0, 0), (Words{0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8}));
  constexpr uint32_t ones = 0xFFFFFFFF;
  EXPECT_EQ(words(ones, ones, ones, ones, ~uint64_t{0}),
            (Words{0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD}));
  EXPECT_EQ(words(0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0x299F31D0A4093822),
            (Words{0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1}));
}

TEST(Philox, ThresholdsAreRoundedDown) {
  EXPECT_EQ(dropout_threshold(0), 0u);
  EXPECT_EQ(dropout_threshold(0x1p-32), 1u);
  EXPECT_EQ(dropout_threshold(0x1.8p-32), 1u);
  EXPECT_EQ(dropout_threshold(0x1p-33), 0u);
  EXPECT_EQ(dropout_threshold(0.5), 0x80000000u);
  EXPECT_EQ(dropout_threshold(0.1), 429496729u);
  EXPECT_EQ(dropout_threshold(std::nextafter(1.0, 0.0)), 0xFFFFFFFFu);
}

// The reference writes it down a second time.
TEST(Philox, TheReferenceKeepsTheSameEdges) {
  const uint64_t seed = 0x0123456789ABCDEF;
  for (const double p : {0.0, 0.1, 0.5, 0.999})
    for (uint32_t t = 0; t < 64; ++t)
      for (uint32_t h = 0; h < 3; ++h) {
        const Words w = words(t / 4, 900 - t, h, 2, seed);
        ASSERT_EQ(w[t % 4] >= dropout_threshold(p), reference::keeps({p, seed}, 2, h, 900 - t, t));
      }
}

}  // namespace
}  // namespace tamis
