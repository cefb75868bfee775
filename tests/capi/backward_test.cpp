// Gradients through C: bit for bit what C++ computes; what is refused; what becomes of plans.
#include <gtest/gtest.h>
#include <tamis/tamis_c_backward.h>

#include <cstddef>
#include <cstring>

#include "capi/c_problem.h"
#include "tamis/backward.h"

namespace tamis::testing {
namespace {

TestProblem trained_problem() {
  TestProblem t = decode_problem();
  t.d_out(q_noise(4)).d_lse([](int64_t i, int64_t h) { return noise(5, i, h, 0); });
  return t;
}

// The arrays of a backward, poisoned, and everything that points to them.
struct Arrays {
  explicit Arrays(const Problem& p, DType dtype = DType::kF32) {
    const Shape s = *describe(p);
    d_q = make(p.query.q, s.head_dim, dtype, &q);
    d_k = make(p.cache.k, s.head_dim, dtype, &k);
    d_v = make(p.cache.v, s.v_head_dim, dtype, &v);
    gradients = {sizeof gradients, &d_q, &d_k, &d_v};
  }
  Arrays(const Arrays&) = delete;

  bool untouched() const {
    for (const auto* bytes : {&q, &k, &v})
      for (const unsigned char x : *bytes)
        if (x != 0xFF) return false;
    return true;
  }

  std::vector<unsigned char> q, k, v;
  tamis_tensor d_q, d_k, d_v;
  tamis_input_gradients gradients;

 private:
  static tamis_tensor make(const TensorView& like, int64_t dim, DType dtype,
                           std::vector<unsigned char>* bytes) {
    std::vector<int64_t> shape(like.shape.begin(), like.shape.begin() + like.rank);
    shape.back() = dim;
    int64_t size = dtype_bytes(dtype);
    for (const int64_t n : shape) size *= n;
    bytes->assign(static_cast<size_t>(size), 0xFF);
    return tamis_dense(bytes->data(), number_of(dtype), like.rank, shape.data());
  }
};

MutableTensorView view_of(const tamis_tensor& t, DType dtype) {
  MutableTensorView v;
  v.data = t.data;
  v.dtype = dtype;
  v.rank = t.rank;
  for (int axis = 0; axis < t.rank; ++axis) v.shape[axis] = t.shape[axis], v.stride[axis] = t.stride[axis];
  return v;
}

// A planned backward in C, with the results of its forward.
struct Ready {
  explicit Ready(TestProblem&& problem, DType dtype = DType::kF32)
      : t(std::move(problem)),
        c(t.problem),
        shape(*describe(t.problem)),
        results(shape.total_q, shape.q_heads, shape.v_head_dim),
        arrays(t.problem, dtype) {
    Error error;
    EXPECT_EQ(tamis_forward(&c.problem, nullptr, &results.output, h.context, nullptr, error), TAMIS_OK)
        << error.text;
    EXPECT_EQ(tamis_normalize(&c.problem, nullptr, h.index, error), TAMIS_OK) << error.text;
    EXPECT_EQ(tamis_backward_plan_create(&plan, error), TAMIS_OK);
    tamis_backward_options_init(&options);
    make_plan();
  }
  ~Ready() { tamis_backward_plan_destroy(plan); }
  Ready(const Ready&) = delete;

  void make_plan() {
    Error error;
    ASSERT_EQ(tamis_plan_backward(&c.problem, h.index, &options, plan, error), TAMIS_OK) << error.text;
    int64_t bytes = -1;
    ASSERT_EQ(tamis_backward_workspace_bytes(plan, &arrays.gradients, &bytes, error), TAMIS_OK) << error.text;
    workspace.assign(static_cast<size_t>(bytes), 0xFF);
    step = {sizeof step,         &c.problem,          plan,
            &results.lse_tensor, &results.out_tensor, &arrays.gradients,
            workspace.data(),    workspace.size()};
  }
  int32_t run(tamis_error* error) { return tamis_run_backward(&step, h.context, &counters, error); }

