// docs/faults.md on the CPU backend, the entries that need more than one small run: addresses beyond 2^31,
// page sizes, capacities, many rows, merges, neighbours and repetition. Plans that do not fit are
// stale_plan_test.cpp.
#include <gtest/gtest.h>

#include "attention/runs.h"
#include "support/mapped.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

TEST(FaultC1, PagesBeyondTwoToThe31AreTheirOwn) {
  // Page 64, Hkv 8, D 128: 65 536 elements a page, so page 32 768 starts at element 2^31.
  constexpr int64_t page_elements = 64 * 8 * 128, pages = 32770, two31 = int64_t{1} << 31;
  const SparseBuffer cache(pages * page_elements * 2);
  if (!cache.data()) GTEST_SKIP() << "no address space for " << pages * page_elements * 2 << " bytes";
  TestProblem t({.kv_len = {128},
                 .q_heads = 8,
                 .kv_heads = 8,
                 .head_dim = 128,
                 .v_head_dim = 128,
                 .dtype = DType::kBF16,
                 .page_size = 64,
                 .table = {{0, 1}}});
  t.table(0, 0) = 32767;
  t.table(0, 1) = 32768;
  t.problem.cache.k = t.problem.cache.v = dense_view(cache.data(), DType::kBF16, {pages, 64, 8, 128});
  t.problem.score.scale = 0;
  // The last token below 2^31 and the first two at and above.
  for (int64_t i = 0; i < 3; ++i)
    for (int64_t h = 0; h < 8; ++h)
      t.put_v(two31 / 1024 - 1 + i, h, 127, static_cast<double>(10 * (i + 1) + h));
  for (const std::string& isa : tested_isas()) {
    Context context(1);
    ASSERT_TRUE(context.use_isa(isa).ok());
    for (int64_t i = 0; i < 3; ++i) {
      t.csr({{static_cast<int32_t>(63 + i)}});
      const Ran r = run_all(t.problem, {}, context);
      ASSERT_TRUE(r.status.ok()) << r.status.message();
      for (int64_t h = 0; h < 8; ++h) EXPECT_EQ(r.out[h * 128 + 127], static_cast<double>(10 * (i + 1) + h));
    }
  }
}

// One logical K and V, stored in pages of any size, some shared by two requests.
TEST(FaultC6, PageSizesChangeNoBit) {
  Context context(2);
  for (const int32_t block : {16, 64, 128})
    for (const Path path : {Path::kDirect, Path::kDense}) {
      Ran first;
      for (const int64_t page : {1, 2, 16, 48, 61, 64, 69, 128, 256, 576}) {
        TestProblem t(
            {.kv_len = {700, 650},
             .q_len = {3, 1},
             .q_heads = 2,
             .head_dim = 24,
             .v_head_dim = 20,
             .page_size = page,
             .q = q_noise(1),
             .k = [](int64_t, int64_t token, int64_t h, int64_t d) { return noise(2, 0, token, h, d); },
             .v = [](int64_t, int64_t token, int64_t h, int64_t d) { return noise(3, 0, token, h, d); }});
        for (int64_t p = 0; p < 500 / page; ++p) t.table(1, p) = t.table(0, p);
        Rows rows(4);
        for (int32_t r = 0; r < 4; ++r)
          for (int32_t token = r; token < 640; token += 5 + r) rows[r].push_back(token);
        t.csr(rows);
        // Every page is touched: what the dense path loads is then the same for all page sizes.
        t.problem.mask = {
            .causal = path == Path::kDirect, .window = path == Path::kDense ? 1000 : 30, .sink = 0};
        const ForwardOptions o{.normalize = {.block = block}, .plan = {.path = path, .splits = 2}};
        const Ran r = run_all(t.problem, o, context);
        ASSERT_TRUE(r.status.ok()) << r.status.message();
        if (page == 1)
          first = r;
        else
          EXPECT_EQ(unlike(r, first), "") << "page " << page << ", block " << block;
      }
    }
}

Spec decode_of(int32_t kv_len) {
  return {.kv_len = {kv_len}, .page_size = 16, .q = q_noise(1), .k = kv_noise(2), .v = kv_noise(3)};
}

