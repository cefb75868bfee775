// Running out of memory, at every allocation there is: a code, never an exception, and handles that recover.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "capi/c_problem.h"
#include "tamis/device.h"
#include "tamis/tamis_c_backward.h"
#include "tamis/tamis_c_convert.h"
#include "tamis/tamis_c_step.h"

namespace {

// Allocations until one fails; negative: none does. This thread's alone, as are the calls below.
thread_local int64_t left = -1;

bool fails() {
  if (left < 0) return false;
  return left-- == 0;
}

}  // namespace

// GCC 13 pairs this delete with the library's new, not with the one above it.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"

// All forms that end in the one operator delete: sanitizers tell ours from theirs.
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return fails() ? nullptr : std::malloc(size ? size : 1);
}
void* operator new(size_t size) {
  if (void* memory = operator new(size, std::nothrow)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace tamis::testing {
namespace {

// Calls it with the first, second, ... allocation failing until it succeeds without reaching one that does.
template <class Call>
void out_of_memory(const char* name, Call call) {
  constexpr int64_t kMost = 10000;
  for (int64_t n = 0; n < kMost; ++n) {
    Error error;
    left = n;
    const int32_t code = call(error);
    const bool reached = left < 0;
    left = -1;
    if (code == TAMIS_OK) {
      EXPECT_STREQ(error.text, "");
      if (!reached) return;
      continue;  // done without: memory that was only a convenience
    }
    EXPECT_EQ(code, TAMIS_CAPACITY_EXCEEDED) << name << " " << n << ": " << error.text;
    EXPECT_TRUE(says(error, "memory")) << name << " " << n;
  }
  FAIL() << name << " never succeeded";
}

TEST(CMemory, EveryAllocationMayFail) {
  TestProblem t = decode_problem();
  const CProblem c(t.problem);
  Results results(3, 4, 8);
  Handles h;
  auto arrays = sized<tamis_index_arrays>();
  auto accounting = sized<tamis_accounting>();
  tamis_percentiles reuse;
  h.capacities.struct_size = sizeof h.capacities;
  tamis_context* context = nullptr;
  out_of_memory("context", [&](Error& e) { return tamis_context_create(1, "plain", &context, e); });
  tamis_index_set* index = nullptr;
  out_of_memory("create", [&](Error& e) { return tamis_index_set_create(&index, e); });
  tamis_index_set_destroy(index);
  out_of_memory("normalize", [&](Error& e) { return tamis_normalize(&c.problem, nullptr, h.index, e); });
  out_of_memory("reuse", [&](Error& e) { return tamis_index_reuse(h.index, &reuse, e); });
  out_of_memory("bundle", [&](Error& e) { return tamis_bundle(&c.problem, h.index, nullptr, h.bundles, e); });
  ASSERT_EQ(tamis_index_view(h.index, &arrays, nullptr), TAMIS_OK);
  out_of_memory("capacities",
                [&](Error& e) { return tamis_capacities_of(&c.problem, h.bundles, &h.capacities, e); });
  out_of_memory("plan", [&](Error& e) {
    return tamis_plan_make(&c.problem, &h.capacities, arrays.block, nullptr, h.plan, e);
  });
  out_of_memory("schedule", [&](Error& e) { return tamis_schedule_make(h.plan, h.bundles, h.schedule, e); });
  std::vector<float> workspace;
  const tamis_step step = h.step(c.problem, results.output, &workspace);
  out_of_memory("run", [&](Error& e) { return tamis_run(&step, context, nullptr, e); });
  out_of_memory("forward", [&](Error& e) {
    return tamis_forward(&c.problem, nullptr, &results.output, context, nullptr, e);
  });
  out_of_memory("reference",
                [&](Error& e) { return tamis_reference_forward(&c.problem, nullptr, 0, nullptr, 0, e); });
  out_of_memory("explain", [&](Error& e) { return tamis_explain(&c.problem, nullptr, &accounting, e); });
  tamis_context_destroy(context);
}

TEST(CMemory, EveryAllocationOfABackwardMayFail) {
  TestProblem t = decode_problem();
  t.d_out(q_noise(4));
  const CProblem c(t.problem);
  Results results(3, 4, 8);
  Handles h;
  ASSERT_EQ(tamis_forward(&c.problem, nullptr, &results.output, h.context, nullptr, nullptr), TAMIS_OK);
  ASSERT_EQ(tamis_normalize(&c.problem, nullptr, h.index, nullptr), TAMIS_OK);
  tamis_context* context = nullptr;  // one thread: an allocation of another would not be counted
  ASSERT_EQ(tamis_context_create(1, nullptr, &context, nullptr), TAMIS_OK);
  const TensorView &q = t.problem.query.q, &k = t.problem.cache.k, &v = t.problem.cache.v;
  std::vector<float> d_q(static_cast<size_t>(q.elements())), d_v(static_cast<size_t>(v.elements()));
  std::vector<uint16_t> d_k(static_cast<size_t>(k.elements()));
  const tamis_tensor q_tensor = tamis_dense(d_q.data(), TAMIS_F32, q.rank, q.shape.data()),
                     k_tensor = tamis_dense(d_k.data(), TAMIS_BF16, k.rank, k.shape.data()),
                     v_tensor = tamis_dense(d_v.data(), TAMIS_F32, v.rank, v.shape.data());
  const tamis_input_gradients gradients{sizeof gradients, &q_tensor, &k_tensor, &v_tensor};
  tamis_backward_plan* plan = nullptr;
  out_of_memory("create", [&](Error& e) { return tamis_backward_plan_create(&plan, e); });
  out_of_memory("plan", [&](Error& e) { return tamis_plan_backward(&c.problem, h.index, nullptr, plan, e); });
  int64_t bytes = 0;
  out_of_memory("size",
                [&](Error& e) { return tamis_backward_workspace_bytes(plan, &gradients, &bytes, e); });
  std::vector<std::byte> workspace(static_cast<size_t>(bytes));
  const tamis_backward_step step{sizeof step,         &c.problem,      plan,
                                 &results.lse_tensor, nullptr,         &gradients,
                                 workspace.data(),    workspace.size()};
  out_of_memory("run", [&](Error& e) { return tamis_run_backward(&step, context, nullptr, e); });
  tamis_backward_plan_destroy(plan);
  tamis_context_destroy(context);
}

TEST(CMemory, EveryAllocationOfAConversionMayFail) {
  TestProblem t = decode_problem();
  const CProblem c(t.problem);
  tamis_rows* rows = nullptr;
  tamis_tiers* tiers = nullptr;
  out_of_memory("create", [&](Error& e) { return tamis_rows_create(&rows, e); });
  out_of_memory("create", [&](Error& e) { return tamis_tiers_create(&tiers, e); });
  const tamis_candidates* from = &c.problem.candidates;
  out_of_memory("fixed", [&](Error& e) { return tamis_rows_to_fixed_width(from, -1, rows, e); });
  out_of_memory("csr", [&](Error& e) { return tamis_rows_to_csr(from, TAMIS_PADDING_KEEP, rows, e); });
  const int64_t edges[] = {2, 8};
  out_of_memory("tiers", [&](Error& e) { return tamis_tiers_make(from, edges, 2, tiers, e); });
  tamis_tier views[2];
  int64_t count = 0, used[2], allocated[2];
  ASSERT_EQ(tamis_tiers_view(tiers, views, 2, &count, nullptr), TAMIS_OK);
  out_of_memory("back",
                [&](Error& e) { return tamis_rows_from_tiers(views, 2, TAMIS_PADDING_DROP, from, rows, e); });
  out_of_memory("share", [&](Error& e) { return tamis_tiers_utilization(views, 2, used, allocated, e); });
  tamis_rows_destroy(rows);
  tamis_tiers_destroy(tiers);
}

TEST(CMemory, EveryAllocationOfAStepMayFail) {
  if (!built_with_cuda()) GTEST_SKIP() << "a build without CUDA";
  TestProblem t({.kv_len = {70}, .head_dim = 16, .v_head_dim = 16, .dtype = DType::kF16, .page_size = 24});
  t.csr({{0, 5, 69}});
  const CProblem c(t.problem);
  tamis_cuda_plan* plan = nullptr;
  auto info = sized<tamis_cuda_plan_summary>();
  out_of_memory("create", [&](Error& e) { return tamis_cuda_plan_create(&plan, e); });
  out_of_memory("plan", [&](Error& e) { return tamis_cuda_plan_make(&c.problem, nullptr, plan, e); });
  out_of_memory("info", [&](Error& e) { return tamis_cuda_plan_info(plan, &info, e); });
  EXPECT_STRNE(info.reason, "") << "a plan with a long string";
  tamis_cuda_plan_destroy(plan);
}

// Where there is no memory even for the message that says what is wrong.
TEST(CMemory, ARefusalWithoutMemoryForItsMessage) {
  TestProblem t = decode_problem();
  CProblem c(t.problem);
  c.problem.candidates.unit = 0;
  Handles h;
  for (int64_t n = 0; n < 40; ++n) {
    Error error;
    left = n;
    const int32_t code = tamis_normalize(&c.problem, nullptr, h.index, error);
    left = -1;
    EXPECT_TRUE(code == TAMIS_INVALID_ARGUMENT || code == TAMIS_CAPACITY_EXCEEDED) << code;
    EXPECT_EQ(error.c.code, code);
    EXPECT_STRNE(error.text, "");
  }
}

}  // namespace
}  // namespace tamis::testing