  TestProblem t;
  CProblem c;
  Handles h;
  Shape shape;
  Results results;
  Arrays arrays;
  tamis_backward_plan* plan = nullptr;
  tamis_backward_options options;
  tamis_backward_counters counters = sized<tamis_backward_counters>();
  std::vector<unsigned char> workspace;
  tamis_backward_step step{};
};

TEST(CBackward, IsTheOneOfCpp) {
  const auto same = [](TestProblem&& problem, DType dtype, bool with_out) {
    Ready r(std::move(problem), dtype);
    Error error;
    if (!with_out) r.step.out = nullptr;
    ASSERT_EQ(r.run(error), TAMIS_OK) << error.text;
    const Arrays want(r.t.problem, dtype);
    const IndexSet index = std::move(*normalize(r.t.problem));
    Context context(1);
    SavedForward saved{.lse =
                           dense_view(r.results.lse.data(), DType::kF32, {r.shape.total_q, r.shape.q_heads})};
    if (with_out)
      saved.out = dense_view(r.results.out.data(), DType::kF32,
                             {r.shape.total_q, r.shape.q_heads, r.shape.v_head_dim});
    BackwardReport report;
    const Status status = backward(
        r.t.problem, index, saved, {},
        {view_of(want.d_q, dtype), view_of(want.d_k, dtype), view_of(want.d_v, dtype)}, context, &report);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(r.arrays.q, want.q);
    EXPECT_EQ(r.arrays.k, want.k);
    EXPECT_EQ(r.arrays.v, want.v);
    EXPECT_FALSE(want.untouched());
    EXPECT_EQ(r.workspace.size(), static_cast<size_t>(report.workspace_bytes));
    EXPECT_EQ(r.counters.tasks, report.counters.tasks);
    EXPECT_EQ(r.counters.slabs, report.counters.slabs);
    EXPECT_EQ(r.counters.tiles, report.counters.tiles);
    EXPECT_EQ(r.counters.runs, report.counters.runs);
    EXPECT_EQ(r.counters.owners, report.counters.owners);
    EXPECT_GT(r.counters.runs, r.counters.tiles);
  };
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16})
    for (const bool with_out : {true, false}) same(trained_problem(), dtype, with_out);
  TestProblem dropped = trained_problem();
  dropped.problem.dropout = {0.5, 0x0123456789ABCDEF};
  same(std::move(dropped), DType::kF32, true);
  TestProblem codes = trained_problem();
  codes.quantize_k(Format::kInt4, ScaleKind::kPageChannel).quantize_v(Format::kFp8E4M3, ScaleKind::kToken);
  same(std::move(codes), DType::kF32, false);
}

TEST(CBackward, OptionsArrive) {
  Ready r(trained_problem());
  Error error;
  EXPECT_EQ(r.options.slab_bytes, BackwardOptions{}.slab_bytes);
  EXPECT_EQ(r.options.bundle, nullptr);
  ASSERT_EQ(r.run(error), TAMIS_OK);
  const int64_t slabs = r.counters.slabs, tasks = r.counters.tasks;
  r.options.slab_bytes = 1;
  r.make_plan();
  ASSERT_EQ(r.run(error), TAMIS_OK) << error.text;
  EXPECT_GT(r.counters.slabs, slabs);
  EXPECT_EQ(r.counters.slabs, r.counters.tasks);
  tamis_bundle_options bundle;
  tamis_bundle_options_init(&bundle);
  bundle.policy = TAMIS_BUNDLE_ROWS;
  r.options.bundle = &bundle;
  r.make_plan();
  ASSERT_EQ(r.run(error), TAMIS_OK) << error.text;
  EXPECT_EQ(r.counters.tasks, 5) << "a task for each list but the empty one";
  EXPECT_LE(tasks, 5);
  const auto refused = [&](const char* words) {
    EXPECT_EQ(tamis_plan_backward(&r.c.problem, r.h.index, &r.options, r.plan, error),
              TAMIS_INVALID_ARGUMENT);
    EXPECT_TRUE(says(error, words));
  };
  bundle.policy = 9;
  refused("9");
  r.options.bundle = nullptr;
  r.options.slab_bytes = 0;
  refused("slab_bytes");
  EXPECT_EQ(tamis_plan_backward(&r.c.problem, r.h.index, nullptr, r.plan, error), TAMIS_OK) << error.text;
}

