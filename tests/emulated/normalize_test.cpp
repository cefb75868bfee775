// The device's way to an index set, followed on the host: the same blocks, words, places and counts as the
// host's own way. Runs where there is no device; what only a device can show (races, memory order) is
// tests/cuda's.
#include <gtest/gtest.h>

#include "cuda/draw.h"
#include "emulated/follow.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

TEST(EmulatedNormalize, GivesTheIndexSetOfTheHost) {
  int64_t plain = 0, many = 0, lists = 0, all = 0, own = 0;
  for (int64_t number = first_problem(); number < first_problem() + 6 * problems(); ++number) {
    Dice d(number);
    const TestProblem t = draw_problem(d, false);
    const cuda::StepOptions o = draw_options(d);
    const Problem& p = t.problem;
    if (p.candidates.form == CandidateForm::kAll) continue;  // no list
    SCOPED_TRACE(::testing::Message() << "TAMIS_CUDA_FIRST=" << number);
    const Result<cuda::StepPlan> plan = cuda::plan_step(p, o);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const Emulated e(p, *plan);
    expect_like_host(e, p);
    if (HasFailure()) return;
    if (!e.verdict().ok()) continue;
    plain += e.plain && p.candidates.query_block == 1;
    many += e.plain && p.candidates.query_block > 1;
    lists += e.index.lists > 1;
    all += plan->plan.path == Path::kDense;
    own += plan->places.an_entry > 0;
  }
  // The instances that matter were all met.
  EXPECT_GT(plain, 0);
  EXPECT_GT(many, 0);
  EXPECT_GT(lists, 0);
  EXPECT_GT(all, 0);
  EXPECT_GT(own, 0);
}

// Offsets and counts are judged also where the list of all rows is empty and has no memory.
TEST(EmulatedNormalize, OffsetsOfNoEntries) {
  const auto made = [](const TensorView& indices) {
    TestProblem t(small_spec(64, {40, 20}, {1, 1}));
    t.fixed({{0}, {0}});
    t.problem.candidates.indices = indices;
    return t;
  };
  for (const bool bad : {false, true}) {
    const std::vector<int32_t> counts{0, bad ? 1 : 0}, indptr{0, bad ? 5 : 0, 0};
    TestProblem fixed = made(dense_view(nullptr, DType::kI32, {2, 0})),
                csr = made(dense_view(nullptr, DType::kI32, {0}));
    fixed.problem.candidates.count = dense_view(counts.data(), DType::kI32, {2});
    csr.problem.candidates.form = CandidateForm::kCsr;
    csr.problem.candidates.indptr = dense_view(indptr.data(), DType::kI32, {3});
    for (const TestProblem* t : {&fixed, &csr}) {
      const Emulated e(t->problem, *cuda::plan_step(t->problem));
      EXPECT_STREQ(code_name(e.verdict().code()), bad ? "invalid_argument" : "ok");
      expect_like_host(e, t->problem);
    }
  }
}

// Lists of one bundle may hold more entries than 32 bits count.
TEST(EmulatedNormalize, CountsOfMoreEntriesThanThirtyTwoBitsHold) {
  const int64_t most = INT32_MAX;
  index::DeviceCounts c{};
  c.raw = most, c.padding = 5, c.invalid = 1, c.duplicates = 2, c.gaps = 3, c.touched = 4;
  const index::DeviceCounts few = index::complete(c);
  EXPECT_EQ(few.raw, most);
  EXPECT_EQ(few.unique, most - 8);
  EXPECT_EQ(few.padding, 5);
  EXPECT_EQ(few.gaps, 2);
  c.raw = most + 1, c.padding = -7;
  const index::DeviceCounts many = index::complete(c);
  EXPECT_EQ(many.raw, most + 1);
  for (const int32_t n : {many.padding, many.invalid, many.duplicates, many.unique, many.future})
    EXPECT_EQ(n, most);
  EXPECT_EQ(many.touched, 4);
}

