// run and forward through C: bit for bit what C++ computes.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "capi/c_problem.h"
#include "tamis/attention.h"

namespace tamis::testing {
namespace {

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// The same problem in C++ and both ways in C.
void expect_same(const Problem& problem, const tamis_plan_options* plan = nullptr,
                 const PlanOptions& cpp_plan = {}) {
  const Result<Shape> described = describe(problem);
  ASSERT_TRUE(described.ok()) << described.status().message();
  const Shape s = *described;
  Results expected(s.total_q, s.q_heads, s.v_head_dim), one(s.total_q, s.q_heads, s.v_head_dim),
      staged(s.total_q, s.q_heads, s.v_head_dim);
  Context context(1);
  const OutView out{mutable_view(expected.out.data(), DType::kF32, {s.total_q, s.q_heads, s.v_head_dim}),
                    mutable_view(expected.lse.data(), DType::kF32, {s.total_q, s.q_heads})};
  const Status status = forward(problem, {.plan = cpp_plan}, out, context);
  ASSERT_TRUE(status.ok()) << status.message();

  const CProblem c(problem);
  Handles h;
  Error error;
  const tamis_forward_options options{sizeof options, nullptr, nullptr, plan};
  ASSERT_EQ(tamis_forward(&c.problem, &options, &one.output, h.context, nullptr, error), TAMIS_OK)
      << error.text;
  EXPECT_TRUE(same(one.out, expected.out));
  EXPECT_TRUE(same(one.lse, expected.lse));

  ASSERT_EQ(h.prepare(c.problem, plan, error), TAMIS_OK) << error.text;
  std::vector<float> workspace;
  const tamis_step step = h.step(c.problem, staged.output, &workspace);
  ASSERT_EQ(tamis_run(&step, h.context, nullptr, error), TAMIS_OK) << error.text;
  EXPECT_TRUE(same(staged.out, expected.out));
  EXPECT_TRUE(same(staged.lse, expected.lse));
}

TEST(CRun, Decode) { expect_same(decode_problem().problem); }

TEST(CRun, EveryOptionOfAProblem) {
  TestProblem t({.kv_len = {40, 90},
                 .q_len = {20, 7},
                 .q_heads = 6,
                 .kv_heads = 2,
                 .head_dim = 24,
                 .v_head_dim = 40,
                 .dtype = DType::kBF16,
                 .page_size = 8,
                 .layout = Layout::kHND,
                 .placement = Placement::kInterleaved,
                 .q = q_noise(4),
                 .k = kv_noise(5),
                 .v = kv_noise(6)});
  t.alibi({0.5f, 0.25f, 0.125f, 1.f, 0.f, 2.f})
      .q_pos(std::vector<int32_t>(27, 30))
      .stamps(std::vector<uint64_t>(18, 7));
  t.problem.candidates.query_block = 16;
  t.problem.candidates.unit = 8;
  t.problem.candidates.index_heads = 1;
  t.problem.mask = {.causal = false, .window = 5, .sink = 3};
  t.problem.score.scale = 0.3;
  t.problem.score.softcap = 2;
  // Three rows: 20 queries are two blocks, 7 are one.
  t.fixed({{0, 1, 2}, {4, 3, -1}, {10, 0, 1}}, {3, 2, 2});
  expect_same(t.problem);
}

TEST(CRun, ContiguousAndDense) {
  TestProblem t(
      {.kv_len = {300}, .q_len = {3}, .page_size = 0, .q = q_noise(7), .k = kv_noise(8), .v = kv_noise(9)});
  t.all();
  expect_same(t.problem);
}

TEST(CRun, Splits) {
  TestProblem t({.kv_len = {700}, .q_heads = 2, .q = q_noise(7), .k = kv_noise(8), .v = kv_noise(9)});
  t.all();
  tamis_plan_options o;
  tamis_plan_options_init(&o);
  o.splits = 3;
  o.path = TAMIS_PATH_DIRECT;
  expect_same(t.problem, &o, {.path = Path::kDirect, .splits = 3});
}

// Every count, twice over: added to what is there.
TEST(CRun, CountersAreThoseOfForward) {
  TestProblem t = decode_problem();
  t.put_v(t.slot(0, 0), kNaN);  // head 1 does not list it, but shares a bundle with head 0, which does
  t.problem.candidates.index_heads = 4;
  t.csr({{0, 5}, {5, 6}, {64}, {69}, {1, 2, 3}, {1}, {2}, {}, {}, {4}, {3}, {2}});
  const CProblem c(t.problem);
  Results expected(3, 4, 8), results(3, 4, 8);
  Context one(1);
  ForwardReport report;
  const Status status =
      forward(t.problem, {}, {mutable_view(expected.out.data(), DType::kF32, {3, 4, 8}), {}}, one, &report);
  ASSERT_TRUE(status.ok()) << status.message();
  Handles h;
  auto forwarded = sized<tamis_run_counters>(), ran = sized<tamis_run_counters>();
  auto reported = sized<tamis_forward_report>();
  reported.counters = &forwarded;
  ASSERT_EQ(h.prepare(c.problem), TAMIS_OK);
  std::vector<float> workspace;
  const tamis_step step = h.step(c.problem, results.output, &workspace);
  for (int64_t times = 1; times <= 2; ++times) {
    ASSERT_EQ(tamis_forward(&c.problem, nullptr, &results.output, h.context, &reported, nullptr), TAMIS_OK);
    ASSERT_EQ(tamis_run(&step, h.context, &ran, nullptr), TAMIS_OK);
    for (const tamis_run_counters* counters : {&forwarded, &ran}) {
      EXPECT_EQ(counters->tasks, times * report.counters.tasks);
      EXPECT_EQ(counters->tiles, times * report.counters.tiles);
      EXPECT_EQ(counters->tokens_loaded, times * report.counters.tokens_loaded);
      EXPECT_EQ(counters->rows_redone, times * report.counters.rows_redone);
      EXPECT_EQ(counters->empty_rows, times * report.counters.empty_rows);
      EXPECT_GT(counters->attention_us, 0);
    }
  }
  EXPECT_GT(ran.rows_redone, 0);
  EXPECT_GT(ran.empty_rows, 0);
}

TEST(CRun, ReportAndCounters) {
  TestProblem t = decode_problem();
  const CProblem c(t.problem);
  Handles h;
  Results results(3, 4, 8);
  Error error;
  auto index = sized<tamis_index_summary>();
  auto bundles = sized<tamis_bundle_summary>();
  auto schedule = sized<tamis_schedule_summary>();
  auto counters = sized<tamis_run_counters>();
  counters.tasks = 1000;
  char reason[4] = "###";
  tamis_plan_options plan;
  tamis_plan_options_init(&plan);
  plan.path = TAMIS_PATH_DENSE;
  const tamis_forward_options options{sizeof options, nullptr, nullptr, &plan};
  auto report = sized<tamis_forward_report>();
  report.reason = reason;
  report.reason_capacity = sizeof reason;
  report.index = &index;
  report.bundles = &bundles;
  report.schedule = &schedule;
  report.counters = &counters;
  report.path = -1;
  ASSERT_EQ(tamis_forward(&c.problem, &options, &results.output, h.context, &report, error), TAMIS_OK)
      << error.text;
  EXPECT_EQ(report.path, TAMIS_PATH_DENSE);
  EXPECT_GE(report.block, 16);
  EXPECT_GE(report.tile, report.block);
  EXPECT_EQ(report.reason, reason);
  EXPECT_EQ(reason[3], '\0');
  EXPECT_EQ(index.unique + index.padding + index.duplicates + index.invalid, index.raw);
  EXPECT_GT(bundles.union_blocks, 0);
  EXPECT_EQ(counters.tasks, 1000 + schedule.tasks);
  EXPECT_EQ(counters.empty_rows, 2);  // one list, two query heads
  EXPECT_GT(report.total_us, 0);
  EXPECT_GE(report.total_us, report.attention_us);

  // Without any of the summaries.
  auto bare = sized<tamis_forward_report>();
  EXPECT_EQ(tamis_forward(&c.problem, nullptr, &results.output, h.context, &bare, error), TAMIS_OK);
  EXPECT_EQ(bare.path, TAMIS_PATH_DIRECT);

  // tamis_run adds likewise.
  ASSERT_EQ(h.prepare(c.problem), TAMIS_OK);
  std::vector<float> workspace;
  const tamis_step step = h.step(c.problem, results.output, &workspace);
  auto twice = sized<tamis_run_counters>();
  ASSERT_EQ(tamis_run(&step, h.context, &twice, error), TAMIS_OK);
  const int64_t once = twice.tokens_loaded;
  ASSERT_EQ(tamis_run(&step, h.context, &twice, error), TAMIS_OK);
  EXPECT_GT(once, 0);
  EXPECT_EQ(twice.tokens_loaded, 2 * once);
}

TEST(CRun, Workspace) {
  TestProblem t({.kv_len = {700}});
  t.all();
  const CProblem c(t.problem);
  Handles h;
  Results results(1, 1, 4);
  Error error;
  tamis_plan_options o;
  tamis_plan_options_init(&o);
  o.splits = 3;
  ASSERT_EQ(h.prepare(c.problem, &o, error), TAMIS_OK) << error.text;
  std::vector<float> workspace;
  tamis_step step = h.step(c.problem, results.output, &workspace);
  int64_t bytes = 0;
  ASSERT_EQ(tamis_workspace_bytes(h.plan, h.schedule, &bytes, error), TAMIS_OK);
  ASSERT_GT(bytes, 0);
  step.workspace_bytes = static_cast<uint64_t>(bytes) - 1;
  EXPECT_EQ(tamis_run(&step, h.context, nullptr, error), TAMIS_WORKSPACE_TOO_SMALL);
  EXPECT_EQ(error.c.limit, bytes);
  EXPECT_TRUE(std::isnan(results.out[0]));
  step.workspace = nullptr;
  step.workspace_bytes = 0;
  EXPECT_EQ(tamis_run(&step, h.context, nullptr, error), TAMIS_WORKSPACE_TOO_SMALL);
  step.workspace = reinterpret_cast<char*>(workspace.data()) + 1;
  step.workspace_bytes = static_cast<uint64_t>(bytes);
  EXPECT_EQ(tamis_run(&step, h.context, nullptr, error), TAMIS_INVALID_ARGUMENT);
}

TEST(CRun, PartsThatDoNotBelongTogether) {
  TestProblem t = decode_problem(), u({.kv_len = {70, 33}, .page_size = 16});
  u.csr({{1}, {2}});
  const CProblem c(t.problem), d(u.problem);
  Handles h, other;
  Results results(3, 4, 8);
  Error error;
  ASSERT_EQ(h.prepare(c.problem), TAMIS_OK);
  ASSERT_EQ(other.prepare(d.problem), TAMIS_OK);
  std::vector<float> workspace;
  const tamis_step good = h.step(c.problem, results.output, &workspace);
  const auto stale = [&](auto member, auto value) {
    tamis_step step = good;
    step.*member = value;
    EXPECT_EQ(tamis_run(&step, h.context, nullptr, error), TAMIS_STALE_PLAN) << error.text;
    EXPECT_TRUE(std::isnan(results.out[0]));
  };
  stale(&tamis_step::plan, other.plan);
  stale(&tamis_step::schedule, other.schedule);
  stale(&tamis_step::bundles, other.bundles);

  // A cache that has lost pages since the lists were checked, and one that has gained some.
  CProblem less(t.problem), more(t.problem);
  tamis_tensor k = *less.problem.cache.k, v = *less.problem.cache.v;
  --k.shape[0];
  --v.shape[0];
  less.problem.cache.k = &k;
  less.problem.cache.v = &v;
  stale(&tamis_step::problem, static_cast<const tamis_problem*>(&less.problem));
  ASSERT_EQ(h.prepare(less.problem, nullptr, error), TAMIS_OK) << error.text;
  tamis_step grown = good;
  grown.problem = &more.problem;
  EXPECT_EQ(tamis_run(&grown, h.context, nullptr, error), TAMIS_OK) << error.text;
  EXPECT_FALSE(std::isnan(results.out[0]));

  ASSERT_EQ(tamis_normalize(&c.problem, nullptr, h.index, error), TAMIS_OK);
  EXPECT_EQ(tamis_run(&good, h.context, nullptr, error), TAMIS_STALE_PLAN);
  EXPECT_TRUE(says(error, "filled again"));
}

TEST(CRun, RefusalsOfForward) {
  TestProblem t = decode_problem();
  CProblem c(t.problem);
  Handles h;
  Results results(3, 4, 8), small(2, 4, 8);
  Error error;
  EXPECT_EQ(tamis_forward(&c.problem, nullptr, &small.output, h.context, nullptr, error),
            TAMIS_INVALID_ARGUMENT);
  EXPECT_TRUE(says(error, "out: shape"));
  c.problem.score.softcap = 1e39;
  EXPECT_EQ(tamis_forward(&c.problem, nullptr, &results.output, h.context, nullptr, error),
            TAMIS_UNSUPPORTED);
  EXPECT_TRUE(says(error, "softcap"));
  c.problem.score.softcap = 0;
  t.table(0, 4) = 4000;
  EXPECT_EQ(tamis_forward(&c.problem, nullptr, &results.output, h.context, nullptr, error),
            TAMIS_PAGE_OUT_OF_RANGE);
  EXPECT_TRUE(std::isnan(results.out[0]));
}

}  // namespace
}  // namespace tamis::testing