TEST(CBackward, PlansAreEmptyUntilMadeAndAfterAFailure) {
  Ready r(trained_problem());
  Error error;
  tamis_backward_plan* plan = nullptr;
  ASSERT_EQ(tamis_backward_plan_create(&plan, error), TAMIS_OK);
  const auto empty = [&](const tamis_backward_plan* which) {
    int64_t bytes;
    EXPECT_EQ(tamis_backward_workspace_bytes(which, &r.arrays.gradients, &bytes, error),
              TAMIS_INVALID_ARGUMENT);
    EXPECT_TRUE(says(error, "plan: is empty"));
    r.step.plan = which;
    EXPECT_EQ(r.run(error), TAMIS_INVALID_ARGUMENT);
    EXPECT_TRUE(says(error, "plan: is empty"));
  };
  empty(plan);
  r.options.slab_bytes = -5;
  EXPECT_EQ(tamis_plan_backward(&r.c.problem, r.h.index, &r.options, r.plan, error), TAMIS_INVALID_ARGUMENT);
  empty(r.plan);
  EXPECT_TRUE(r.arrays.untouched());
  r.options.slab_bytes = 1000;
  r.make_plan();
  EXPECT_EQ(r.run(error), TAMIS_OK) << error.text;
  tamis_backward_plan_destroy(plan);
  tamis_backward_plan_destroy(nullptr);
}

// A plan points into its index set.
TEST(CBackward, PlansOutliveTheirIndexSetButNotItsContent) {
  Ready r(trained_problem());
  Error error;
  ASSERT_EQ(tamis_normalize(&r.c.problem, nullptr, r.h.index, error), TAMIS_OK);  // the same again
  EXPECT_EQ(r.run(error), TAMIS_STALE_PLAN);
  EXPECT_TRUE(says(error, "plan"));
  int64_t bytes;
  EXPECT_EQ(tamis_backward_workspace_bytes(r.plan, &r.arrays.gradients, &bytes, error), TAMIS_STALE_PLAN);
  EXPECT_TRUE(r.arrays.untouched());
  r.make_plan();
  tamis_index_set_destroy(r.h.index);
  r.h.index = nullptr;
  EXPECT_EQ(r.run(error), TAMIS_OK) << error.text;
}

TEST(CBackward, OfAnotherStepIsStale) {
  Ready r(trained_problem());
  Error error;
  r.t.kv_len()[0] = 69;
  EXPECT_EQ(r.run(error), TAMIS_STALE_PLAN);
  EXPECT_TRUE(r.arrays.untouched());
  EXPECT_EQ(tamis_plan_backward(&r.c.problem, r.h.index, nullptr, r.plan, error), TAMIS_STALE_PLAN);
  EXPECT_TRUE(says(error, "index"));
}

TEST(CBackward, AWorkspaceOneByteTooSmall) {
  Ready r(trained_problem(), DType::kBF16);
  Error error;
  --r.step.workspace_bytes;
  EXPECT_EQ(r.run(error), TAMIS_WORKSPACE_TOO_SMALL);
  EXPECT_EQ(error.c.limit, static_cast<int64_t>(r.workspace.size()));
  EXPECT_TRUE(r.arrays.untouched());
  for (const unsigned char x : r.workspace) ASSERT_EQ(x, 0xFF);
}

