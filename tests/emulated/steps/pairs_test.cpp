// Pairs of CTAs (StepOptions::pairs) on the host, beside single ones.
#include <gtest/gtest.h>

#include "emulated/steps/step.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

// Two CTAs that bring in half of each other's blocks: the same bits as by themselves, with row tiles that are
// missing or cut at the end of a query block, tiles that one of the two sees whole, and values of columns
// that one of them does not see, or neither.
TEST(EmulatedPrefill, PairsHaveTheBitsOfOthers) {
#ifdef TAMIS_RACECHECK
  GTEST_SKIP() << "a build without pairs";
#endif
  const int64_t count = number_from("TAMIS_EMULATED_PROBLEMS", 6);
  int64_t ran = 0;
  for (int64_t number = first_problem(); number < first_problem() + 2 * count; ++number) {
    Dice d(number + 9000);
    Spec s = small_spec(d.of<int64_t>({64, 128, 64, 256}));
    s.kv_heads = d.from(1, 2);
    s.q_heads = 4 * s.kv_heads;
    s.kv_len = {d.i32(1, 500), d.i32(60, 200)};
    s.q_len = {d.i32(1, 140), d.i32(0, 70)};
    s.page_size = d.of<int64_t>({0, 16, 32, 64});
    s.layout = d.of({Layout::kNHD, Layout::kHND});
    TestProblem t(s);
    t.problem.candidates.query_block = d.of<int64_t>({64, 128});
    t.problem.candidates.unit = 16;
    t.problem.candidates.index_heads = s.kv_heads;
    t.problem.mask = {.causal = !d.one_in(3),
                      .window = d.one_in(3) ? d.from(1, 200) : 0,
                      .sink = d.one_in(3) ? d.from(1, 40) : 0};
    if (d.one_in(3)) {
      t.all();
    } else {
      Rows rows;
      for (size_t b = 0; b < s.q_len.size(); ++b)
        for (int64_t r = (s.q_len[b] + t.problem.candidates.query_block - 1) /
                         t.problem.candidates.query_block * s.kv_heads;
             r > 0; --r) {
          rows.emplace_back();
          for (int32_t e = 0; e < (s.kv_len[b] + 15) / 16; ++e)
            if (d.one_in(2)) rows.back().push_back(e);
        }
      t.csr(rows);
    }
    const Result<reference::Sets> sets = reference::build_sets(t.problem);
    ASSERT_TRUE(sets.ok()) << sets.status().message();
    t.poison_outside(*sets, d.of({kNaN, 6e4, 6e4}));
    cuda::StepOptions o{.block = d.of({16, 32})};
    if (s.page_size > 0 && s.page_size % o.block != 0) o.block = 16;
    o.plan.splits = d.of<int64_t>({0, 1, 3});
    const cuda::StepPlan alone = prefill_plan(t.problem, o);
    o.pairs = true;
    const cuda::StepPlan pairs = prefill_plan(t.problem, o);
    SCOPED_TRACE(::testing::Message() << "TAMIS_CUDA_FIRST=" << number << ": D " << s.head_dim << ", block "
                                      << o.block << ", splits " << o.plan.splits << ", page " << s.page_size
                                      << ", query blocks of " << t.problem.candidates.query_block);
    ASSERT_FALSE(alone.pairs);
    ASSERT_EQ(pairs.pairs, pairs.column_tiles % 2 == 0) << pairs.plan.reason;
    if (!pairs.pairs) continue;
    const Wanted want = wanted(t.problem);
    const Ran first = Step(t.problem, alone, 1).run(DType::kF32, Placement::kDense, 3);
    ASSERT_EQ(complaint(first, want.answer, want.tolerance), "");
    for (int64_t seed = 0; seed < seeds() / 2; ++seed) {
      Step step(t.problem, pairs, static_cast<uint64_t>(number * 16 + seed));
      const Ran r = step.run(DType::kF32, Placement::kDense, d.of({2, 4}));
      ASSERT_EQ(r.damage, "") << "seed " << seed;
      ASSERT_EQ(unlike(first, r), "") << "seed " << seed;
      ++ran;
    }
  }
  EXPECT_GT(ran, 0);
}

}  // namespace
}  // namespace tamis
