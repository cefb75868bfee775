// The index set and the schedule made on the device, against those of the host: block by block, word by word,
// task by task.
#include <gtest/gtest.h>

#include <set>

#include "cuda/draw.h"
#include "cuda/rebuilt.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

class CudaIndex : public OnDevice {};

// One step without attention, and what it left.
struct Seen {
  cuda::FetchedStep fetched;
  cuda::StepStats stats;
};
Seen look(DeviceStep& step, const DeviceProblem& p) {
  DeviceStream stream;
  Status s = cuda::normalize(step.plan, p.problem, step.buffers(), stream);
  EXPECT_TRUE(s.ok()) << s.message();
  s = cuda::schedule(step.plan, step.buffers(), stream);
  EXPECT_TRUE(s.ok()) << s.message();
  Seen seen;
  s = cuda::poll(step.plan, step.buffers(), stream, &seen.stats);
  EXPECT_TRUE(s.ok()) << code_name(s.code()) << ": " << s.message();
  Result<cuda::FetchedStep> fetched = cuda::fetch(step.plan, step.buffers(), stream);
  EXPECT_TRUE(fetched.ok()) << fetched.status().message();
  if (fetched.ok()) seen.fetched = std::move(*fetched);
  EXPECT_TRUE(step.fences_stand() && p.fences_stand());
  return seen;
}

// `seen`: as in unlike_bundles.
void expect_same_stats(const Problem& p, const IndexSet& index, const Bundles& bundles,
                       const BundleView& seen, const cuda::StepPlan& plan, const cuda::StepStats& got) {
  const IndexStats& want = index.stats();
  const BundleView v = bundles.view();
  EXPECT_EQ(got.raw, want.counts.raw);
  EXPECT_EQ(got.padding, want.counts.padding);
  EXPECT_EQ(got.invalid, want.counts.invalid);
  EXPECT_EQ(got.duplicates, want.counts.duplicates);
  EXPECT_EQ(got.unique, want.counts.unique);
  EXPECT_EQ(got.future, want.future);
  EXPECT_EQ(got.bundles, v.bundles);
  int64_t empty = 0, blocks = 0, pages = 0;
  const int64_t page = describe(p)->page_size;
  for (int64_t b = 0; b < v.bundles; ++b) {
    empty += v.bundle[b].count == 0;
    blocks += v.bundle[b].count;
    std::set<int64_t> touched;
    const Bundle& of = seen.bundle[b];
    for (int64_t s = seen.span_begin[of.begin]; s < seen.span_begin[of.begin + of.count]; ++s)
      if (page > 0) touched.insert(seen.spans[s].token / page);
    pages += static_cast<int64_t>(touched.size());
  }
  EXPECT_EQ(got.empty_bundles, empty);
  EXPECT_EQ(got.blocks, blocks);
  if (plan.lists == 1) {
    EXPECT_EQ(got.gaps, want.gaps);
  }
  if (page > 0) {
    EXPECT_EQ(got.touched_pages, pages);
  }
}

// Tokens of a bundle that some query of it sees, by the reference's sets.
int64_t selected_of(const Problem& p, const BundleView& v) {
  const Result<reference::Sets> sets = reference::build_sets(p);
  EXPECT_TRUE(sets.ok());
  int64_t selected = 0;
  for (int64_t b = 0; b < v.bundles; ++b) {
    std::set<int32_t> seen;
    for (int32_t l = 0; l < v.bundle[b].lists; ++l) {
      const RowInfo& row = v.row[v.rows[v.bundle[b].first_list + l]];
      for (int64_t i = row.first_query; i < row.last_query; ++i)
        for (const int32_t t : set_of(*sets, i * p.candidates.index_heads + row.index_head)) seen.insert(t);
    }
    selected += static_cast<int64_t>(seen.size());
  }
  return selected;
}