// As many entries are staged as there is room for.
TEST(EmulatedNormalize, WithFewEntriesStaged) {
  int64_t fewer = 0;
  for (int64_t number = first_problem(); number < first_problem() + problems(); ++number) {
    Dice d(number);
    const TestProblem t = draw_problem(d, false);
    const cuda::StepOptions o = draw_options(d);
    if (t.problem.candidates.form == CandidateForm::kAll) continue;
    SCOPED_TRACE(::testing::Message() << "TAMIS_CUDA_FIRST=" << number);
    const Result<cuda::StepPlan> plan = cuda::plan_step(t.problem, o);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    for (const int64_t staged : {0, 1, 7}) {
      const Emulated e(t.problem, *plan, true, staged);
      fewer += cuda::shared_of(*plan, t.problem.candidates).staged > staged;
      expect_like_host(e, t.problem);
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(fewer, 0);
}

TEST(EmulatedNormalize, WithinTheRoomThereIs) {
  const index::NormalizeShared all{.bytes = 1000, .lists = false, .staged = 100};
  for (const auto& [room, staged] :
       {std::pair{1000, 100}, {2000, 100}, {999, 99}, {996, 99}, {601, 0}, {10, 0}}) {
    const index::NormalizeShared s = index::within(all, room);
    EXPECT_EQ(s.staged, staged) << room;
    EXPECT_EQ(s.bytes, 600 + 4 * staged);
  }
}

// Positions that are given and follow each other, below 0, past the end, or all but one of them: together the
// windows are one, or are not.
TEST(EmulatedNormalize, WindowsOfManyQueries) {
  for (const int32_t first : {-30, -5, 0, 40, 90, 99, 100, 130})
    for (const int32_t jump : {0, 1, 50, -20})
      for (const int64_t window : {0, 1, 7, 300})
        for (const bool causal : {false, true}) {
          Spec s{.kv_len = {100},
                 .q_len = {20},
                 .q_heads = 2,
                 .kv_heads = 2,
                 .q = q_noise(1),
                 .k = kv_noise(2),
                 .v = kv_noise(3)};
          s.dtype = DType::kBF16;
          s.head_dim = s.v_head_dim = 64;
          TestProblem t(s);
          t.problem.candidates.unit = 8;
          t.problem.candidates.query_block = 8;
          t.problem.candidates.index_heads = 2;
          t.csr({{0, 5}, {2}, {}, {12}, {1, 11, 3}, {4}});
          t.problem.mask = {.causal = causal, .window = window, .sink = 3};
          std::vector<int32_t> positions;
          for (int32_t q = 0; q < 20; ++q) positions.push_back(first + q + (q > 11 ? jump : 0));
          t.q_pos(positions);
          SCOPED_TRACE(::testing::Message()
                       << "from " << first << ", jump " << jump << ", window " << window);
          const Result<cuda::StepPlan> plan = cuda::plan_step(t.problem, {.block = 16});
          ASSERT_TRUE(plan.ok()) << plan.status().message();
          expect_like_host(Emulated(t.problem, *plan), t.problem);
          if (HasFailure()) return;
        }
}

// CTAs are small where bundles are many and their lists short.
TEST(NormalizeThreads, FewForManyShortLists) {
  index::NormalizeArgs a{};
  a.requests = {.cu_q = nullptr,
                .kv_len = nullptr,
                .q_pos = nullptr,
                .cu_kv = nullptr,
                .requests = 1,
                .total_q = 1 << 15,
                .kv_rows = 1 << 15,
                .table_tokens = 0,
                .max_kv_len = 1 << 15};
  a.candidates.query_block = 128;
  a.candidates.unit = 64;
  a.candidates.rows = 2048;
  a.candidates.width = 32;
  a.out.bundles = 2048;
  a.out.lists = 1;
  a.out.capacity = 32;
  a.block = 64;
  const index::NormalizeShared shared{.bytes = 4096, .lists = true, .staged = 32};
  EXPECT_EQ(index::normalize_threads(a, shared), 32);
  a.candidates.width = a.out.capacity = 400;
  EXPECT_EQ(index::normalize_threads(a, shared), 128);
  a.candidates.width = a.out.capacity = 4000;
  EXPECT_EQ(index::normalize_threads(a, shared), 256);
  a.candidates.width = a.out.capacity = 32;
  a.requests.requests = 1000;
  EXPECT_EQ(index::normalize_threads(a, shared), 128);
  a.requests.requests = 1;
  a.out.bundles = 100;
  EXPECT_EQ(index::normalize_threads(a, shared), 256);
  // Decode, where 512 bundles are all on the device at once.
  a.candidates.query_block = 1;
  a.out.bundles = 512;
  EXPECT_EQ(index::normalize_threads(a, shared), 256);
  a.out.bundles = 8;
  a.staged = 2048;
  EXPECT_EQ(index::normalize_threads(a, shared), 1024);
}

}  // namespace
}  // namespace tamis
