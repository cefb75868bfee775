// Numbers that try the softmax of the prefill kernel, numbers that are none, and rows that see little.
#include <gtest/gtest.h>

#include "cuda/draw.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

class CudaPrefillValues : public OnPrefillDevice {};

cuda::StepOptions split(int32_t splits) {
  cuda::StepOptions o{.block = 16};
  o.plan.splits = splits;
  return prefill(o);
}

// Maxima that grow from tile to tile, that fall, and logits of +-1e4: weights are made without a look at a
// tile's maximum as long as that serves. A slope of 0.05 to 0.5 outgrows the bound once in some tiles.
TEST_F(CudaPrefillValues, GrowingMaxima) {
  for (const DType dtype : {DType::kBF16, DType::kF16})
    for (const int64_t dim : {64, 128, 256})
      for (const double slope : {0.01, 0.05, 0.5, 1.0, -1.0, 60.0, -60.0})
        for (const bool falls_by_turns : {false, true}) {
          if (falls_by_turns && slope < 0) continue;
          Spec s = small_spec(dim, {700}, {12});
          s.dtype = dtype;
          s.q = [dim](int64_t i, int64_t h, int64_t d) {
            return d == 0 ? std::sqrt(static_cast<double>(dim)) / 4 : noise(1, i, h, d);
          };
          s.k = [=](int64_t b, int64_t t, int64_t h, int64_t d) {
            if (d != 0) return noise(2, b, t, h, d);
            return slope * static_cast<double>(falls_by_turns ? t * 263 % 700 : t);
          };
          TestProblem t(s);
          t.problem.candidates.query_block = 32;
          t.all();
          Wanted want = wanted(t.problem);
          // A score of 1e4 has steps of 2^-10 in float32, and so have the weights; the plain computation gets
          // away with it where one key outweighs all others.
          want.tolerance.out += 0x1p-23 * largest(want.answer.output.lse);
          for (const int32_t splits : {1, 3}) {
            const DeviceRan r = run_on_device(t.problem, split(splits));
            EXPECT_EQ(complaint(r, want.answer, want.tolerance), "")
                << dtype_name(dtype) << ", head size " << dim << ", slope " << slope
                << (falls_by_turns ? " by turns" : "") << ", splits " << splits;
            EXPECT_EQ(r.device.rows_redone, 0u) << "all numbers are finite, and no weight overflows";
          }
        }
}

// A mean of the largest f16 values is one of them, though the weight that counts is rounded; by either
// kernel.
TEST_F(CudaPrefillValues, LargestValues) {
  TestProblem t(largest_values());
  t.all();
  const Wanted want = wanted(t.problem);
  for (const int32_t splits : {1, 3})
    for (const Placement how : {Placement::kDense, Placement::kGaps}) {
      cuda::StepOptions decode{.block = 16};
      decode.plan.splits = splits;
      for (const cuda::StepOptions& o : {split(splits), decode})
        EXPECT_EQ(complaint(run_on_device(t.problem, o, DType::kF16, how), want.answer, want.tolerance,
                            DType::kF16),
                  "")
            << "splits " << splits << ", " << (o.engine == cuda::Engine::kPrefill ? "prefill" : "decode");
    }
}

// A V that is not finite reaches the rows that select it and no other.
TEST_F(CudaPrefillValues, AValueThatIsNotFinite) {
  for (const double value : {kNaN, kInf, -kInf})
    for (const int64_t dim : {64, 128, 256})
      for (const int32_t splits : {1, 2}) {
        Spec s = small_spec(dim, {300, 130}, {40, 3});
        s.v = [value](int64_t b, int64_t t, int64_t h, int64_t d) {
          return b == 0 && t == 290 && h == 1 && d == 3 ? value : noise(6, b, t, h, d);
        };
        TestProblem t(s);
        t.problem.candidates.query_block = 64;
        t.all();  // causal: of 40 queries at positions 260 to 299 ten see token 290
        const Wanted want = wanted(t.problem);
        ASSERT_FALSE(std::isfinite(want.answer.output.out[(39 * 4 + 2) * dim + 3]));
        ASSERT_TRUE(std::isfinite(want.answer.output.out[(29 * 4 + 2) * dim + 3]));
        const DeviceRan r = run_on_device(t.problem, split(splits));
        EXPECT_EQ(complaint(r, want.answer, want.tolerance), "")
            << value << ", head size " << dim << ", splits " << splits;
        EXPECT_GT(r.device.rows_redone, 0u);
        EXPECT_LT(r.device.rows_redone, 43u * 4) << "KV head 0 and request 1 are in order";
      }
}

