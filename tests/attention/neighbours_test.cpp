// Rows that share tiles, bundles and batches do not see each other: not their poison, not their company.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <set>

#include "attention/draw.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

// Elements [first, first + count) of both results are the same bits.
bool same_part(const std::vector<double>& a, const std::vector<double>& b, int64_t first, int64_t count) {
  return count == 0 || std::memcmp(&a[first], &b[first], sizeof(double) * count) == 0;
}

// A value in the slots of some tokens: whoever selected none of them is unchanged, bit for bit.
void check_poison(TestProblem& t, const reference::Sets& sets, const ForwardOptions& options,
                  Context& context, const std::set<int64_t>& slots, double value, bool in_k, bool in_v) {
  const Result<Shape> shape = describe(t.problem);
  const Ran clean = run_all(t.problem, options, context);
  RC_ASSERT(clean.status.ok() && clean.damage.empty());
  for (const int64_t at : slots) {
    if (in_k) t.put_k(at, value);
    if (in_v) t.put_v(at, value);
  }
  const Ran poisoned = run_all(t.problem, options, context);
  RC_ASSERT(poisoned.status.ok() && poisoned.damage.empty());
  const std::vector<int64_t> used = reference::physical_slots(t.problem, sets);
  const int64_t heads = shape->q_heads, dim = shape->v_head_dim, per_index_head = heads / shape->index_heads;
  for (int64_t row = 0; row < shape->total_q * heads; ++row) {
    const int64_t set = row / heads * shape->index_heads + row % heads / per_index_head;
    bool hit = false;
    for (int64_t at = sets.indptr[set]; at < sets.indptr[set + 1]; ++at)
      hit = hit || slots.count(used[at]) != 0;
    if (!hit) {
      RC_ASSERT(same_part(poisoned.out, clean.out, row * dim, dim));
      RC_ASSERT(same_part(poisoned.lse, clean.lse, row, 1));
    } else if (std::isnan(value) && in_k) {
      RC_ASSERT(std::isnan(poisoned.out[row * dim]));
      RC_ASSERT(std::isnan(poisoned.lse[row]));
    } else if (std::isnan(value) && !t.problem.score.alibi_slopes.present()) {
      // With ALiBi a part may be too far away to count at all.
      RC_ASSERT(std::isnan(poisoned.out[row * dim + dim - 1]));
      RC_ASSERT(same_part(poisoned.lse, clean.lse, row, 1));
    }
  }
}

TEST(Neighbours, PoisonReachesWhoSelectedItAndNobodyElse) {
  std::vector<Context> contexts;
  for (const std::string& isa : tested_isas()) {
    contexts.emplace_back(1);
    ASSERT_TRUE(contexts.back().use_isa(isa).ok());
  }
  EXPECT_TRUE(rc::check("poison stays in its rows", [&] {
    TestProblem t = draw_problem(true);
    const Result<reference::Sets> sets = reference::build_sets(t.problem);
    RC_ASSERT(sets.ok());
    const std::vector<int64_t> used = reference::physical_slots(t.problem, *sets);
    RC_PRE(!used.empty());
    std::set<int64_t> slots;
    for (int n = pick(1, 4); n > 0; --n) slots.insert(used[pick(0, static_cast<int>(used.size()) - 1)]);
    const int where = pick(1, 3);
    const double value = *rc::gen::element(kNaN, kNaN, kInf, -kInf);
    check_poison(t, *sets, draw_options(), contexts[pick(0, static_cast<int>(contexts.size()) - 1)], slots,
                 value, where & 1, where & 2);
  }));
}

struct Joined {
  const char* name;
  int64_t index_heads, query_block;
  Rows rows;
  BundlePolicy policy;
};

