// Backwards that are cut up: items of several chunks and tasks, slabs, threads, plans that are used again.
#include <gtest/gtest.h>

#include "attention/backward_runs.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

class Backward : public ::testing::TestWithParam<std::string> {
 protected:
  Context context(int threads = 2) const {
    Context c(threads);
    EXPECT_TRUE(c.use_isa(GetParam()).ok());
    return c;
  }
};

INSTANTIATE_TEST_SUITE_P(Each, Backward, ::testing::ValuesIn(tested_isas()),
                         [](const auto& isa) { return isa.param; });

TestProblem small_problem(uint64_t seed = 2) {
  TestProblem t({.kv_len = {70, 33},
                 .q_len = {5, 9},
                 .q_heads = 6,
                 .kv_heads = 2,
                 .head_dim = 16,
                 .v_head_dim = 24,
                 .dtype = DType::kBF16,
                 .page_size = 16,
                 .table = {{2, 5, 1, 3, 0}, {5, 2, 4, 99, 99}},  // shared pages, in another order
                 .pages = 6,
                 .q = q_noise(1),
                 .k = kv_noise(seed),
                 .v = kv_noise(seed + 1)});
  t.problem.candidates.index_heads = 2;
  t.problem.candidates.query_block = 4;
  Rows rows;
  for (int32_t r = 0; r < 10; ++r)
    for (rows.emplace_back(); rows.back().size() < 12;)
      rows.back().push_back(static_cast<int32_t>(7 * r + 5 * rows.back().size()) % 33);
  t.csr(rows).d_out(q_noise(4), DType::kBF16);
  t.problem.mask = {.causal = true, .window = 9, .sink = 2};
  return t;
}

TEST_P(Backward, IsTheSameForAnyNumberOfThreadsAndEveryTime) {
  TestProblem t = small_problem();
  const Judge judge(t.problem);
  const Saved saved(t.problem, judge.answer.output);
  const Result<PlannedBackward> made = plan_gradients(t.problem, {.slab_bytes = 30000});
  ASSERT_TRUE(made.ok()) << made.status().message();
  Context one = context(1), eight = context(8);
  const RanBackward first = run_gradients(t.problem, made->plan, saved.view(), one);
  EXPECT_EQ(judge.complaint(first), "");
  EXPECT_GT(first.counters.slabs, 1);
  for (int i = 0; i < 250; ++i)
    ASSERT_EQ(unlike(run_gradients(t.problem, made->plan, saved.view(), eight), first), "") << i;
}

// Every row adds to one token (docs/faults.md, F4): the order of that sum is that of the rows, whoever makes
// it.
TEST_P(Backward, IsTheSameEveryTimeForATokenThatAllRowsShare) {
  TestProblem t({.kv_len = {3},
                 .q_len = {4096},
                 .head_dim = 3,
                 .v_head_dim = 2,
                 .q = q_noise(1),
                 .k = kv_noise(2),
                 .v = kv_noise(3)});
  t.q_pos(std::vector<int32_t>(4096, 2)).csr(Rows(4096, {0, 1})).d_out(q_noise(4));
  const Judge judge(t.problem);
  const Saved saved(t.problem, judge.answer.output);
  const Result<PlannedBackward> made = plan_gradients(t.problem);
  ASSERT_TRUE(made.ok()) << made.status().message();
  Context one = context(1), eight = context(8);
  const RanBackward first = run_gradients(t.problem, made->plan, saved.view(), one);
  EXPECT_EQ(judge.complaint(first), "");
  for (int i = 0; i < 20; ++i)
    ASSERT_EQ(unlike(run_gradients(t.problem, made->plan, saved.view(), eight), first), "") << i;
}

TEST_P(Backward, APlanServesEveryLayer) {
  TestProblem one = small_problem(2), two = small_problem(7);
  Context c = context();
  const Result<PlannedBackward> made = plan_gradients(one.problem);
  ASSERT_TRUE(made.ok());
  for (const TestProblem* t : {&one, &two, &one}) {
    const Judge judge(t->problem);
    const Saved saved(t->problem, judge.answer.output);
    const RanBackward r = run_gradients(t->problem, made->plan, saved.view(), c);
    EXPECT_EQ(judge.complaint(r), "");
    EXPECT_EQ(unlike(r, all_gradients(t->problem, saved.view(), c)), "");
  }
}

// Rows of several chunks, an odd number of them, in several blocks of rows.
TEST_P(Backward, OfManyRows) {
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const int64_t index_heads : {1, 3}) {
      TestProblem t({.kv_len = {150, 40},
                     .q_len = {131, 17},
                     .q_heads = 3,
                     .kv_heads = 1,
                     .head_dim = 20,
                     .v_head_dim = 6,
                     .dtype = dtype,
                     .page_size = 100,
                     .q = q_noise(1),
                     .k = kv_noise(2),
                     .v = kv_noise(3)});
      t.problem.candidates.index_heads = index_heads;
      t.problem.candidates.query_block = 200;
      Rows rows(2 * index_heads);
      for (size_t r = 0; r < rows.size(); ++r)
        for (int32_t token = static_cast<int32_t>(r); token < (r < rows.size() / 2 ? 150 : 40); token += 2)
          rows[r].push_back(token);
      // A d_out of f32 that no bf16 holds keeps bf16 pairs out of it.
      const bool fine = index_heads == 3;
      const auto filled = [fine](int64_t i, int64_t h, int64_t d) {
        return noise(4, i, h, d) + (fine ? 0x1p-9 * noise(6, i, h, d) : 0);
      };
      t.csr(rows).d_out(filled, fine ? DType::kF32 : dtype);
      t.d_lse([](int64_t i, int64_t h) { return noise(5, i, h, 0); });
      const Judge judge(t.problem);
      const Saved saved(t.problem, judge.answer.output);
      Context c = context();
      for (const BundlePolicy policy : {BundlePolicy::kRows, BundlePolicy::kHeads})
        for (const SavedForward& forward : {saved.view(), saved.without_out()}) {
          const RanBackward r = all_gradients(t.problem, forward, c, {.bundle = {.policy = policy}});
          EXPECT_EQ(judge.complaint(r), "") << dtype_name(dtype) << ' ' << index_heads;
        }
    }
}