void expect_same(const Problem& p, const cuda::StepOptions& options, bool small = true) {
  const std::unique_ptr<DeviceStep> step = planned(p, options);
  const cuda::StepPlan& plan = step->plan;
  const DeviceProblem device(p);
  const Seen seen = look(*step, device);
  if (::testing::Test::HasFailure()) return;
  const Result<IndexSet> index =
      normalize(p, {.block = plan.plan.block, .all_blocks = plan.plan.path == Path::kDense});
  ASSERT_TRUE(index.ok()) << index.status().message();
  const Result<Bundles> bundles = bundle(p, *index, {.policy = BundlePolicy::kHeads});
  ASSERT_TRUE(bundles.ok()) << bundles.status().message();
  const Result<IndexSet> touched = normalize(p, {.block = plan.plan.block});
  const Result<Bundles> seen_bundles = bundle(p, *touched, {.policy = BundlePolicy::kHeads});
  ASSERT_TRUE(seen_bundles.ok()) << seen_bundles.status().message();
  ASSERT_EQ(unlike_bundles(plan, bundles->view(), seen_bundles->view(), seen.fetched), "");
  expect_same_stats(p, *index, *bundles, seen_bundles->view(), plan, seen.stats);
  if (small) {
    EXPECT_EQ(seen.stats.selected, selected_of(p, bundles->view()));
  }

  const Rebuilt rebuilt(plan, seen.fetched);
  const Result<Schedule> want = schedule(plan.plan, rebuilt.view());
  ASSERT_TRUE(want.ok()) << want.status().message();
  ASSERT_EQ(unlike_schedules(*want, seen.fetched), "");
  EXPECT_EQ(seen.stats.tasks, want->stats.tasks);
  EXPECT_EQ(seen.stats.parts, want->stats.parts);
  EXPECT_EQ(std::max<int64_t>(1, seen.stats.most_parts), want->stats.most_parts);
}

TEST_F(CudaIndex, RandomProblems) {
  for (int64_t number = first_problem(); number < first_problem() + 4 * problems(); ++number) {
    Dice d(number);
    const TestProblem t = draw_problem(d, false);
    cuda::StepOptions o = draw_options(d);
    if (t.problem.candidates.form == CandidateForm::kAll) o.plan.path = Path::kDirect;
    SCOPED_TRACE(::testing::Message() << "TAMIS_CUDA_FIRST=" << number << ": block " << o.block << ", "
                                      << path_name(o.plan.path) << ", splits " << o.plan.splits);
    expect_same(t.problem, o);
    if (HasFailure()) return;
  }
}

// Contexts up to two million tokens, whose pages are few because the table names them again and again.
TEST_F(CudaIndex, LongContexts) {
  const int32_t lengths[] = {1 << 21, (1 << 20) + 13, 70};
  std::vector<std::vector<int32_t>> table;
  for (int b = 0; b < 3; ++b) {
    table.emplace_back((1 << 21) / 64);
    for (size_t i = 0; i < table.back().size(); ++i) table.back()[i] = static_cast<int32_t>((7 * i + b) % 61);
  }
  TestProblem t({.kv_len = {lengths[0], lengths[1], lengths[2]},
                 .q_heads = 4,
                 .head_dim = 8,
                 .v_head_dim = 8,
                 .dtype = DType::kBF16,
                 .page_size = 64,
                 .table = table,
                 .pages = 61,
                 .k = [](auto...) { return 0.0; },
                 .v = [](auto...) { return 0.0; }});
  for (const int64_t unit : {1, 16, 64})
    for (const int64_t heads : {1, 4})
      for (const int64_t window : {0, 100000}) {
        Dice d(unit + heads);
        t.problem.candidates.unit = unit;
        t.problem.candidates.index_heads = heads;
        t.problem.mask = {.causal = true, .window = window, .sink = window / 3};
        Rows rows;
        for (const int32_t length : lengths)
          for (int64_t h = 0; h < heads; ++h) {
            rows.emplace_back(2048);
            for (int32_t& e : rows.back()) e = d.one_in(50) ? -1 : d.i32(0, (length - 1) / unit);
          }
        t.fixed(rows);
        SCOPED_TRACE(::testing::Message() << "unit " << unit << ", " << heads << " lists, window " << window);
        for (const Path path : {Path::kDirect, Path::kDense}) {
          cuda::StepOptions o;
          o.plan.path = path;
          expect_same(t.problem, o, false);
        }
        if (HasFailure()) return;
      }
}