// Four queries of two heads; token 5 is poison and only some of them select it.
TEST(Neighbours, EachWayOfJoiningRowsKeepsThemApart) {
  const Joined ways[] = {
      {"private lists in one bundle",
       2,
       1,
       {{1, 5}, {1, 2}, {5}, {3}, {0, 4}, {0, 5}, {2, 5}, {2}},
       BundlePolicy::kHeads},
      {"query blocks in one bundle", 1, 1, {{1, 5}, {1, 2}, {0, 5, 3}, {3}}, BundlePolicy::kNeighbours},
      {"the causal diagonal of a query block", 1, 4, {{0, 1, 2, 3, 4, 5, 6}}, BundlePolicy::kRows},
  };
  for (const std::string& isa : tested_isas())
    for (const Joined& way : ways)
      for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16})
        for (const double value : {kNaN, kInf, -kInf})
          for (const bool in_k : {false, true}) {
            SCOPED_TRACE(::testing::Message() << isa << ' ' << way.name << ' ' << dtype_name(dtype) << ' '
                                              << value << (in_k ? " in K" : " in V"));
            Context context(1);
            ASSERT_TRUE(context.use_isa(isa).ok());
            TestProblem t({.kv_len = {7},
                           .q_len = {4},
                           .q_heads = 2,
                           .head_dim = 20,
                           .v_head_dim = 20,
                           .dtype = dtype,
                           .q = q_noise(1),
                           .k = kv_noise(2),
                           .v = kv_noise(3)});
            t.problem.candidates.index_heads = way.index_heads;
            t.problem.candidates.query_block = way.query_block;
            t.csr(way.rows);
            t.problem.mask.causal = way.query_block > 1;
            const ForwardOptions o{.bundle = {.policy = way.policy}, .plan = {.path = Path::kDirect}};
            const Ran clean = run_all(t.problem, o, context);
            in_k ? t.put_k(t.slot(0, 5), value) : t.put_v(t.slot(0, 5), value);
            const Ran poisoned = run_all(t.problem, o, context);
            const reference::Answer want = answer(t.problem);
            int64_t spared = 0;
            for (int64_t row = 0; row < 8; ++row) {
              const std::vector<int32_t> set =
                  set_of(want.sets, row / 2 * way.index_heads + (way.index_heads == 2 ? row % 2 : 0));
              if (std::find(set.begin(), set.end(), 5) != set.end()) {
                EXPECT_TRUE(in_k || !std::isfinite(poisoned.out[row * 20])) << row;
                continue;
              }
              ++spared;
              EXPECT_TRUE(std::isfinite(poisoned.out[row * 20])) << row;
              EXPECT_TRUE(same_part(poisoned.out, clean.out, row * 20, 20)) << row;
              EXPECT_TRUE(same_part(poisoned.lse, clean.lse, row, 1)) << row;
            }
            EXPECT_GT(spared, 0) << "this test would show nothing";
            EXPECT_EQ(poisoned.counters.rows_redone, in_k ? 0 : spared)
                << "rows that met a neighbour's poison in V";
            EXPECT_EQ(clean.counters.rows_redone, 0);
          }
}