// More tokens than one task takes: dQ of a chunk is summed over tasks, in slabs one after the other.
TEST_P(Backward, OfManyTokens) {
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const int64_t page : {0, 64}) {
      TestProblem t({.kv_len = {8300, 200},
                     .q_len = {3, 3},
                     .q_heads = 2,
                     .kv_heads = 1,
                     .head_dim = 4,
                     .v_head_dim = 2,
                     .dtype = dtype,
                     .page_size = page,
                     .q = q_noise(1),
                     .k = kv_noise(2),
                     .v = kv_noise(3)});
      t.all().d_out(q_noise(4), dtype);
      const Judge judge(t.problem);
      const Saved saved(t.problem, judge.answer.output);
      Context c = context();
      for (const int64_t slab : {int64_t{1}, int64_t{32} << 20})
        for (const SavedForward& forward : {saved.view(), saved.without_out()}) {
          const BackwardOptions o{.bundle = {.policy = BundlePolicy::kRows}, .slab_bytes = slab};
          const RanBackward r = all_gradients(t.problem, forward, c, o);
          EXPECT_EQ(judge.complaint(r), "")
              << dtype_name(dtype) << ", pages of " << page << ", slab " << slab;
          // Three rows of 8298 to 8300 tokens, 4096 a task; three of 198 to 200.
          EXPECT_EQ(r.counters.tasks, 3 * 3 + 3);
          EXPECT_EQ(r.counters.slabs, slab == 1 ? 12 : 3);
        }
    }
}

// What the counters count, by hand: one request, two KV heads, pages of 16.
TEST_P(Backward, Counts) {
  TestProblem t({.kv_len = {100}, .q_heads = 2, .kv_heads = 2, .page_size = 16});
  t.problem.candidates.index_heads = 2;
  t.csr({{0, 1, 2, 15, 16, 40}, {99}}).d_out(q_noise(4));
  const Judge judge(t.problem);
  const Saved saved(t.problem, judge.answer.output);
  Context c = context();
  const RanBackward r =
      all_gradients(t.problem, saved.view(), c, {.bundle = {.policy = BundlePolicy::kRows}});
  EXPECT_EQ(judge.complaint(r), "");
  EXPECT_EQ(r.counters.tasks, 2);
  EXPECT_EQ(r.counters.slabs, 1);
  EXPECT_EQ(r.counters.tiles, 2);
  EXPECT_EQ(r.counters.runs, 5) << "0-2, 15, 16, 40; 99";
  EXPECT_EQ(r.counters.owners, 4);
}

// Sizes at the edge of what is allowed.
TEST_P(Backward, OfOddSizes) {
  struct Sizes {
    std::vector<int32_t> kv_len, q_len;
    int64_t q_heads, kv_heads, head_dim, v_head_dim, page_size;
  };
  const Sizes sizes[] = {
      {{}, {}, 2, 1, 8, 8, 16},          // no requests
      {{5, 7}, {0, 0}, 2, 1, 8, 8, 16},  // no queries
      {{0, 0}, {2, 3}, 2, 1, 8, 8, 16},  // no tokens
      {{0, 9, 0}, {2, 0, 1}, 2, 2, 8, 8, 0},
      {{9}, {3}, 1, 1, 1, 1, 1},
      {{70, 3}, {2, 2}, 16, 1, 3, 5, 1},  // G 16, odd D, pages of 1
      {{70, 3}, {2, 2}, 2, 2, 2, 7, 0},   // odd Dv beside an even D
      {{33}, {1}, 300, 300, 5, 2, 7},     // 300 heads
      {{33}, {2}, 300, 1, 2, 2, 7},       // all of them in one group: two chunks and more
      {{65}, {2}, 2, 1, 512, 512, 128},
  };
  Context c = context();
  for (const Sizes& x : sizes)
    for (const DType dtype : {DType::kF32, DType::kBF16})
      for (const bool listed : {true, false}) {
        TestProblem t({.kv_len = x.kv_len,
                       .q_len = x.q_len,
                       .q_heads = x.q_heads,
                       .kv_heads = x.kv_heads,
                       .head_dim = x.head_dim,
                       .v_head_dim = x.v_head_dim,
                       .dtype = dtype,
                       .page_size = x.page_size,
                       .q = q_noise(1),
                       .k = kv_noise(2),
                       .v = kv_noise(3)});
        t.d_out(q_noise(4), dtype);
        if (listed)
          t.all();
        else
          t.csr(Rows(static_cast<size_t>(t.cu_q().back())));
        const Judge judge(t.problem);
        const Saved saved(t.problem, judge.answer.output);
        for (const Store& store : {Store{}, Store{dtype, DType::kF16, DType::kBF16, Placement::kReversed}})
          for (const SavedForward& forward : {saved.view(), saved.without_out()}) {
            const RanBackward r = all_gradients(t.problem, forward, c, {.slab_bytes = 4000}, store);
            EXPECT_EQ(judge.complaint(r, store), "")
                << x.q_heads << " heads of " << x.head_dim << " and " << x.v_head_dim << ' ' << listed;
          }
      }
}

}  // namespace
}  // namespace tamis