// D4: growth inside the capacity needs no new plan; beyond it the schedule is refused.
TEST(FaultD4, LiveLengthsPassTheBound) {
  Context context(1);
  TestProblem full(decode_of(64));
  full.all();
  const Result<Steps> planned = prepare(full.problem, {.normalize = {.block = 16}});
  ASSERT_TRUE(planned.ok());
  for (const int32_t length : {1, 16, 17, 64, 65}) {
    TestProblem t(decode_of(length));
    t.all();
    Result<IndexSet> index = normalize(t.problem, {.block = 16});
    const Result<Bundles> bundles = bundle(t.problem, *index);
    const Result<Schedule> now = schedule(planned->plan, bundles->view());
    if (length == 65) {
      EXPECT_EQ(now.status().code(), Code::kCapacityExceeded);
      continue;
    }
    ASSERT_TRUE(now.ok()) << now.status().message();
    Guarded out(DType::kF32, {1, 1, 4}), lse(DType::kF32, {1, 1});
    GuardedWorkspace workspace(partial_bytes(planned->plan, *now));
    ASSERT_TRUE(run(planned->plan, t.problem, bundles->view(), *now, {out.view(), lse.view()},
                    workspace.span(), context)
                    .ok());
    const reference::Answer want = answer(t.problem);
    EXPECT_EQ(complaint({{}, out.values(), lse.values(), {}, {}}, want, tolerance_of(t.problem, want)), "");
  }
}

// D3: dynamic 64 tokens, window 64 and sink 16, all distinct, in blocks of 16: nine blocks, not eight.
TEST(FaultD3, TheUnionOfScopesOutgrowsTheCapacity) {
  TestProblem t(decode_of(1000));
  std::vector<int32_t> row;
  for (int32_t i = 0; i < 64; ++i) row.push_back(160 + i);
  t.csr({row});
  t.problem.mask = {.causal = true, .window = 56, .sink = 16};  // the window ends with the last, short block
  const Result<IndexSet> index = normalize(t.problem, {.block = 16});
  const Result<Bundles> bundles = bundle(t.problem, *index);
  ASSERT_EQ(bundles->view().entries, 9);
  Capacities capacities = capacities_of(t.problem, bundles->view());
  EXPECT_TRUE(schedule(*make_plan(t.problem, capacities, 16), bundles->view()).ok());
  capacities.row_entries = 8;
  const Status s = schedule(*make_plan(t.problem, capacities, 16), bundles->view()).status();
  EXPECT_EQ(s.code(), Code::kCapacityExceeded);
  EXPECT_EQ(s.where().value, 9);
}

TEST(FaultD6, ManyRowsManyRequestsManySplits) {
  Context context(2);
  const auto three = [](int64_t, int64_t, int64_t, int64_t) { return 3.0; };
  TestProblem rows({.kv_len = {1}, .q_len = {65536}, .head_dim = 1, .v_head_dim = 1, .v = three});
  rows.q_pos(std::vector<int32_t>(65536, 0)).csr(Rows(65536, {0}));
  Ran r = run_all(rows.problem, {}, context);
  ASSERT_TRUE(r.status.ok()) << r.status.message();
  EXPECT_EQ(r.damage, "");
  EXPECT_EQ(r.out, std::vector<double>(65536, 3));

  const int32_t requests = 11623;
  TestProblem batch({.kv_len = std::vector<int32_t>(requests, 1),
                     .head_dim = 1,
                     .v_head_dim = 1,
                     .page_size = 1,
                     .v = [](int64_t b, int64_t, int64_t, int64_t) { return static_cast<double>(b); }});
  batch.csr(Rows(requests, {0}));
  r = run_all(batch.problem, {}, context);
  ASSERT_TRUE(r.status.ok()) << r.status.message();
  for (int32_t b = 0; b < requests; ++b) ASSERT_EQ(r.out[b], b);

  TestProblem row({.kv_len = {161 * 64}, .head_dim = 1, .v_head_dim = 1, .page_size = 64, .v = three});
  row.all();
  for (const int32_t splits : {161, 1000}) {  // also more parts than blocks
    r = run_all(row.problem, {.plan = {.splits = splits}}, context);
    ASSERT_TRUE(r.status.ok()) << r.status.message();
    EXPECT_NEAR(r.out[0], 3, 1e-5);
    EXPECT_NEAR(r.lse[0], std::log(161.0 * 64), 1e-5);
  }
}

// F2 and F1: parts of 4 and 1 keys, then parts of which some are empty, join by the natural logarithm.
TEST(FaultF1, PartsMergeAsStates) {
  Context context(2);
  TestProblem t({.kv_len = {80}, .page_size = 16, .v = [](int64_t, int64_t token, int64_t, int64_t) {
                   return token == 64 ? 1.0 : 0.0;
                 }});
  t.problem.mask.causal = false;
  t.csr({{0, 1, 2, 3, 64}});
  for (const int32_t splits : {1, 2, 3, 8, 64}) {
    const Ran r = run_all(t.problem, {.normalize = {.block = 16}, .plan = {.splits = splits}}, context);
    ASSERT_TRUE(r.status.ok());
    EXPECT_NEAR(r.out[0], 0.2, 1e-6) << splits;
    EXPECT_NEAR(r.lse[0], std::log(5.0), 1e-6) << splits;
  }
}