// The same by private lists: heads of one tile, of which one selects the token.
TEST_F(CudaPrefillValues, AValueOfOneListIsNoneOfTheOthers) {
  for (const double value : {kNaN, kInf}) {
    TestProblem t(small_spec(64, {200}, {16}));
    t.problem.candidates.index_heads = 4;
    t.problem.candidates.query_block = 16;
    t.problem.mask.causal = false;
    t.csr({{90, 100, 7}, {90, 101, 8, 99}, {0, 1, 2}, {96, 97, 98, 99, 101, 102}});
    t.put_v(t.slot(0, 100), value);
    const Wanted want = wanted(t.problem);
    for (const int32_t splits : {1, 2}) {
      const DeviceRan r = run_on_device(t.problem, split(splits));
      EXPECT_EQ(complaint(r, want.answer, want.tolerance), "") << value << ", splits " << splits;
      EXPECT_GT(r.device.rows_redone, 0u);
    }
  }
}

// Every value of a batch is NaN: each row is summed again, and the list of those holds them all.
TEST_F(CudaPrefillValues, EveryRowAgain) {
  for (const int32_t splits : {1, 3}) {
    Spec s = small_spec(64, {900, 500}, {300, 77});
    s.v = [](int64_t, int64_t t, int64_t h, int64_t d) { return d == 5 ? kNaN : noise(6, t, h, d); };
    TestProblem t(s);
    t.problem.candidates.query_block = 64;
    t.all();
    Context context(0);
    const Wanted want = wanted_by_cpu(t.problem, context, 11);
    const DeviceRan r = run_on_device(t.problem, split(splits));
    EXPECT_EQ(complaint(r, want.answer, want.tolerance), "") << "splits " << splits;
    EXPECT_EQ(r.device.rows_redone, 377u * 4);
  }
}

// Keys that are not finite, where no row selects them, where some do, and where all of a row's are -inf.
TEST_F(CudaPrefillValues, KeysThatAreNotFinite) {
  for (const double value : {kNaN, kInf, -kInf})
    for (const int32_t from : {280, 299, 0}) {
      Spec s = small_spec(64, {300, 130}, {40, 3});
      s.q = [](int64_t, int64_t, int64_t d) { return d == 0 ? 1.0 : 0.25; };
      s.k = [=](int64_t b, int64_t t, int64_t h, int64_t d) {
        return b == 0 && h == 1 && d == 0 && (from == 0 || t == from) ? value : noise(5, b, t, h, d);
      };
      TestProblem t(s);
      t.problem.candidates.query_block = 32;
      t.all();
      const Wanted want = wanted(t.problem);
      for (const int32_t splits : {1, 2})
        EXPECT_EQ(complaint(run_on_device(t.problem, split(splits)), want.answer, want.tolerance), "")
            << value << " from " << from << ", splits " << splits;
    }
}

// Keys of -inf in whole leading tiles, and then numbers.
TEST_F(CudaPrefillValues, ScoresOfMinusInfinityInFront) {
  Spec s = small_spec(128, {400}, {70});
  s.q = [](int64_t, int64_t, int64_t d) { return d == 0 ? 1.0 : 0.25; };
  s.k = [](int64_t b, int64_t t, int64_t h, int64_t d) {
    return d == 0 && t < 270 ? -kInf : noise(5, b, t, h, d);
  };
  TestProblem t(s);
  t.problem.candidates.query_block = 128;
  t.all();
  const Wanted want = wanted(t.problem);
  for (const int32_t splits : {1, 3})
    EXPECT_EQ(complaint(run_on_device(t.problem, split(splits)), want.answer, want.tolerance), "")
        << "splits " << splits;
}