// Prefill: 100000 CSR rows of any length, each with a place of its own, for one list and for two a bundle.
TEST_F(CudaIndex, RowsOfPrefill) {
  constexpr int32_t kLength = 1 << 17;
  const int32_t queries = static_cast<int32_t>(std::clamp<int64_t>(400 * problems(), 1000, 50000));
  TestProblem t({.kv_len = {kLength, 5000},
                 .q_len = {queries - 100, 100},
                 .q_heads = 2,
                 .head_dim = 8,
                 .v_head_dim = 8,
                 .dtype = DType::kBF16,
                 .page_size = 64,
                 .q = [](auto...) { return 0.0; },
                 .k = [](auto...) { return 0.0; },
                 .v = [](auto...) { return 0.0; }});
  Dice d(17);
  for (const int64_t query_block : {1, 2}) {
    const int64_t unit = query_block == 1 ? 1 : 16;
    t.problem.candidates.index_heads = 2;
    t.problem.candidates.query_block = query_block;
    t.problem.candidates.unit = unit;
    t.problem.mask = {.causal = true, .window = 100, .sink = 3};
    Rows rows(static_cast<size_t>(queries / query_block * 2));
    const size_t longer = rows.size() - static_cast<size_t>(200 / query_block);
    for (size_t r = 0; r < rows.size(); ++r) {
      rows[r].resize(d.one_in(1000) ? d.from(5000, 20000) : d.from(0, 140));
      for (int32_t& e : rows[r]) e = d.one_in(20) ? -1 : d.i32(0, ((r < longer ? kLength : 5000) - 1) / unit);
    }
    query_block == 1 ? t.csr(rows) : t.csr64(rows);
    SCOPED_TRACE(::testing::Message() << "query blocks of " << query_block);
    ASSERT_GT(cuda::plan_step(t.problem)->places.an_entry, 0);
    for (const bool invariant : {false, true}) {
      cuda::StepOptions o;
      o.plan.batch_invariant = invariant;
      expect_same(t.problem, o, false);
    }
    if (HasFailure()) return;
  }
}

// A list for all KV heads, so that bundles and groups are not the same in number; and a batch that ends
// early.
TEST_F(CudaIndex, RowsOfPrefillForAllHeads) {
  const int32_t queries = 6000;
  TestProblem t({.kv_len = {20000},
                 .q_len = {queries},
                 .q_heads = 3,
                 .kv_heads = 3,
                 .head_dim = 8,
                 .v_head_dim = 8,
                 .dtype = DType::kBF16,
                 .page_size = 16,
                 .q = [](auto...) { return 0.0; },
                 .k = [](auto...) { return 0.0; },
                 .v = [](auto...) { return 0.0; }});
  Dice d(18);
  Rows rows(queries);
  for (auto& row : rows) {
    row.resize(d.from(0, 20));
    for (int32_t& e : row) e = d.i32(0, 19999);
  }
  t.csr(rows);
  for (const int32_t splits : {0, 3}) {
    cuda::StepOptions o;
    o.plan.splits = splits;
    expect_same(t.problem, o, false);
  }
  const std::unique_ptr<DeviceStep> step = planned(t.problem);
  ASSERT_GT(step->plan.places.an_entry, 0);
  t.cu_q()[1] = 77;
  std::fill(t.indptr32().begin() + 78, t.indptr32().end(), INT32_MIN);
  const DeviceProblem device(t.problem);
  const Seen seen = look(*step, device);
  EXPECT_EQ(seen.stats.bundles, 77);
  ASSERT_GE(seen.fetched.tasks.size(), 3 * 77u);
  for (const Task& task : seen.fetched.tasks) EXPECT_LT(task.bundle, 77);
}

// Order, gaps and repetitions of a list leave no trace in the set.
TEST_F(CudaIndex, OrderLeavesNoTrace) {
  TestProblem t({.kv_len = {4000}, .head_dim = 64, .v_head_dim = 64, .dtype = DType::kBF16, .page_size = 16});
  std::vector<int32_t> row;
  for (int32_t e = 0; e < 4000; e += 7) row.push_back(e);
  const auto blocks_of_list = [&t](std::vector<int32_t> list) {
    t.csr({std::move(list)});
    const std::unique_ptr<DeviceStep> step = planned(t.problem);
    const DeviceProblem device(t.problem);
    return look(*step, device).fetched;
  };
  const cuda::FetchedStep first = blocks_of_list(row);
  ASSERT_EQ(first.bundles.size(), 1u);
  for (int turn = 0; turn < 5; ++turn) {
    Dice d(turn);
    std::vector<int32_t> other = row;
    for (int i = 0; i < 100; ++i) other.push_back(d.one_in(2) ? -1 : row[d.from(0, 500)]);
    for (size_t i = other.size(); i > 1; --i)
      std::swap(other[i - 1], other[d.from(0, static_cast<int64_t>(i) - 1)]);
    const cuda::FetchedStep again = blocks_of_list(other);
    ASSERT_EQ(again.bundles.size(), 1u);
    EXPECT_EQ(again.bundles[0].blocks, first.bundles[0].blocks);
    EXPECT_EQ(again.bundles[0].members, first.bundles[0].members);
    EXPECT_EQ(again.bundles[0].slots, first.bundles[0].slots);
  }
}

}  // namespace
}  // namespace tamis
