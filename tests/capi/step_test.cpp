// The device step through C, as far as no device is needed: the plan is the one of C++, what the host can see
// is refused before any launch, and without a device every call says so. tests/cuda/c_step_test.cpp has the
// rest.
#include "tamis/tamis_c_step.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstring>

#include "capi/c_problem.h"
#include "tamis/cuda.h"
#include "tamis/device.h"

namespace tamis::testing {
namespace {

// What the device computes, under 300 queries of one request where `many`.
TestProblem step_problem(int64_t head_dim = 16, bool many = false, int64_t v_head_dim = 8) {
  TestProblem t({.kv_len = {400, 33, 5},
                 .q_len = {many ? 300 : 1, 1, 1},
                 .q_heads = 4,
                 .kv_heads = 2,
                 .head_dim = head_dim,
                 .v_head_dim = v_head_dim,
                 .dtype = DType::kF16,
                 .page_size = 16,
                 .q = q_noise(1),
                 .k = kv_noise(2),
                 .v = kv_noise(3)});
  if (many) {
    t.all();
    t.problem.candidates.query_block = 128;
    return t;
  }
  t.fixed({{0, 5, 64, 69}, {1, 2, 3, 40}, {32, 0, -1, -1}, {-1, -1, -1, -1}, {4, 1, 2, 3}, {0, -1, 2, 2}});
  t.problem.candidates.index_heads = 2;
  return t;
}

// A plan, and one of everything else a step takes: good, but that its memory is the host's.
struct Ready {
  explicit Ready(TestProblem&& problem = step_problem())
      : t(std::move(problem)), c(t.problem), results(t.problem.query.q.shape[0], 4, 8) {
    EXPECT_EQ(tamis_cuda_plan_create(&plan, nullptr), TAMIS_OK);
    tamis_cuda_plan_options_init(&options);
    if (built_with_cuda()) make_plan();
  }
  ~Ready() { tamis_cuda_plan_destroy(plan); }
  Ready(const Ready&) = delete;

  void make_plan() {
    Error error;
    ASSERT_EQ(tamis_cuda_plan_make(&c.problem, &options, plan, error), TAMIS_OK) << error.text;
    ASSERT_EQ(tamis_cuda_plan_info(plan, &info, error), TAMIS_OK) << error.text;
    ASSERT_EQ(tamis_cuda_plan_sizes(plan, &sizes, error), TAMIS_OK) << error.text;
    buffers = {sizeof buffers,
               place(&control, sizes.control),
               place(&index, sizes.index),
               place(&scratch, sizes.scratch),
               sizes.control,
               sizes.index,
               sizes.scratch};
  }

  // Every call that takes buffers.
  template <class F>
  void each(F expect) {
    Error e;
    expect("clear", tamis_cuda_clear(plan, &buffers, nullptr, e), e);
    expect("normalize", tamis_cuda_normalize(plan, &c.problem, &buffers, nullptr, e), e);
    expect("schedule", tamis_cuda_schedule(plan, &buffers, nullptr, e), e);
    expect("run", tamis_cuda_run(plan, &c.problem, &results.output, &buffers, nullptr, counters(), e), e);
    expect("step", tamis_cuda_step(plan, &c.problem, &results.output, &buffers, nullptr, counters(), e), e);
    expect("poll", tamis_cuda_poll(plan, &buffers, nullptr, &stats, e), e);
  }
  void each_refused(int32_t code, const std::string& words) {
    each([&](const char* call, int32_t got, Error& error) {
      EXPECT_EQ(got, code) << call << ": " << error.text;
      EXPECT_TRUE(says(error, words)) << call;
    });
  }
  int32_t run(tamis_error* e) {
    return tamis_cuda_run(plan, &c.problem, &results.output, &buffers, nullptr, counters(), e);
  }
  tamis_cuda_counters* counters() { return reinterpret_cast<tamis_cuda_counters*>(counts); }