// Enough rows for panels, two blocks of them; tokens at both places of a pair, at the end of an odd tile too.
TEST(Neighbours, ManyRowsKeepThemApart) {
  constexpr int32_t queries = 70, tokens = 101;
  for (const std::string& isa : cpu_isas())
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16})
      for (const int32_t poisoned_token : {24, 25, 100})
        for (const double value : {kNaN, kInf})
          for (const bool in_k : {false, true}) {
            SCOPED_TRACE(::testing::Message()
                         << isa << ' ' << dtype_name(dtype) << " token " << poisoned_token << ' ' << value
                         << (in_k ? " in K" : " in V"));
            Context context(1);
            ASSERT_TRUE(context.use_isa(isa).ok());
            TestProblem t({.kv_len = {tokens},
                           .q_len = {queries},
                           .head_dim = 18,
                           .v_head_dim = 35,
                           .dtype = dtype,
                           .page_size = 16,
                           .q = q_noise(1),
                           .k = kv_noise(2),
                           .v = kv_noise(3)});
            Rows rows;
            for (int32_t r = 0; r < queries; ++r)
              for (rows.emplace_back(); rows.back().size() < 40;)
                rows.back().push_back((7 * r + 2 * static_cast<int32_t>(rows.back().size())) % tokens);
            t.csr(rows).problem.mask.causal = false;
            const ForwardOptions o{.bundle = {.policy = BundlePolicy::kNeighbours, .neighbours = 128}};
            const Ran clean = run_all(t.problem, o, context);
            const reference::Answer plain = answer(t.problem);
            EXPECT_EQ(complaint(clean, plain, tolerance_of(t.problem, plain)), "");
            in_k ? t.put_k(t.slot(0, poisoned_token), value)
                 : t.put_v(t.slot(0, poisoned_token), 0, 34, value);
            const Ran poisoned = run_all(t.problem, o, context);
            const reference::Answer want = answer(t.problem);
            EXPECT_EQ(complaint(poisoned, want, tolerance_of(t.problem, plain)), "");
            int64_t spared = 0;
            for (int64_t row = 0; row < queries; ++row) {
              const std::vector<int32_t> set = set_of(want.sets, row);
              if (std::find(set.begin(), set.end(), poisoned_token) != set.end()) continue;
              ++spared;
              EXPECT_TRUE(same_part(poisoned.out, clean.out, row * 35, 35)) << row;
              EXPECT_TRUE(same_part(poisoned.lse, clean.lse, row, 1)) << row;
            }
            EXPECT_GT(spared, 0);
            EXPECT_EQ(poisoned.counters.rows_redone, in_k ? 0 : spared);
          }
}

// Request 0 of a problem, alone; the views stay where they are.
Problem first_request(TestProblem& t) {
  Problem p = t.problem;
  const int64_t queries = t.cu_q()[1];
  p.query.q.shape[0] = queries;
  p.query.cu_q.shape[0] = 2;
  if (p.query.q_pos.present()) p.query.q_pos.shape[0] = queries;
  p.cache.kv_len.shape[0] = 1;
  if (p.cache.page_table.present()) p.cache.page_table.shape[0] = 1;
  if (p.cache.cu_kv.present()) p.cache.cu_kv.shape[0] = 2;
  if (p.candidates.form == CandidateForm::kCsr) {
    const int64_t rows =
        (queries + p.candidates.query_block - 1) / p.candidates.query_block * p.candidates.index_heads;
    p.candidates.indptr.shape[0] = rows + 1;
    p.candidates.indices.shape[0] = t.indptr32()[rows];
  }
  return p;
}

TEST(Neighbours, ARowIsTheSameAloneWhereThatIsAskedFor) {
  Context context(2);
  int64_t split = 0;
  EXPECT_TRUE(rc::check("batch_invariant", [&] {
    TestProblem t = draw_problem();
    const Problem alone = first_request(t);
    ForwardOptions o = draw_options();
    o.plan.batch_invariant = true;
    o.plan.splits = 0;
    // What is chosen by looking at the whole batch must be named.
    if (o.bundle.policy == BundlePolicy::kAuto) o.bundle.policy = BundlePolicy::kRows;
    const Result<Steps> steps = prepare(t.problem, o);
    RC_ASSERT(steps.ok());
    split += steps->schedule.stats.split_rows;
    const Ran together = run_step(t.problem, *steps, steps->schedule, context),
              one = run_all(alone, o, context);
    RC_ASSERT(together.status.ok() && one.status.ok());
    RC_ASSERT(same_part(together.out, one.out, 0, static_cast<int64_t>(one.out.size())));
    RC_ASSERT(same_part(together.lse, one.lse, 0, static_cast<int64_t>(one.lse.size())));
  }));
  EXPECT_GT(split, 0) << "no row was split: nothing could differ";
}

}  // namespace
}  // namespace tamis
