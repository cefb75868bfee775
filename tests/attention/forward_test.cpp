// forward(): which path it takes and says it takes, what it counts, what it refuses, and in which order.
#include <gtest/gtest.h>

#include "attention/runs.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

struct Forwarded {
  Status status;
  std::vector<double> out, lse;
  ForwardReport report;
  bool untouched;
};

Forwarded forwarded(const Problem& p, const ForwardOptions& o = {}, int64_t queries = 1, int64_t heads = 1,
                    int64_t dim = 4) {
  Context context(1);
  Guarded out(DType::kF32, {queries, heads, dim}), lse(DType::kF32, {queries, heads});
  Forwarded f{};
  f.status = forward(p, o, {out.view(), lse.view()}, context, &f.report);
  f.out = out.values();
  f.lse = lse.values();
  f.untouched = out.untouched() && lse.untouched();
  EXPECT_TRUE(out.fences_stand() && lse.fences_stand());
  EXPECT_TRUE(f.status.ok() || f.untouched);
  return f;
}

TestProblem one_row(std::vector<int32_t> row, int32_t kv_len = 1024) {
  TestProblem t({.kv_len = {kv_len}, .page_size = 64, .k = kv_noise(2)});
  t.csr({std::move(row)});
  return t;
}

TEST(Forward, ChoosesAPathAndSaysWhy) {
  TestProblem t = one_row({3, 700});
  Forwarded f = forwarded(t.problem);
  ASSERT_TRUE(f.status.ok());
  EXPECT_EQ(f.report.path, Path::kDirect);
  EXPECT_NE(f.report.reason, "") << "it was not asked for";
  EXPECT_EQ(forwarded(t.problem, {.plan = {.path = Path::kDirect}}).report.reason, "");

  const Forwarded dense = forwarded(t.problem, {.plan = {.path = Path::kDense}});
  EXPECT_EQ(dense.report.path, Path::kDense);
  EXPECT_EQ(differs(dense.out, f.out, 1e-3) + differs(dense.lse, f.lse, 1e-5), "");

  const Forwarded gather = forwarded(t.problem, {.plan = {.path = Path::kGather}});
  EXPECT_EQ(gather.report.path, Path::kDirect);
  EXPECT_NE(gather.report.reason.find("gather"), std::string::npos);
  EXPECT_TRUE(same_bits(gather.out, f.out));
  const ForwardOptions refuse{.plan = {.path = Path::kGather, .fallback = Fallback::kRefuse}};
  EXPECT_EQ(forwarded(t.problem, refuse).status.code(), Code::kUnsupported);

  t.all();
  f = forwarded(t.problem);
  EXPECT_EQ(f.report.path, Path::kDense);
  EXPECT_NE(f.report.reason, "");
}

// 31 of 32 blocks listed: auto turns to the dense path after it has seen the lists, and then brings
// the last one too, since its page is touched anyway.
TEST(Forward, AutoTurnsDenseWhereListsAreLong) {
  TestProblem t({.kv_len = {2048}, .page_size = 256, .k = kv_noise(2)});
  std::vector<int32_t> row;
  for (int32_t token = 0; token < 2048; token += 2)
    if (token / 64 != 5) row.push_back(token);
  t.csr({row});
  const reference::Answer want = answer(t.problem);
  const Forwarded f = forwarded(t.problem);
  ASSERT_TRUE(f.status.ok());
  EXPECT_EQ(f.report.path, Path::kDense);
  EXPECT_EQ(f.report.block, 64);
  EXPECT_EQ(complaint({f.status, f.out, f.lse, {}, {}}, want, tolerance_of(t.problem, want)), "");
  EXPECT_EQ(f.report.counters.tokens_loaded, 2048);
  EXPECT_EQ(forwarded(t.problem, {.plan = {.path = Path::kDirect}}).report.counters.tokens_loaded, 31 * 32);
}

