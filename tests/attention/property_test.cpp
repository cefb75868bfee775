// Random problems, run in random ways, against the float64 reference; every slot that no set uses is
// poisoned.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <map>

#include "attention/draw.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

class Property : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    for (const int threads : {1, 2}) {
      contexts_.emplace_back(threads);
      ASSERT_TRUE(contexts_.back().use_isa(GetParam()).ok());
    }
  }
  std::vector<Context> contexts_;
};

TEST_P(Property, TheReferenceAgrees) {
  EXPECT_TRUE(rc::check("values and empties", [this] {
    TestProblem t = draw_problem();
    const Result<reference::Sets> sets = reference::build_sets(t.problem);
    RC_ASSERT(sets.ok());
    t.poison_outside(*sets, *rc::gen::element(kNaN, kInf, -kInf, 6e4));
    const Result<Shape> shape = describe(t.problem);
    for (int way = 0; way < 3; ++way) {
      const ForwardOptions options = draw_options();
      const DType dtype = *rc::gen::element(DType::kF32, DType::kF32, DType::kF16, DType::kBF16);
      const Placement how =
          *rc::gen::element(Placement::kDense, Placement::kGaps, Placement::kSpread, Placement::kReversed);
      // The kernel first, on poisoned outputs; the judge afterwards.
      const Result<Steps> steps = prepare(t.problem, options);
      RC_ASSERT(steps.ok());
      const Ran one = run_step(t.problem, *steps, steps->schedule, contexts_[0], dtype, how);
      const Ran two = run_step(t.problem, *steps, shuffled(steps->schedule, 7), contexts_[1], dtype, how);
      const Result<reference::Answer> want = reference::forward(t.problem);
      RC_ASSERT(want.ok());
      RC_ASSERT(complaint(one, *want, tolerance_of(t.problem, *want), dtype) == "");
      RC_ASSERT(unlike(one, two) == "");
      RC_ASSERT(one.counters.empty_rows == want->sets.empty_rows * (shape->q_heads / shape->index_heads));
    }
  }));
}

INSTANTIATE_TEST_SUITE_P(Each, Property, ::testing::ValuesIn(tested_isas()),
                         [](const auto& isa) { return isa.param; });

// Sets of more than a thousand tokens, hundreds of query rows: chunks, many tiles, many parts.
TEST(LargerProblems, TheReferenceAgrees) {
  Context context(2);
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const int64_t query_block : {1, 16, 128}) {
      Spec s{.kv_len = {1500, 70},
             .q_len = {90, 70},
             .q_heads = 8,
             .kv_heads = 2,
             .head_dim = 40,
             .v_head_dim = 24,
             .dtype = dtype,
             .page_size = 48,
             .q = q_noise(4),
             .k = kv_noise(5),
             .v = kv_noise(6)};
      TestProblem t(s);
      CandidateView& c = t.problem.candidates;
      c.index_heads = 2;
      c.query_block = query_block;
      Rows rows;
      for (int b = 0; b < 2; ++b)
        for (int64_t r = (s.q_len[b] + query_block - 1) / query_block * 2; r > 0; --r) {
          rows.emplace_back();
          for (int32_t token = static_cast<int32_t>(r % 5); token < s.kv_len[b]; token += 3)
            rows.back().push_back(token);
        }
      t.csr(rows);
      t.problem.mask = {.causal = true, .window = 20, .sink = 5};
      const reference::Answer want = answer(t.problem);
      const Tolerance tolerance = tolerance_of(t.problem, want);
      for (const Path path : {Path::kDirect, Path::kDense})
        for (const BundlePolicy policy : {BundlePolicy::kRows, BundlePolicy::kNeighbours})
          for (const int32_t splits : {0, 3}) {
            const ForwardOptions o{.bundle = {.policy = policy, .neighbours = 64},
                                   .plan = {.path = path, .splits = splits, .min_tiles = 1}};
            EXPECT_EQ(complaint(run_all(t.problem, o, context), want, tolerance), "")
                << dtype_name(dtype) << " query_block " << query_block << ' ' << path_name(path) << " policy "
                << static_cast<int>(policy) << " splits " << splits;
          }
    }
}

// So much partial state that the threads share out the merges too.
TEST(LargerProblems, MergesOnSeveralThreads) {
  Context one(1), many(3);
  TestProblem t({.kv_len = {130},
                 .q_len = {100},
                 .q_heads = 8,
                 .kv_heads = 2,
                 .head_dim = 8,
                 .v_head_dim = 128,
                 .page_size = 16,
                 .q = q_noise(4),
                 .k = kv_noise(5),
                 .v = kv_noise(6)});
  t.all();
  const Result<Steps> steps = prepare(t.problem, {.normalize = {.block = 16}, .plan = {.splits = 6}});
  ASSERT_TRUE(steps.ok());
  EXPECT_GT(partial_bytes(steps->plan, steps->schedule), 2 << 20);
  const Ran r = run_step(t.problem, *steps, steps->schedule, one);
  const reference::Answer want = answer(t.problem);
  EXPECT_EQ(complaint(r, want, tolerance_of(t.problem, want)), "");
  for (uint64_t i = 0; i < 5; ++i)
    EXPECT_EQ(unlike(run_step(t.problem, *steps, shuffled(steps->schedule, i), many), r), "");
}

}  // namespace
}  // namespace tamis