// Requests without tokens, without queries, with more queries than tokens, lists that are empty.
TEST_F(CudaPrefillValues, EmptyRows) {
  for (const int64_t dim : {64, 256}) {
    TestProblem t(small_spec(dim, {0, 5, 100, 0, 33, 260}, {3, 19, 0, 2, 40, 33}));
    t.problem.candidates.query_block = 16;
    t.problem.candidates.index_heads = 2;
    Rows rows;
    for (const auto& [length, queries] : {std::pair{0, 3}, {5, 19}, {100, 0}, {0, 2}, {33, 40}, {260, 33}})
      for (int r = 0; r < (queries + 15) / 16 * 2; ++r) {
        rows.emplace_back();
        if (r % 3 == 1) continue;
        for (int32_t e = r; e < length; e += 1 + r % 4) rows.back().push_back(e);
      }
    t.csr(rows);
    const Wanted want = wanted(t.problem);
    ASSERT_GT(want.answer.sets.empty_rows, 10);
    for (const int32_t splits : {1, 2}) {
      const DeviceRan r = run_on_device(t.problem, split(splits));
      EXPECT_EQ(complaint(r, want.answer, want.tolerance), "")
          << "head size " << dim << ", splits " << splits;
      EXPECT_EQ(static_cast<int64_t>(r.device.empty_rows), want.answer.sets.empty_rows * 2);
    }
  }
}

// Rows of one tile whose first tokens come tiles later than the others', and rows that end tiles earlier.
TEST_F(CudaPrefillValues, LeadingTilesThatARowDoesNotSee) {
  for (const auto& [dim, middle] :
       {std::pair{64, false}, {128, false}, {256, false}, {64, true}, {128, true}, {256, true}}) {
    TestProblem t(small_spec(dim, {900}, {16}));
    t.problem.candidates.query_block = 16;
    t.problem.candidates.index_heads = 4;
    t.problem.mask.causal = false;
    Rows rows(4);
    for (int32_t e = 0; e < 300; ++e) rows[0].push_back(e);
    for (int32_t e = 700; e < 900; e += 3) rows[1].push_back(e);
    rows[2] = {899};
    for (int32_t e = 0; e < 900; ++e) rows[3].push_back(e);
    if (middle) {  // the tiles between are seen whole by all rows
      rows.assign(4, rows[3]);
      rows[1] = {rows[3].begin() + 256, rows[3].begin() + 768};
    }
    t.csr(rows);
    const Wanted want = wanted(t.problem);
    for (const int32_t splits : {1, 4}) {
      const DeviceRan r = run_on_device(t.problem, split(splits));
      EXPECT_EQ(complaint(r, want.answer, want.tolerance), "")
          << "head size " << dim << ", splits " << splits << ", middle " << middle;
      EXPECT_EQ(r.device.rows_redone, 0u) << "all numbers are finite";
    }
  }
}

// Batches that are a multiple of a warp, or one off, without a token.
TEST_F(CudaPrefillValues, WhollyEmptyBatches) {
  for (const int64_t requests : {1, 31, 32, 33, 64})
    for (const bool paged : {true, false}) {
      Spec s = small_spec(64, std::vector<int32_t>(static_cast<size_t>(requests), 0),
                          std::vector<int32_t>(static_cast<size_t>(requests), 3));
      if (!paged) s.page_size = 0;
      TestProblem t(s);
      t.problem.candidates.query_block = 2;
      t.csr(Rows(static_cast<size_t>(requests * 2)));
      for (const int32_t splits : {1, 4}) {
        const DeviceRan r = run_on_device(t.problem, split(splits));
        ASSERT_TRUE(r.status.ok()) << r.status.message();
        EXPECT_EQ(r.damage, "");
        EXPECT_EQ(r.out, std::vector<double>(r.out.size(), 0)) << requests << " requests";
        EXPECT_EQ(r.lse, std::vector<double>(r.lse.size(), -kInf));
        EXPECT_EQ(r.stats.empty_bundles, r.stats.bundles);
        EXPECT_EQ(r.device.tokens_loaded, 0u);
        EXPECT_EQ(static_cast<int64_t>(r.device.empty_rows), requests * 3 * 4);
      }
    }
}

}  // namespace
}  // namespace tamis