  TestProblem t;
  CProblem c;
  Results results;
  tamis_cuda_plan* plan = nullptr;
  tamis_cuda_plan_options options;
  tamis_cuda_plan_summary info = sized<tamis_cuda_plan_summary>();
  tamis_cuda_sizes sizes = sized<tamis_cuda_sizes>();
  tamis_cuda_stats stats = sized<tamis_cuda_stats>();
  tamis_cuda_buffers buffers{};
  alignas(8) unsigned char counts[sizeof(tamis_cuda_counters) + 8] = {};

 private:
  static void* place(std::vector<unsigned char>* memory, int64_t bytes) {
    memory->assign(static_cast<size_t>(bytes) + 256, 0);
    void* p = memory->data();
    size_t room = memory->size();
    return std::align(256, static_cast<size_t>(bytes), p, room);
  }
  std::vector<unsigned char> control, index, scratch;
};

#define TAMIS_NEEDS_CUDA() \
  if (!built_with_cuda()) GTEST_SKIP() << "a build without CUDA"

TEST(CStep, ABuildWithoutCudaSaysSo) {
  if (built_with_cuda()) GTEST_SKIP() << "a build with CUDA";
  Ready r;
  Error error;
  EXPECT_EQ(tamis_cuda_plan_make(&r.c.problem, &r.options, r.plan, error), TAMIS_DEVICE_ERROR);
  EXPECT_TRUE(says(error, "no CUDA backend"));
  EXPECT_EQ(tamis_cuda_plan_sizes(r.plan, &r.sizes, error), TAMIS_INVALID_ARGUMENT);
  EXPECT_TRUE(says(error, "plan: is empty"));
}

TEST(CStep, ThePlanIsTheOneOfCpp) {
  TAMIS_NEEDS_CUDA();
  const auto same = [](TestProblem&& problem, auto change) {
    Ready r(std::move(problem));
    tamis_plan_options plan;
    tamis_plan_options_init(&plan);
    r.options.plan = &plan;
    cuda::StepOptions o;
    change(r.options, plan, o);
    r.make_plan();
    const Result<cuda::StepPlan> want = cuda::plan_step(r.t.problem, o);
    ASSERT_TRUE(want.ok()) << want.status().message();
    const cuda::StepPlan& w = *want;
    EXPECT_EQ(r.info.kernel, w.kernel);
    EXPECT_EQ(r.info.reason, w.plan.reason);
    EXPECT_STREQ(r.info.path_name, path_name(w.plan.path));
    EXPECT_STREQ(r.info.load_name, cuda::load_name(w.load));
    EXPECT_EQ(r.info.fingerprint, w.plan.fingerprint);
    EXPECT_EQ(r.info.path, static_cast<int32_t>(w.plan.path));
    EXPECT_EQ(r.info.block, w.plan.block);
    EXPECT_EQ(r.info.load, static_cast<int32_t>(w.load));
    EXPECT_EQ(r.info.ring, static_cast<int32_t>(w.ring));
    EXPECT_EQ(r.info.engine, static_cast<int32_t>(w.engine));
    EXPECT_EQ(r.info.columns, w.columns);
    EXPECT_EQ(r.info.lists, w.lists);
    EXPECT_EQ(r.info.bundles, w.bundles);
    EXPECT_EQ(r.info.groups, w.groups);
    EXPECT_EQ(r.info.tasks, w.tasks);
    EXPECT_EQ(r.info.parts, w.parts);
    EXPECT_EQ(r.info.column_tiles, w.column_tiles);
    EXPECT_EQ(r.info.row_entries, w.plan.capacities.row_entries);
    EXPECT_EQ(r.info.max_kv_len, w.max_kv_len);
    EXPECT_EQ(r.sizes.control, w.bytes.control);
    EXPECT_EQ(r.sizes.index, w.bytes.index);
    EXPECT_EQ(r.sizes.scratch, w.bytes.scratch);
  };
  using C = tamis_cuda_plan_options;
  using P = tamis_plan_options;
  using O = cuda::StepOptions;
  same(step_problem(), [](C&, P&, O&) {});
  same(step_problem(16, true), [](C&, P&, O&) {});
  same(step_problem(256, true), [](C&, P&, O&) {});
  same(step_problem(), [](C& c, P&, O& o) { c.block = o.block = 32; });
  same(step_problem(), [](C& c, P&, O& o) { c.block = o.block = 128; });
  same(step_problem(), [](C& c, P&, O& o) {
    c.load = TAMIS_CUDA_LOAD_BLOCKS;
    o.load = cuda::Load::kBlocks;
  });
  same(step_problem(), [](C& c, P&, O& o) {
    c.ring = TAMIS_CUDA_RING_SHORT;
    o.ring = cuda::Ring::kShort;
  });
  same(step_problem(64, true, 128), [](C& c, P&, O& o) {
    c.engine = TAMIS_CUDA_ENGINE_PREFILL;
    o.engine = cuda::Engine::kPrefill;
  });
  same(step_problem(), [](C& c, P&, O& o) { c.density = o.density = 0.9; });
  same(step_problem(), [](C& c, P&, O& o) { c.row_entries = o.row_entries = 2; });
  same(step_problem(), [](C& c, P&, O& o) { c.max_kv_len = o.max_kv_len = 70; });
  same(step_problem(), [](C&, P& p, O& o) { p.splits = o.plan.splits = 3; });
  same(step_problem(), [](C&, P& p, O& o) {
    p.path = TAMIS_PATH_DENSE;
    o.plan.path = Path::kDense;
  });
}

TEST(CStep, OptionsArrive) {
  TAMIS_NEEDS_CUDA();
  EXPECT_EQ(Ready().options.density, -1);
  Ready r;
  EXPECT_STREQ(r.info.kernel, "decode_sm80_f16");
  EXPECT_EQ(r.info.load, TAMIS_CUDA_LOAD_TOKENS) << "unit 1";
  EXPECT_EQ(r.info.path, TAMIS_PATH_DIRECT);
  EXPECT_EQ(r.info.engine, TAMIS_CUDA_ENGINE_DECODE);
  EXPECT_EQ(r.info.lists, 1);
  EXPECT_EQ(r.info.bundles, 6);
  EXPECT_EQ(r.info.max_kv_len, describe(r.t.problem)->max_pages * 16);
  const int64_t scratch = r.sizes.scratch;
  r.options.density = 0.9;
  r.options.row_entries = 3;
  r.options.max_kv_len = 70;
  r.options.ring = TAMIS_CUDA_RING_FULL;
  tamis_plan_options plan;
  tamis_plan_options_init(&plan);
  plan.splits = 100;
  r.options.plan = &plan;
  r.make_plan();
  EXPECT_EQ(r.info.load, TAMIS_CUDA_LOAD_BLOCKS);
  EXPECT_EQ(r.info.ring, TAMIS_CUDA_RING_FULL);
  EXPECT_EQ(r.info.row_entries, 3);
  EXPECT_EQ(r.info.max_kv_len, 70);
  EXPECT_EQ(r.info.tasks, 100 * r.info.groups);
  EXPECT_GT(r.sizes.scratch, scratch);
  Error error;
  const auto refused = [&](int32_t code, const char* words) {
    EXPECT_EQ(tamis_cuda_plan_make(&r.c.problem, &r.options, r.plan, error), code) << words;
    EXPECT_TRUE(says(error, words));
  };
  r.options.load = 3;
  refused(TAMIS_INVALID_ARGUMENT, "load: 3");
  r.options.load = TAMIS_CUDA_LOAD_AUTO;
  r.options.ring = 3;
  refused(TAMIS_INVALID_ARGUMENT, "ring: 3");
  r.options.ring = TAMIS_CUDA_RING_AUTO;
  r.options.engine = 3;
  refused(TAMIS_INVALID_ARGUMENT, "engine: 3");
  r.options.engine = TAMIS_CUDA_ENGINE_AUTO;
  for (const double density : {std::nan(""), 1.5}) {
    r.options.density = density;
    refused(TAMIS_INVALID_ARGUMENT, "density: ");
  }
  r.options.density = -1;
  r.options.block = 48;
  refused(TAMIS_UNSUPPORTED, "block: 48");
  r.options.block = 0;
  r.options.row_entries = -1;
  refused(TAMIS_INVALID_ARGUMENT, "row_entries");
  r.options.row_entries = 0;
  plan.path = 9;
  refused(TAMIS_INVALID_ARGUMENT, "path: 9");
  r.options.plan = nullptr;
  TestProblem wide = decode_problem();
  const CProblem f32(wide.problem);
  EXPECT_EQ(tamis_cuda_plan_make(&f32.problem, nullptr, r.plan, error), TAMIS_UNSUPPORTED);
  EXPECT_TRUE(says(error, "q: dtype F32"));
}

TEST(CStep, TheEngineArrives) {
  TAMIS_NEEDS_CUDA();
  Ready r(step_problem(64, false, 64));
  EXPECT_EQ(r.info.engine, TAMIS_CUDA_ENGINE_DECODE);
  EXPECT_EQ(r.info.load, TAMIS_CUDA_LOAD_TOKENS) << "unit 1";
  r.options.engine = TAMIS_CUDA_ENGINE_PREFILL;
  r.make_plan();
  EXPECT_STREQ(r.info.kernel, "prefill_sm90_f16");
  EXPECT_EQ(r.info.engine, TAMIS_CUDA_ENGINE_PREFILL);
  EXPECT_EQ(r.info.load, TAMIS_CUDA_LOAD_BLOCKS);
  EXPECT_EQ(r.info.columns, 128);
  // An older caller's options end before it.
  r.options.struct_size = offsetof(tamis_cuda_plan_options, ring);
  r.make_plan();
  EXPECT_EQ(r.info.engine, TAMIS_CUDA_ENGINE_DECODE);
  r.options.struct_size = sizeof r.options;
  r.options.load = TAMIS_CUDA_LOAD_TOKENS;
  r.make_plan();
  EXPECT_EQ(r.info.engine, TAMIS_CUDA_ENGINE_PREFILL);
  EXPECT_EQ(r.info.load, TAMIS_CUDA_LOAD_TOKENS);
}

// Two tiles of columns would not fit the registers (tools/check_sass.py).
TEST(CStep, LargeHeadsHaveOneTileOfColumns) {
  TAMIS_NEEDS_CUDA();
  EXPECT_EQ(Ready(step_problem(128, true)).info.columns, 16);
  EXPECT_EQ(Ready(step_problem(136, true)).info.columns, 8);
}

TEST(CStep, PlansAreEmptyUntilMadeAndAfterAFailure) {
  TAMIS_NEEDS_CUDA();
  Ready r;
  r.options.block = 7;
  Error error;
  EXPECT_EQ(tamis_cuda_plan_make(&r.c.problem, &r.options, r.plan, error), TAMIS_UNSUPPORTED);
  r.each_refused(TAMIS_INVALID_ARGUMENT, "plan: is empty");
  EXPECT_EQ(tamis_cuda_plan_info(r.plan, &r.info, error), TAMIS_INVALID_ARGUMENT);
  EXPECT_TRUE(says(error, "plan: is empty"));
  EXPECT_EQ(tamis_cuda_plan_sizes(r.plan, &r.sizes, error), TAMIS_INVALID_ARGUMENT);
  EXPECT_EQ(tamis_cuda_plan_make(&r.c.problem, nullptr, r.plan, error), TAMIS_OK) << error.text;
  tamis_cuda_plan_destroy(nullptr);
}

TEST(CStep, WhatIsMissing) {
  TAMIS_NEEDS_CUDA();
  Ready r;
  Error error;
  const auto refused = [&](int32_t code, const char* words) {
    EXPECT_EQ(code, TAMIS_INVALID_ARGUMENT) << words;
    EXPECT_TRUE(says(error, words));
  };
  refused(tamis_cuda_plan_create(nullptr, error), "plan: is NULL");
  refused(tamis_cuda_plan_info(nullptr, &r.info, error), "plan: is NULL");
  refused(tamis_cuda_plan_info(r.plan, nullptr, error), "summary: is NULL");
  refused(tamis_cuda_plan_sizes(nullptr, &r.sizes, error), "plan: is NULL");
  refused(tamis_cuda_plan_sizes(r.plan, nullptr, error), "sizes: is NULL");
  refused(tamis_cuda_plan_make(&r.c.problem, nullptr, nullptr, error), "plan: is NULL");
  refused(tamis_cuda_normalize(r.plan, nullptr, &r.buffers, nullptr, error), "problem: is NULL");
  refused(tamis_cuda_run(r.plan, nullptr, &r.results.output, &r.buffers, nullptr, nullptr, error),
          "problem: is NULL");
  refused(tamis_cuda_step(r.plan, &r.c.problem, nullptr, &r.buffers, nullptr, nullptr, error),
          "output: is NULL");
  refused(tamis_cuda_clear(r.plan, nullptr, nullptr, error), "buffers: is NULL");
  refused(tamis_cuda_schedule(r.plan, nullptr, nullptr, error), "buffers: is NULL");
  refused(tamis_cuda_poll(r.plan, nullptr, nullptr, nullptr, error), "buffers: is NULL");
  const tamis_tensor* lists = r.c.problem.candidates.indices;
  tamis_tensor without = *lists;
  without.data = nullptr;
  r.c.problem.candidates.indices = &without;
  refused(tamis_cuda_normalize(r.plan, &r.c.problem, &r.buffers, nullptr, error),
          "cand_indices: data is NULL");
  EXPECT_EQ(tamis_cuda_plan_make(&r.c.problem, nullptr, r.plan, error), TAMIS_OK)
      << "a plan looks at no memory: " << error.text;
  r.c.problem.candidates.indices = lists;
  r.results.out_tensor.data = nullptr;
  refused(r.run(error), "out: data is NULL");
  tamis_cuda_plan* whole = r.plan;
  r.plan = nullptr;
  r.each_refused(TAMIS_INVALID_ARGUMENT, "plan: is NULL");
  r.plan = whole;
  refused(tamis_cuda_plan_make(nullptr, nullptr, r.plan, error), "problem: is NULL");
}

TEST(CStep, SizesOfItsStructs) {
  TAMIS_NEEDS_CUDA();
  Ready r;
  Error error;
  const auto run = [&] { return r.run(error); };
  wrong_sizes(error, r.buffers.struct_size, "buffers", run);
  wrong_sizes(error, r.buffers.struct_size, "buffers",
              [&] { return tamis_cuda_clear(r.plan, &r.buffers, nullptr, error); });
  wrong_sizes(error, r.c.problem.struct_size, "problem", run);
  wrong_sizes(error, r.results.output.struct_size, "output", run);
  wrong_sizes(error, r.results.out_tensor.struct_size, "out", run);
  wrong_sizes(error, r.stats.struct_size, "stats",
              [&] { return tamis_cuda_poll(r.plan, &r.buffers, nullptr, &r.stats, error); });
  wrong_sizes(error, r.info.struct_size, "summary",
              [&] { return tamis_cuda_plan_info(r.plan, &r.info, error); });
  wrong_sizes(error, r.sizes.struct_size, "sizes",
              [&] { return tamis_cuda_plan_sizes(r.plan, &r.sizes, error); });
  r.info.struct_size = offsetof(tamis_cuda_plan_summary, bundles);
  r.info.bundles = -99;
  r.info.block = 0;
  ASSERT_EQ(tamis_cuda_plan_info(r.plan, &r.info, error), TAMIS_OK) << error.text;
  EXPECT_GT(r.info.block, 0);
  EXPECT_EQ(r.info.bundles, -99);
  wrong_sizes(error, r.options.struct_size, "options",
              [&] { return tamis_cuda_plan_make(&r.c.problem, &r.options, r.plan, error); });
  // Of an older header: what lies behind is not looked at.
  r.options.struct_size = offsetof(tamis_cuda_plan_options, row_entries);
  r.options.row_entries = -5;
  EXPECT_EQ(tamis_cuda_plan_make(&r.c.problem, &r.options, r.plan, error), TAMIS_OK) << error.text;
  std::memset(&r.options, 0x5A, sizeof r.options);
  tamis_cuda_plan_options_init_sized(&r.options, offsetof(tamis_cuda_plan_options, row_entries));
  EXPECT_EQ(r.options.struct_size, offsetof(tamis_cuda_plan_options, row_entries));
  EXPECT_EQ(r.options.density, -1);
  EXPECT_EQ(r.options.row_entries, 0x5A5A5A5A5A5A5A5A);
}

TEST(CStep, BuffersAreJudgedBeforeTheDeviceIsAsked) {
  TAMIS_NEEDS_CUDA();
  Ready r;
  const tamis_cuda_buffers whole = r.buffers;
  const struct {
    const char* name;
    void* tamis_cuda_buffers::*data;
    int64_t tamis_cuda_buffers::*bytes;
  } parts[] = {{"control", &tamis_cuda_buffers::control, &tamis_cuda_buffers::control_bytes},
               {"index", &tamis_cuda_buffers::index, &tamis_cuda_buffers::index_bytes},
               {"scratch", &tamis_cuda_buffers::scratch, &tamis_cuda_buffers::scratch_bytes}};
  for (const auto& part : parts) {
    r.buffers.*part.data = nullptr;
    r.each_refused(TAMIS_INVALID_ARGUMENT, std::string(part.name) + ": buffer is missing");
    r.buffers = whole;
    r.buffers.*part.data = static_cast<char*>(whole.*part.data) + 128;
    r.each_refused(TAMIS_INVALID_ARGUMENT, std::string(part.name) + ": does not start on a multiple of 256");
    r.buffers = whole;
    r.buffers.*part.bytes -= 1;
    r.each([&](const char* call, int32_t code, Error& error) {
      EXPECT_EQ(code, TAMIS_WORKSPACE_TOO_SMALL) << call;
      EXPECT_EQ(error.c.limit, whole.*part.bytes) << call;
    });
    r.buffers = whole;
  }
  r.buffers.index = r.buffers.scratch;
  r.each_refused(TAMIS_INVALID_ARGUMENT, "scratch: overlaps index");
}

TEST(CStep, AScaleThatFloatsDoNotHold) {
  TAMIS_NEEDS_CUDA();
  TestProblem t = step_problem();
  t.problem.score.scale = -2.5e38;
  const CProblem c(t.problem);
  Ready r;
  Error error;
  EXPECT_EQ(tamis_cuda_plan_make(&c.problem, &r.options, r.plan, error), TAMIS_UNSUPPORTED);
  EXPECT_TRUE(says(error, "scale: -2.5e+38 times log2(e) is no float32 number"));
}

TEST(CStep, TheRestThatTheHostCanSee) {
  TAMIS_NEEDS_CUDA();
  Ready r;
  Error error;
  const auto refused = [&](int32_t got, int32_t code, const char* words) {
    EXPECT_EQ(got, code) << error.text;
    EXPECT_TRUE(says(error, words));
  };
  refused(tamis_cuda_run(r.plan, &r.c.problem, &r.results.output, &r.buffers, nullptr,
                         reinterpret_cast<tamis_cuda_counters*>(r.counts + 4), error),
          TAMIS_INVALID_ARGUMENT, "counters");
  tamis_epilogue epilogue;
  tamis_epilogue_init(&epilogue);
  epilogue.scale = 2;
  r.results.output.epilogue = &epilogue;
  refused(r.run(error), TAMIS_UNSUPPORTED, "epilogue");
  r.results.output.epilogue = nullptr;
  const auto slots = sized<tamis_slots>();
  r.results.output.slots = &slots;
  refused(r.run(error), TAMIS_INVALID_ARGUMENT, "slot: is NULL");
  r.results.output.slots = nullptr;
  Ready other(step_problem(32));
  refused(tamis_cuda_normalize(r.plan, &other.c.problem, &r.buffers, nullptr, error), TAMIS_STALE_PLAN,
          "plan");
}

TEST(CStep, WithoutADeviceEveryCallSaysSo) {
  TAMIS_NEEDS_CUDA();
  if (cuda_devices().ok()) GTEST_SKIP() << "a device";
  Ready r;
  r.stats.raw = -7;
  r.each_refused(TAMIS_DEVICE_ERROR, "CUDA");
  Error error;
  EXPECT_EQ(tamis_cuda_poll(r.plan, &r.buffers, nullptr, nullptr, error), TAMIS_DEVICE_ERROR);
  EXPECT_EQ(r.stats.raw, -7);
  for (const float x : r.results.out) ASSERT_TRUE(x != x);
}

}  // namespace
}  // namespace tamis::testing