TEST(CBackward, WhatIsMissing) {
  Ready r(trained_problem());
  Error error;
  const auto refused = [&](int32_t code, const char* words) {
    EXPECT_EQ(code, TAMIS_INVALID_ARGUMENT) << words;
    EXPECT_TRUE(says(error, words));
    EXPECT_TRUE(r.arrays.untouched()) << words;
  };
  const auto without = [&](auto member, const char* words) {
    const tamis_backward_step whole = r.step;
    r.step.*member = nullptr;
    refused(r.run(error), words);
    r.step = whole;
  };
  without(&tamis_backward_step::problem, "problem: is NULL");
  without(&tamis_backward_step::plan, "plan: is NULL");
  without(&tamis_backward_step::lse, "lse: tensor is missing");
  without(&tamis_backward_step::gradients, "gradients: is NULL");
  without(&tamis_backward_step::workspace, "workspace: is NULL");
  refused(tamis_run_backward(nullptr, r.h.context, nullptr, error), "step: is NULL");
  refused(tamis_run_backward(&r.step, nullptr, nullptr, error), "context: is NULL");
  refused(tamis_backward_plan_create(nullptr, error), "plan: is NULL");
  int64_t bytes = -7;
  refused(tamis_backward_workspace_bytes(nullptr, &r.arrays.gradients, &bytes, error), "plan: is NULL");
  refused(tamis_backward_workspace_bytes(r.plan, nullptr, &bytes, error), "gradients: is NULL");
  refused(tamis_backward_workspace_bytes(r.plan, &r.arrays.gradients, nullptr, error), "bytes: is NULL");
  const std::pair<const tamis_tensor * tamis_input_gradients::*, const char*> parts[] = {
      {&tamis_input_gradients::d_q, "d_q: tensor is missing"},
      {&tamis_input_gradients::d_k, "d_k: tensor is missing"},
      {&tamis_input_gradients::d_v, "d_v: tensor is missing"}};
  for (const auto& [part, words] : parts) {
    const tamis_input_gradients whole = r.arrays.gradients;
    r.arrays.gradients.*part = nullptr;
    refused(r.run(error), words);
    refused(tamis_backward_workspace_bytes(r.plan, &r.arrays.gradients, &bytes, error), words);
    r.arrays.gradients = whole;
  }
  EXPECT_EQ(bytes, -7);
  for (tamis_tensor* t :
       {&r.arrays.d_q, &r.arrays.d_k, &r.arrays.d_v, &r.results.lse_tensor, &r.results.out_tensor}) {
    const tamis_tensor whole = *t;
    t->data = nullptr;
    refused(r.run(error), "data is NULL");
    *t = whole;
    t->shape[0] += 1;
    EXPECT_EQ(r.run(error), TAMIS_INVALID_ARGUMENT);
    *t = whole;
  }
  // Sizing looks at no memory.
  for (tamis_tensor* t : {&r.arrays.d_q, &r.arrays.d_k, &r.arrays.d_v}) t->data = nullptr;
  EXPECT_EQ(tamis_backward_workspace_bytes(r.plan, &r.arrays.gradients, &bytes, error), TAMIS_OK)
      << error.text;
  EXPECT_EQ(bytes, static_cast<int64_t>(r.workspace.size()));
  Ready other(trained_problem());
  other.c.problem.gradients.d_out = nullptr;
  EXPECT_EQ(other.run(error), TAMIS_INVALID_ARGUMENT);
  EXPECT_TRUE(says(error, "d_out: tensor is missing"));
  refused(tamis_plan_backward(nullptr, r.h.index, nullptr, r.plan, error), "problem: is NULL");
  refused(tamis_plan_backward(&r.c.problem, nullptr, nullptr, r.plan, error), "index: is NULL");
  refused(tamis_plan_backward(&r.c.problem, r.h.index, nullptr, nullptr, error), "plan: is NULL");
}

TEST(CBackward, SizesOfItsStructs) {
  Ready r(trained_problem());
  Error error;
  const auto run = [&] { return r.run(error); };
  wrong_sizes(error, r.step.struct_size, "step", run);
  wrong_sizes(error, r.arrays.gradients.struct_size, "gradients", run);
  wrong_sizes(error, r.counters.struct_size, "counters", run);
  wrong_sizes(error, r.c.problem.struct_size, "problem", run);
  wrong_sizes(error, r.results.lse_tensor.struct_size, "lse", run);
  wrong_sizes(error, r.results.out_tensor.struct_size, "out", run);
  wrong_sizes(error, r.arrays.d_v.struct_size, "d_v", run);
  EXPECT_TRUE(r.arrays.untouched());
  r.counters.struct_size = offsetof(tamis_backward_counters, tiles);
  r.counters.tiles = -99;
  ASSERT_EQ(r.run(error), TAMIS_OK) << error.text;
  EXPECT_GT(r.counters.slabs, 0);
  EXPECT_EQ(r.counters.tiles, -99);
  ASSERT_EQ(tamis_run_backward(&r.step, r.h.context, nullptr, error), TAMIS_OK) << error.text;
  wrong_sizes(error, r.options.struct_size, "options",
              [&] { return tamis_plan_backward(&r.c.problem, r.h.index, &r.options, r.plan, error); });
  // Of an older header: what lies behind is not looked at.
  r.options.struct_size = offsetof(tamis_backward_options, slab_bytes);
  r.options.slab_bytes = -5;
  EXPECT_EQ(tamis_plan_backward(&r.c.problem, r.h.index, &r.options, r.plan, error), TAMIS_OK) << error.text;
  std::memset(&r.options, 0x5A, sizeof r.options);
  tamis_backward_options_init_sized(&r.options, offsetof(tamis_backward_options, slab_bytes));
  EXPECT_EQ(r.options.struct_size, offsetof(tamis_backward_options, slab_bytes));
  EXPECT_EQ(r.options.slab_bytes, 0x5A5A5A5A5A5A5A5A);
}

}  // namespace
}  // namespace tamis::testing