// F3: request 0 decodes 8193 tokens, alone and in company.
TEST(FaultF3, NeighboursChangeNoBit) {
  Context context(2);
  const auto row = [&](std::vector<int32_t> kv_len, std::vector<int32_t> q_len, BundlePolicy policy,
                       Path path) {
    TestProblem t({.kv_len = std::move(kv_len),
                   .q_len = std::move(q_len),
                   .q_heads = 2,
                   .head_dim = 24,
                   .v_head_dim = 24,
                   .page_size = 64,
                   .q = q_noise(1),
                   .k = kv_noise(2),
                   .v = kv_noise(3)});
    t.all();
    const ForwardOptions o{.bundle = {.policy = policy}, .plan = {.path = path, .batch_invariant = true}};
    const Result<Steps> steps = prepare(t.problem, o);
    EXPECT_GT(steps->schedule.stats.split_rows, 0);
    Ran r = run_step(t.problem, *steps, steps->schedule, context);
    r.out.resize(2 * 24);
    r.lse.resize(2);
    return r;
  };
  for (const BundlePolicy policy : {BundlePolicy::kRows, BundlePolicy::kHeads, BundlePolicy::kNeighbours})
    for (const Path path : {Path::kDirect, Path::kDense}) {
      const Ran alone = row({8193}, {1}, policy, path);
      EXPECT_EQ(unlike(row({8193, 9}, {1, 9}, policy, path), alone), "");
      EXPECT_EQ(unlike(row({8193, 10}, {1, 10}, policy, path), alone), "");
      std::vector<int32_t> lengths(1001, 3), queries(1001, 1);
      lengths[0] = 8193;
      EXPECT_EQ(unlike(row(lengths, queries, policy, path), alone), "");
    }
}

// F4: two thousand steps back to back, scratch full of garbage each time, tasks in another order each time.
TEST(FaultF4, TheSameInputGivesTheSameBits) {
  Context context(4);
  TestProblem t({.kv_len = {300, 77},
                 .q_len = {2, 2},
                 .q_heads = 4,
                 .kv_heads = 2,
                 .page_size = 16,
                 .q = q_noise(1),
                 .k = kv_noise(2),
                 .v = kv_noise(3)});
  t.all();
  const Result<Steps> steps = prepare(t.problem, {.normalize = {.block = 16}, .plan = {.splits = 5}});
  ASSERT_TRUE(steps.ok());
  const Ran first = run_step(t.problem, *steps, steps->schedule, context);
  for (uint64_t i = 0; i < 2000; ++i)
    ASSERT_EQ(unlike(run_step(t.problem, *steps, shuffled(steps->schedule, i), context), first), "")
        << "step " << i;
}

// I3: a prefill is its decode steps, and rows in a block are rows one by one.
TEST(FaultI3, PrefillDecodeAndBlocksMeanTheSame) {
  Context context(1);
  const auto noisy = [](std::vector<int32_t> kv_len, std::vector<int32_t> q_len, int64_t first) {
    return Spec{.kv_len = std::move(kv_len),
                .q_len = std::move(q_len),
                .q_heads = 2,
                .q = [first](int64_t i, int64_t h, int64_t d) { return noise(1, first + i, h, d); },
                .k = kv_noise(2),
                .v = kv_noise(3)};
  };
  const Rows rows = {{0}, {-1}, {1, 1, 0}, {-1, 3, -1}, {4, 0}};
  TestProblem prefill(noisy({5}, {5}, 0));
  prefill.csr(rows).alibi({0.5, 0.25});
  const Ran together = run_all(prefill.problem, {}, context);
  ASSERT_TRUE(together.status.ok());
  for (int32_t step = 0; step < 5; ++step) {
    TestProblem decode(noisy({step + 1}, {1}, step));
    decode.csr({rows[step]}).alibi({0.5, 0.25});
    const Ran r = run_all(decode.problem, {}, context);
    EXPECT_EQ(differs(r.out, {together.out.begin() + step * 8, together.out.begin() + step * 8 + 8}, 1e-6),
              "")
        << step;
    EXPECT_EQ(differs(r.lse, {together.lse.begin() + step * 2, together.lse.begin() + step * 2 + 2}, 1e-6),
              "")
        << step;
  }
  for (const int32_t queries : {64, 65}) {
    TestProblem t(noisy({80}, {queries}, 0));
    t.csr(Rows(queries, {3, 77, 20}));
    const Ran alone = run_all(t.problem, {}, context);
    for (const int64_t block : {16, 64, 1000}) {
      t.problem.candidates.query_block = block;
      t.csr(Rows((queries + block - 1) / block, {77, 20, 3}));
      const Ran r = run_all(t.problem, {}, context);
      EXPECT_EQ(differs(r.out, alone.out, 1e-6) + differs(r.lse, alone.lse, 1e-6), "") << block;
    }
  }
}

}  // namespace
}  // namespace tamis
