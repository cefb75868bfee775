// Short rings, which devices of less shared memory take, on whatever device there is: one kernel for every
// kind of list, one stage a warp at large head sizes, and parts that are joined in rounds.
#include <gtest/gtest.h>

#include "cuda/draw.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

class CudaRing : public OnDevice {};

TEST_F(CudaRing, TheCpuAgrees) {
  Context context(0);
  for (int64_t number = first_problem(); number < first_problem() + problems(); ++number) {
    SCOPED_TRACE(::testing::Message() << "TAMIS_CUDA_FIRST=" << number);
    Dice d(number + 5'000'000);  // others than CudaRandom's
    TestProblem t = draw_problem(d, true);
    const Result<reference::Sets> sets = reference::build_sets(t.problem);
    ASSERT_TRUE(sets.ok()) << sets.status().message();
    t.poison_outside(*sets, d.of({kNaN, kInf, -kInf, 6e4}));
    Buffers keep;
    const Problem p =
        arranged(t.problem, d.of({Strides::kDense, Strides::kGaps, Strides::kOneTensor}), &keep);
    const Wanted want = wanted_by_cpu(p, context);
    const DeviceProblem device(p);
    for (const cuda::Load load : {cuda::Load::kTokens, cuda::Load::kBlocks}) {
      if (load == cuda::Load::kBlocks && !blocks_must_load(p)) continue;
      cuda::StepOptions o = draw_options(d);
      if (load == cuda::Load::kBlocks) o.block = 16;
      o.load = load;
      o.ring = cuda::Ring::kShort;
      SCOPED_TRACE(::testing::Message() << cuda::load_name(load) << ", splits " << o.plan.splits);
      const std::unique_ptr<DeviceStep> step = planned(p, o);
      ASSERT_EQ(complaint(run_step(*step, device), want.answer, want.tolerance), "");
    }
  }
}

// Every padded head size, one and two tiles of columns, one list and a list a head, both loads, both dtypes.
TEST_F(CudaRing, EveryKernel) {
  for (const DType dtype : {DType::kBF16, DType::kF16})
    for (const int64_t dim : {64, 80, 128, 136, 256})
      for (const int64_t group : {1, 4, 12})
        for (const bool many : {false, true}) {
          TestProblem t({.kv_len = {507, 0, 33, 1000},
                         .q_len = {1, 1, 2, 1},
                         .q_heads = 2 * group,
                         .kv_heads = 2,
                         .head_dim = dim,
                         .v_head_dim = dim == 256 ? 192 : dim,
                         .dtype = dtype,
                         .page_size = 16,
                         .q = q_noise(4),
                         .k = kv_noise(5),
                         .v = kv_noise(6)});
          t.problem.candidates.index_heads = many ? 2 * group : 1;
          Rows rows;
          Dice d(dim + group);
          for (const int32_t length : {507, 0, 33, 33, 1000})
            for (int64_t h = 0; h < t.problem.candidates.index_heads; ++h) {
              rows.emplace_back(length / 3);
              for (int32_t& e : rows.back()) e = d.i32(0, length - 1);
            }
          t.csr(rows);
          const Wanted want = wanted(t.problem);
          for (const cuda::Load load : {cuda::Load::kTokens, cuda::Load::kBlocks})
            for (const int32_t splits : {0, 1, 3}) {
              cuda::StepOptions o{.load = load, .ring = cuda::Ring::kShort};
              o.plan.splits = splits;
              const DeviceRan r = run_on_device(t.problem, o);
              EXPECT_EQ(complaint(r, want.answer, want.tolerance), "")
                  << dtype_name(dtype) << ", head size " << dim << ", group " << group
                  << (many ? ", many lists, " : ", one list, ") << cuda::load_name(load) << ", splits "
                  << splits;
            }
        }
}

// Parts of a row are joined in rounds of as many as the rings hold: 30 or 31 where these are short, from 45
// on where not. Scores rise or fall along the row, so that rounds rescale or vanish.
TEST_F(CudaRing, RoundsOfParts) {
  for (const int64_t dim : {64, 128, 256})
    for (const double slope : {0.0, 0.01, -0.01}) {
      TestProblem t({.kv_len = {128 * 16, 5},
                     .q_heads = 8,
                     .head_dim = dim,
                     .v_head_dim = dim,
                     .dtype = DType::kBF16,
                     .page_size = 16,
                     .q = [](auto...) { return 1.0; },
                     .k =
                         [slope](int64_t b, int64_t at, int64_t h, int64_t e) {
                           return noise(2, b, at, h, e) / 16 + slope * static_cast<double>(at) / 16;
                         },
                     .v = kv_noise(3)});
      t.all();
      const Wanted want = wanted(t.problem);
      for (const cuda::Ring ring : {cuda::Ring::kShort, cuda::Ring::kAuto})
        for (const int32_t splits : {29, 30, 31, 32, 44, 45, 46, 60, 61, 62, 63, 64, 93, 128}) {
          cuda::StepOptions o{.block = 16, .ring = ring};
          o.plan.splits = splits;
          const DeviceRan r = run_on_device(t.problem, o);
          EXPECT_EQ(complaint(r, want.answer, want.tolerance), "")
              << "head size " << dim << ", slope " << slope << ", splits " << splits;
          EXPECT_EQ(r.stats.most_parts, splits);
        }
    }
}

// A kernel that takes every row for one of many sums rows again where a V is not finite, also where all share
// a list: the selected NaN shows in its own columns of V, in every row, and in no other.
TEST_F(CudaRing, ANaNOfOneListStaysInItsColumn) {
  for (const double poison : {kNaN, kInf, -kInf})
    for (const cuda::Load load : {cuda::Load::kTokens, cuda::Load::kBlocks})
      for (const int32_t splits : {1, 3}) {
        const int64_t dim = 64, heads = 4;
        TestProblem t({.kv_len = {200},
                       .q_heads = heads,
                       .head_dim = dim,
                       .v_head_dim = dim,
                       .dtype = DType::kF16,
                       .page_size = 16,
                       .q = q_noise(1),
                       .k = kv_noise(2),
                       .v = [poison](int64_t, int64_t at, int64_t h, int64_t e) {
                         return at == 100 && e == 7 ? poison : noise(3, at, h, e);
                       }});
        t.csr({{90, 100, 7, 199, 16, 17}});
        cuda::StepOptions o{.load = load, .ring = cuda::Ring::kShort};
        o.plan.splits = splits;
        const DeviceRan r = run_on_device(t.problem, o);
        ASSERT_TRUE(r.status.ok()) << r.status.message();
        for (size_t i = 0; i < r.out.size(); ++i)
          ASSERT_EQ(std::isfinite(r.out[i]), i % dim != 7) << i << ", " << cuda::load_name(load);
      }
}

}  // namespace
}  // namespace tamis
