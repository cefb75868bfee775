// Random problems over the grid of support, run in random ways, against the CPU backend and, for some, the
// float64 reference. Every slot that no set uses is NaN, and so are the gaps between strides.
#include <gtest/gtest.h>

#include "cuda/draw.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

class CudaRandom : public OnDevice {};

TEST_F(CudaRandom, TheCpuAgrees) {
  Context context(0);
  for (int64_t number = first_problem(); number < first_problem() + problems(); ++number) {
    Dice d(number);
    TestProblem t = draw_problem(d, true);
    SCOPED_TRACE(::testing::Message() << "TAMIS_CUDA_FIRST=" << number);
    const Result<reference::Sets> sets = reference::build_sets(t.problem);
    ASSERT_TRUE(sets.ok()) << sets.status().message();
    t.poison_outside(*sets, d.of({kNaN, kInf, -kInf, 6e4}));
    Buffers keep;
    const Problem p =
        arranged(t.problem, d.of({Strides::kDense, Strides::kGaps, Strides::kOneTensor}), &keep);
    const Wanted want = number % 8 == 0 ? wanted(p) : wanted_by_cpu(p, context);
    const Result<Shape> shape = describe(p);
    const DeviceProblem device(p);
    for (const cuda::Load load : {cuda::Load::kTokens, cuda::Load::kBlocks, cuda::Load::kAuto}) {
      cuda::StepOptions o = draw_options(d);
      o.load = load;
      if (d.one_in(2)) o.density = d.of({0.01, 0.3, 1.0});
      const DType dtype = d.of({DType::kF32, DType::kF32, DType::kF16, DType::kBF16});
      const Placement how = d.of({Placement::kDense, Placement::kGaps});
      SCOPED_TRACE(::testing::Message()
                   << cuda::load_name(load) << ", block " << o.block << ", " << path_name(o.plan.path)
                   << ", splits " << o.plan.splits << (o.plan.batch_invariant ? ", invariant" : "")
                   << ", shares " << o.plan.shares << ", min_tiles " << o.plan.min_tiles);
      Result<cuda::StepPlan> plan = cuda::plan_step(p, o);
      if (!plan.ok() && load == cuda::Load::kBlocks && !blocks_must_load(p)) {
        EXPECT_EQ(plan.status().code(), Code::kUnsupported) << plan.status().message();
        continue;
      }
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      DeviceStep step(std::move(*plan));
      const DeviceRan r = run_step(step, device, dtype, how);
      ASSERT_EQ(complaint(r, want.answer, want.tolerance, dtype), "");
      ASSERT_EQ(static_cast<int64_t>(r.device.empty_rows),
                want.answer.sets.empty_rows * (shape->q_heads / shape->index_heads));
    }
  }
}

// Each number of the grid by itself, so that none depends on being drawn.
TEST_F(CudaRandom, EveryHeadSizeAndGroup) {
  for (const int64_t group : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 24})
    for (const int64_t dim : {8, 16, 32, 64, 72, 80, 96, 104, 128, 136, 192, 248, 256}) {
      if (group != 4 && dim % 64 != 0) continue;  // the axes, and all of it where kernels are native
      TestProblem t({.kv_len = {507, 33},
                     .q_len = {1, 2},
                     .q_heads = 2 * group,
                     .kv_heads = 2,
                     .head_dim = dim,
                     .v_head_dim = dim == 256 ? 128 : dim,
                     .dtype = group % 2 == 0 ? DType::kBF16 : DType::kF16,
                     .page_size = 16,
                     .q = q_noise(4),
                     .k = kv_noise(5),
                     .v = kv_noise(6)});
      t.all();
      const Wanted want = wanted(t.problem);
      for (const cuda::Load load : {cuda::Load::kTokens, cuda::Load::kBlocks}) {
        const DeviceRan r = run_on_device(t.problem, {.load = load});
        EXPECT_EQ(complaint(r, want.answer, want.tolerance), "")
            << "group " << group << ", head size " << dim << ", " << cuda::load_name(load);
      }
    }
}

// Strides that 16-byte loads cannot follow: right, or refused by name before anything runs.
TEST_F(CudaRandom, AwkwardStrides) {
  for (const Placement how :
       {Placement::kGaps, Placement::kSpread, Placement::kReversed, Placement::kInterleaved}) {
    TestProblem t({.kv_len = {130},
                   .q_heads = 4,
                   .kv_heads = 2,
                   .head_dim = 64,
                   .v_head_dim = 64,
                   .dtype = DType::kBF16,
                   .page_size = 16,
                   .placement = how,
                   .q = q_noise(4),
                   .k = kv_noise(5),
                   .v = kv_noise(6)});
    t.all();
    const DeviceRan r = run_on_device(t.problem);
    if (r.status.code() == Code::kUnsupported) {
      EXPECT_TRUE(says(r.status, "stride"));
      continue;
    }
    const Wanted want = wanted(t.problem);
    EXPECT_EQ(complaint(r, want.answer, want.tolerance), "") << static_cast<int>(how);
  }
}

// And head sizes that are no multiple of 8, or too large.
TEST_F(CudaRandom, OtherHeadSizesAreRefusedByName) {
  for (const int64_t dim : {1, 12, 65, 264, 512}) {
    TestProblem t({.kv_len = {30}, .head_dim = dim, .v_head_dim = dim, .dtype = DType::kBF16});
    t.all();
    const Status s = cuda::plan_step(t.problem).status();
    EXPECT_EQ(s.code(), Code::kUnsupported) << dim;
    EXPECT_TRUE(says(s, "head_dim")) << dim;
  }
}

}  // namespace
}  // namespace tamis
