// Section 6: which edges dropout keeps, and what becomes of them.
#include "kernels/reference/dropout.h"

#include <gtest/gtest.h>

#include "support/expect.h"
#include "support/problems.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

using Words = std::array<uint32_t, 4>;

// The known answers that come with Random123, for philox4x32 with 10 rounds.
TEST(ReferenceDropout, PhiloxKnownAnswers) {
  EXPECT_EQ(reference::philox({0, 0, 0, 0}, {0, 0}), (Words{0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8}));
  constexpr uint32_t ones = 0xFFFFFFFF;
  EXPECT_EQ(reference::philox({ones, ones, ones, ones}, {ones, ones}),
            (Words{0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD}));
  EXPECT_EQ(reference::philox({0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344}, {0xA4093822, 0x299F31D0}),
            (Words{0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1}));
}

uint64_t kept_bits(const Dropout& dropout, int64_t b, int64_t h, int64_t pos, int64_t first, int count) {
  uint64_t bits = 0;
  for (int i = 0; i < count; ++i)
    if (reference::keeps(dropout, b, h, pos, first + i)) bits |= uint64_t{1} << i;
  return bits;
}

// Computed by an implementation of its own, from the text of the contract.
TEST(ReferenceDropout, TheContractsCounterAndKey) {
  const uint64_t seed = 0x0123456789ABCDEF;
  EXPECT_EQ(kept_bits({0.5, seed}, 1, 2, 37, 0, 38), 0x3D37E3DAA3u);
  EXPECT_EQ(kept_bits({0.1, seed}, 0, 0, 63, 0, 64), 0xFFFEAEEB7D6FF7F5u);
  EXPECT_EQ(kept_bits({0.9, 7}, 300, 65535, 2147483646, 0, 64), 0x2002002000220u);
  EXPECT_EQ(kept_bits({0.9, 7}, 300, 65535, 2147483646, (int64_t{1} << 31) - 64, 64), 0x1001000000u);
}

TEST(ReferenceDropout, TheThresholdIsExact) {
  const uint32_t word = reference::philox({3, 40, 1, 2}, {5, 6})[2];  // token 14
  const uint64_t seed = uint64_t{6} << 32 | 5;
  const auto kept = [&](double p) { return reference::keeps({p, seed}, 2, 1, 40, 14); };
  EXPECT_TRUE(kept(word * 0x1p-32)) << "at the threshold";
  EXPECT_TRUE(kept((word + 0.999) * 0x1p-32)) << "the threshold is rounded down";
  EXPECT_FALSE(kept((word + 1.0) * 0x1p-32));
  EXPECT_TRUE(kept(0x1p-33)) << "a threshold of 0 drops nothing";
  EXPECT_FALSE(kept(1 - 0x1p-53));
}

Spec small_spec() {
  return {.kv_len = {29, 17},
          .q_len = {2, 3},
          .q_heads = 4,
          .kv_heads = 2,
          .q = q_noise(1),
          .k = kv_noise(2),
          .v = kv_noise(3)};
}

const Rows kRows = {{1, 5, 9, 2, 27}, {28, 0, 13}, {16, 1, 2, 3}, {0, 4, 8}, {11, 12, 13, 14}};

TestProblem small_problem(double p, const Spec& spec = small_spec()) {
  TestProblem t(spec);
  t.problem.mask.causal = false;
  t.problem.dropout = {p, 0x5EED};
  t.csr(kRows);
  return t;
}

TEST(ReferenceDropout, KeptWeightsGrowAndTheDenominatorStays) {
  const double p = 0.4;
  const TestProblem t = small_problem(p), plain = small_problem(0);
  const reference::Answer a = answer(t.problem), whole = answer(plain.problem);
  EXPECT_TRUE(same_bits(a.output.lse, whole.output.lse)) << "LSE does not depend on p";
  const Spec spec = small_spec();
  int dropped = 0;
  for (int64_t i = 0; i < 5; ++i) {
    const int64_t b = i < 2 ? 0 : 1, pos = b == 0 ? 27 + i : 14 + i - 2;
    for (int64_t h = 0; h < 4; ++h)
      for (int64_t d = 0; d < 4; ++d) {
        double sum = 0;
        for (const int32_t token : set_of(a.sets, i)) {
          const uint32_t word =
              reference::philox({static_cast<uint32_t>(token / 4), static_cast<uint32_t>(pos),
                                 static_cast<uint32_t>(h), static_cast<uint32_t>(b)},
                                {0x5EED, 0})[token % 4];
          dropped += word < std::floor(p * 0x1p32);
          if (word < std::floor(p * 0x1p32)) continue;
          double s = 0;
          for (int64_t x = 0; x < 4; ++x) s += spec.q(i, h, x) * spec.k(b, token, h / 2, x) / 2;
          sum += std::exp(s - whole.output.lse[i * 4 + h]) * spec.v(b, token, h / 2, d) / (1 - p);
        }
        EXPECT_NEAR(a.output.out[(i * 4 + h) * 4 + d], sum, 1e-12) << i << " " << h << " " << d;
      }
  }
  EXPECT_GT(dropped, 0);
}

TEST(ReferenceDropout, NoProbabilityIsNoDropout) {
  TestProblem t = small_problem(0), other = small_problem(0);
  other.problem.dropout.seed = 99;
  EXPECT_TRUE(same_answer(answer(t.problem), answer(other.problem)));
  t.problem.dropout = {};
  EXPECT_TRUE(same_answer(answer(t.problem), answer(other.problem)));
}

TEST(ReferenceDropout, OrderRepeatsAndPlaceChangeNoBit) {
  const reference::Answer plain = answer(small_problem(0.5).problem);
  Rows shuffled = kRows;
  for (auto& row : shuffled) {
    std::reverse(row.begin(), row.end());
    row.insert(row.begin() + 1, {-1, row.front(), row.back(), -1});
  }
  TestProblem t = small_problem(0.5);
  EXPECT_TRUE(same_answer(answer(t.csr(shuffled).problem), plain));
  for (const int64_t page : {0, 1, 7, 64}) {
    Spec spec = small_spec();
    spec.page_size = page;
    spec.layout = Layout::kHND;
    EXPECT_TRUE(same_answer(answer(small_problem(0.5, spec).problem), plain)) << "page " << page;
  }
}

TEST(ReferenceDropout, ListedWindowAndSinkAreTheSameEdges) {
  const auto out = [](const Mask& mask, const Rows& rows) {
    TestProblem t({.kv_len = {12}, .q = q_noise(1), .k = kv_noise(2), .v = kv_noise(3)});
    t.problem.mask = mask;
    t.problem.dropout = {0.5, 4};
    return answer(t.csr(rows).problem);
  };
  EXPECT_TRUE(same_answer(out({.window = 3, .sink = 2}, {{}}), out({}, {{0, 1, 9, 10, 11}})));
}

TEST(ReferenceDropout, AboutTheRightShareIsKept) {
  for (const double p : {0.1, 0.5, 0.9}) {
    int kept = 0;
    for (int64_t t = 0; t < 20000; ++t) kept += reference::keeps({p, 1}, 0, 0, 19999, t);
    EXPECT_NEAR(kept / 20000.0, 1 - p, 0.015) << p;  // four standard deviations and more
  }
}

TEST(ReferenceDropout, ProbabilitiesOutsideTheRangeAreRefused) {
  for (const double p : {-0.1, 1.0, 1.5, kNaN, kInf})
    EXPECT_TRUE(says(refusal(small_problem(p).problem, Code::kInvalidArgument), "dropout_p")) << p;
}

}  // namespace
}  // namespace tamis
