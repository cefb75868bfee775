// A bundle becomes the same whatever threads make it, in whatever order: the code of normalize on the host,
// thread by thread, in CTAs of every size that a launch may choose. That it becomes the right one,
// tests/emulated/normalize_test.cpp judges.
#include <gtest/gtest.h>

#include "emulated/steps/step.h"
#include "support/mapped.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

// The whole index memory, 0xFF before.
std::vector<char> index_of(const Problem& p, const cuda::StepPlan& plan, int threads, std::string* error) {
  const Lines memory(plan.bytes.index);
  const cuda::StepBuffers buffers{nullptr, memory.data(), nullptr, plan.bytes};
  const index::NormalizeShared shared = cuda::shared_of(plan, p.candidates);
  const index::NormalizeArgs args = cuda::normalize_args(plan, p, *describe(p), buffers, shared);
  *error = emulate_normalize(args, shared, static_cast<uint64_t>(threads), threads);
  const char* first = static_cast<const char*>(memory.data());
  return {first, first + plan.bytes.index};
}

void expect_same_of_all_sizes(const Problem& p, const cuda::StepPlan& plan) {
  std::string error;
  const std::vector<char> want = index_of(p, plan, 256, &error);
  ASSERT_EQ(error, "");
  for (const int threads : {32, 64, 128}) {
    ASSERT_EQ(index_of(p, plan, threads, &error), want) << threads << " threads";
    ASSERT_EQ(error, "");
  }
}

TEST(EmulatedNormalizeSteps, AnyNumberOfThreadsGivesTheSame) {
  for (int64_t number = first_problem(); number < first_problem() + 40; ++number) {
    SCOPED_TRACE(::testing::Message() << "TAMIS_CUDA_FIRST=" << number);
    Dice d(number);
    const bool prefill = d.one_in(2);
    const TestProblem t = prefill ? draw_problem(d, draw_prefill_sizes(d), false) : draw_problem(d, false);
    cuda::StepOptions o = draw_options(d);
    const Result<cuda::StepPlan> plan = cuda::plan_step(t.problem, o);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    expect_same_of_all_sizes(t.problem, *plan);
    if (HasFailure()) return;
  }
}

// More requests than a small CTA has threads: each thread reads several, in several rounds.
TEST(EmulatedNormalizeSteps, ManyRequests) {
  for (const bool positions : {false, true}) {
    Spec s{.kv_len = {},
           .q_len = {},
           .q_heads = 2,
           .kv_heads = 1,
           .dtype = DType::kBF16,
           .q = q_noise(1),
           .k = kv_noise(2),
           .v = kv_noise(3)};
    s.head_dim = s.v_head_dim = 64;
    Rows rows;
    std::vector<int32_t> at;
    for (int32_t b = 0; b < 300; ++b) {
      s.kv_len.push_back(b % 5 == 0 ? 0 : 20 + b % 50);
      s.q_len.push_back(b % 3 == 0 ? 0 : 1 + b % 7);
      for (int32_t q = 0; q < s.q_len.back(); ++q) at.push_back(b % 2 == 0 ? q + 3 : (q * 29 + b) % 60 - 2);
      for (int32_t q = 0; q < s.q_len.back(); q += 4)
        rows.push_back(s.kv_len.back() == 0 ? std::vector<int32_t>{}
                                            : std::vector<int32_t>{0, b % 20 / 4, 4});
    }
    TestProblem t(s);
    t.problem.candidates.unit = 4;
    t.problem.candidates.query_block = 4;
    t.problem.candidates.index_heads = 1;
    t.csr(rows);
    t.problem.mask = {.causal = true, .window = 5, .sink = 2};
    if (positions) t.q_pos(at);
    const Result<cuda::StepPlan> plan = cuda::plan_step(t.problem, {.block = 16});
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    expect_same_of_all_sizes(t.problem, *plan);
  }
}

// Candidate rows, counts and offsets behind the end of cu_q lie behind a wall, whether blocks are of one
// query or of several, of which fewer may fill one.
TEST(EmulatedNormalizeSteps, RowsBeyondTheEndAreNotRead) {
  struct Case {
    int64_t query_block;
    std::vector<int32_t> cu_q;  // of as many as three requests of five queries
    int64_t rows;
  };
  for (const Case& c : {Case{1, {0, 5, 7, 7}, 7}, Case{1, {0, 0, 0, 0}, 0}, Case{4, {0, 1, 2, 3}, 3},
                        Case{4, {0, 5, 5, 5}, 2}, Case{4, {0, 0, 0, 4}, 1}})
    for (const bool csr : {false, true}) {
      SCOPED_TRACE(::testing::Message()
                   << "blocks of " << c.query_block << ", " << c.rows << " rows" << (csr ? ", CSR" : ""));
      TestProblem t(small_spec(64, {70, 70, 70}, {5, 5, 5}));
      CandidateView& view = t.problem.candidates;
      view.query_block = c.query_block;
      const size_t rows = c.query_block == 1 ? 15 : 6;
      const Rows lists(rows, {0, 7, 33});
      csr ? t.csr(lists) : t.fixed(lists, std::vector<int32_t>(rows, 3));
      const cuda::StepPlan plan = *cuda::plan_step(t.problem, {.block = 16});
      t.cu_q() = c.cu_q;
      std::string error;
      const std::vector<char> want = index_of(t.problem, plan, 64, &error);
      ASSERT_EQ(error, "");
      const WalledCopy indices(view.indices.data, static_cast<size_t>(c.rows) * 3 * 4),
          others(csr ? view.indptr.data : view.count.data,
                 static_cast<size_t>(c.rows + (csr ? 1 : 0)) * (csr ? dtype_bytes(view.indptr.dtype) : 4));
      view.indices.data = indices.data();
      (csr ? view.indptr : view.count).data = others.data();
      EXPECT_EQ(index_of(t.problem, plan, 64, &error), want);
      EXPECT_EQ(error, "");
    }
}

}  // namespace
}  // namespace tamis