TEST(Forward, CountsWhatItDid) {
  // Tokens 0, 5, 63, 64 and 700: three blocks, five columns, one tile.
  const TestProblem t = one_row({0, 5, 63, 64, 700, 5, -1});
  const Forwarded direct = forwarded(t.problem, {.plan = {.path = Path::kDirect}});
  const ForwardReport& r = direct.report;
  EXPECT_EQ(r.block, 64);
  EXPECT_EQ(r.index.blocks, 3);
  EXPECT_EQ(r.index.counts.duplicates, 1);
  EXPECT_EQ(r.index.counts.padding, 1);
  EXPECT_EQ(r.bundles.union_blocks, 3);
  EXPECT_EQ(r.schedule.tasks, 1);
  EXPECT_EQ(r.counters.tasks, 1);
  EXPECT_EQ(r.counters.tokens_loaded, 5);
  EXPECT_EQ(r.counters.tiles, 1);
  EXPECT_EQ(r.counters.empty_rows, 0);
  // The dense path brings the three touched pages, and not one more.
  const Forwarded dense = forwarded(t.problem, {.plan = {.path = Path::kDense}});
  EXPECT_EQ(dense.report.counters.tokens_loaded, 3 * 64);
  EXPECT_EQ(dense.report.counters.tiles, 3);
}

TEST(Forward, CountersAddUp) {
  TestProblem t = one_row({0, 5});
  Context context(1);
  const Result<Steps> steps = prepare(t.problem, {});
  Guarded out(DType::kF32, {1, 1, 4});
  RunCounters counters;
  for (int i = 0; i < 2; ++i)
    ASSERT_TRUE(run(steps->plan, t.problem, steps->bundles.view(), steps->schedule, {out.view(), {}}, {},
                    context, &counters)
                    .ok());
  EXPECT_EQ(counters.tasks, 2);
  EXPECT_EQ(counters.tokens_loaded, 4);
}

TEST(Forward, RefusesWhatItDoesNotCompute) {
  // Arguments are judged before candidates.
  TestProblem wide({.head_dim = 513});
  wide.csr({{5000}});
  Forwarded f = forwarded(wide.problem);
  EXPECT_EQ(f.status.code(), Code::kUnsupported);
  EXPECT_TRUE(says(f.status, "head_dim"));

  for (const auto& [dim, code] : {std::pair{512, Code::kOk}, {513, Code::kUnsupported}})
    for (const bool key : {false, true}) {
      TestProblem t({.head_dim = key ? dim : 4,
                     .v_head_dim = key ? 4 : dim,
                     .q = q_noise(1),
                     .k = kv_noise(2),
                     .v = kv_noise(3)});
      t.all();
      f = forwarded(t.problem, {}, 1, 1, key ? 4 : dim);
      EXPECT_EQ(f.status.code(), code);
      EXPECT_TRUE(f.status.ok() || says(f.status, "512"));
      if (!f.status.ok()) continue;
      const reference::Answer want = answer(t.problem);
      EXPECT_EQ(complaint({f.status, f.out, f.lse, {}, {}}, want, tolerance_of(t.problem, want)), "");
    }
}

TEST(Forward, RefusalsOfEveryStageLeaveTheOutputsAlone) {
  TestProblem t = one_row({3});
  EXPECT_EQ(forwarded(t.problem, {.normalize = {.block = 48}}).status.code(), Code::kUnsupported);
  EXPECT_EQ(
      forwarded(t.problem, {.bundle = {.policy = BundlePolicy::kNeighbours, .neighbours = 0}}).status.code(),
      Code::kInvalidArgument);
  EXPECT_EQ(forwarded(t.problem, {.plan = {.splits = -1}}).status.code(), Code::kInvalidArgument);
  EXPECT_FALSE(forwarded(t.problem, {.plan = {.backend = Backend::kReference}}).status.ok());
  t.kv_len()[0] = -1;
  EXPECT_EQ(forwarded(t.problem).status.code(), Code::kInvalidArgument);
}

TEST(Forward, NothingToDo) {
  TestProblem none({.kv_len = {8}, .q_len = {0}});
  none.csr({});
  EXPECT_TRUE(forwarded(none.problem, {}, 0).status.ok());
  TestProblem nobody({.kv_len = {}, .q_len = {}});
  nobody.csr({});
  EXPECT_TRUE(forwarded(nobody.problem, {}, 0).status.ok());
}

}  // namespace
}  // namespace tamis
