// struct_size of every struct, and NULL for every argument.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <functional>

#include "capi/c_problem.h"

namespace tamis::testing {
namespace {

// A prepared problem and one of every struct, each good.
struct Everything {
  Everything() : t(decode_problem()), c(t.problem), results(3, 4, 8) {
    EXPECT_EQ(h.prepare(c.problem), TAMIS_OK);
    step = h.step(c.problem, results.output, &workspace);
    tamis_normalize_options_init(&normalize);
    tamis_bundle_options_init(&bundle);
    tamis_plan_options_init(&plan);
    tamis_explain_options_init(&explain);
    tamis_epilogue_init(&epilogue);
    const int64_t one[] = {3};
    slot_tensor = tamis_dense(slot, TAMIS_I32, 1, one);
    generation_tensor = tamis_dense(generation, TAMIS_U32, 1, one);
    slots.slot = &slot_tensor;
    slots.generation = slots.live_generation = &generation_tensor;
    results.output.epilogue = &epilogue;
    results.output.slots = &slots;
    report.index = &index;
    report.bundles = &bundles;
    report.schedule = &schedule;
    report.counters = &counters;
  }

  int32_t forward(tamis_error* e) {
    return tamis_forward(&c.problem, &options, &results.output, h.context, &report, e);
  }

  TestProblem t;
  CProblem c;
  Handles h;
  Results results;
  std::vector<float> workspace;
  tamis_step step;
  tamis_normalize_options normalize;
  tamis_bundle_options bundle;
  tamis_plan_options plan;
  tamis_explain_options explain;
  tamis_epilogue epilogue;
  tamis_slots slots = sized<tamis_slots>();
  const int32_t slot[3] = {0, 1, 2};
  const uint32_t generation[3] = {4, 5, 6};
  tamis_tensor slot_tensor, generation_tensor;
  tamis_forward_options options{sizeof options, &normalize, &bundle, &plan};
  tamis_shape shape = sized<tamis_shape>();
  tamis_index_arrays arrays = sized<tamis_index_arrays>();
  tamis_index_summary index = sized<tamis_index_summary>();
  tamis_bundle_summary bundles = sized<tamis_bundle_summary>();
  tamis_plan_summary planned = sized<tamis_plan_summary>();
  tamis_schedule_summary schedule = sized<tamis_schedule_summary>();
  tamis_run_counters counters = sized<tamis_run_counters>();
  tamis_accounting accounting = sized<tamis_accounting>();
  tamis_cuda_info cuda = sized<tamis_cuda_info>();
  tamis_forward_report report = sized<tamis_forward_report>();
};

struct Sized {
  const char* name;  // as the message spells it
  std::function<uint64_t&(Everything&)> size;
  std::function<int32_t(Everything&, tamis_error*)> call;
};

std::vector<Sized> all_structs() {
  using E = Everything;
  using Err = tamis_error*;
  const auto forward = [](E& e, Err error) { return e.forward(error); };
  const auto run = [](E& e, Err error) { return tamis_run(&e.step, e.h.context, &e.counters, error); };
  return {
      {"problem", [](E& e) -> uint64_t& { return e.c.problem.struct_size; },
       [](E& e, Err error) { return tamis_describe(&e.c.problem, &e.shape, error); }},
      {"problem", [](E& e) -> uint64_t& { return e.c.problem.struct_size; },
       [](E& e, Err error) { return tamis_normalize(&e.c.problem, nullptr, e.h.index, error); }},
      {"problem", [](E& e) -> uint64_t& { return e.c.problem.struct_size; }, forward},
      {"problem", [](E& e) -> uint64_t& { return e.c.problem.struct_size; }, run},
      {"shape", [](E& e) -> uint64_t& { return e.shape.struct_size; },
       [](E& e, Err error) { return tamis_describe(&e.c.problem, &e.shape, error); }},
      {"normalize_options", [](E& e) -> uint64_t& { return e.normalize.struct_size; },
       [](E& e, Err error) { return tamis_normalize(&e.c.problem, &e.normalize, e.h.index, error); }},
      {"normalize_options", [](E& e) -> uint64_t& { return e.normalize.struct_size; }, forward},
      {"bundle_options", [](E& e) -> uint64_t& { return e.bundle.struct_size; },
       [](E& e, Err error) { return tamis_bundle(&e.c.problem, e.h.index, &e.bundle, e.h.bundles, error); }},
      {"plan_options", [](E& e) -> uint64_t& { return e.plan.struct_size; },
       [](E& e, Err error) {
         return tamis_plan_make(&e.c.problem, &e.h.capacities, 16, &e.plan, e.h.plan, error);
       }},
      {"capacities", [](E& e) -> uint64_t& { return e.h.capacities.struct_size; },
       [](E& e, Err error) {
         return tamis_plan_make(&e.c.problem, &e.h.capacities, 16, nullptr, e.h.plan, error);
       }},
      {"capacities", [](E& e) -> uint64_t& { return e.h.capacities.struct_size; },
       [](E& e, Err error) {
         return tamis_capacities_of(&e.c.problem, e.h.bundles, &e.h.capacities, error);
       }},
      {"arrays", [](E& e) -> uint64_t& { return e.arrays.struct_size; },
       [](E& e, Err error) { return tamis_index_view(e.h.index, &e.arrays, error); }},
      {"summary", [](E& e) -> uint64_t& { return e.index.struct_size; },
       [](E& e, Err error) { return tamis_index_stats(e.h.index, &e.index, error); }},
      {"summary", [](E& e) -> uint64_t& { return e.bundles.struct_size; },
       [](E& e, Err error) { return tamis_bundle_stats(e.h.bundles, &e.bundles, error); }},
      {"summary", [](E& e) -> uint64_t& { return e.planned.struct_size; },
       [](E& e, Err error) { return tamis_plan_info(e.h.plan, &e.planned, error); }},
      {"summary", [](E& e) -> uint64_t& { return e.schedule.struct_size; },
       [](E& e, Err error) { return tamis_schedule_info(e.h.schedule, &e.schedule, error); }},
      {"step", [](E& e) -> uint64_t& { return e.step.struct_size; }, run},
      {"output", [](E& e) -> uint64_t& { return e.results.output.struct_size; }, run},
      {"output", [](E& e) -> uint64_t& { return e.results.output.struct_size; }, forward},
      {"epilogue", [](E& e) -> uint64_t& { return e.epilogue.struct_size; }, run},
      {"slots", [](E& e) -> uint64_t& { return e.slots.struct_size; }, forward},
      {"slot", [](E& e) -> uint64_t& { return e.slot_tensor.struct_size; }, forward},
      {"generation", [](E& e) -> uint64_t& { return e.generation_tensor.struct_size; }, run},
      {"out", [](E& e) -> uint64_t& { return e.results.out_tensor.struct_size; }, forward},
      {"lse", [](E& e) -> uint64_t& { return e.results.lse_tensor.struct_size; }, run},
      {"counters", [](E& e) -> uint64_t& { return e.counters.struct_size; }, run},
      {"forward_options", [](E& e) -> uint64_t& { return e.options.struct_size; }, forward},
      {"report", [](E& e) -> uint64_t& { return e.report.struct_size; }, forward},
      {"report.index", [](E& e) -> uint64_t& { return e.index.struct_size; }, forward},
      {"report.bundles", [](E& e) -> uint64_t& { return e.bundles.struct_size; }, forward},
      {"report.schedule", [](E& e) -> uint64_t& { return e.schedule.struct_size; }, forward},
      {"counters", [](E& e) -> uint64_t& { return e.counters.struct_size; }, forward},
      {"explain_options", [](E& e) -> uint64_t& { return e.explain.struct_size; },
       [](E& e, Err error) { return tamis_explain(&e.c.problem, &e.explain, &e.accounting, error); }},
      {"accounting", [](E& e) -> uint64_t& { return e.accounting.struct_size; },
       [](E& e, Err error) { return tamis_explain(&e.c.problem, nullptr, &e.accounting, error); }},
      {"info", [](E& e) -> uint64_t& { return e.cuda.struct_size; },
       [](E& e, Err error) { return tamis_cuda_status(0, &e.cuda, error); }},
  };
}

TEST(CSizes, WrongOnesAreRefusedByName) {
  for (const Sized& s : all_structs()) {
    Everything good;
    Error error;
    if (std::string(s.name) != "info") {
      EXPECT_EQ(s.call(good, error), TAMIS_OK) << s.name << ": " << error.text;
    }
    for (const uint64_t wrong : {uint64_t{0}, uint64_t{7}, uint64_t{12}, s.size(good) + 8, ~uint64_t{7}}) {
      Everything e;
      s.size(e) = wrong;
      EXPECT_EQ(s.call(e, error), TAMIS_INVALID_ARGUMENT) << s.name << " " << wrong;
      EXPECT_TRUE(says(error, std::string(s.name) + ": struct_size " + std::to_string(wrong)));
      EXPECT_TRUE(std::isnan(e.results.out[0])) << s.name;
    }
  }
}

// An output of an older header keeps what lies behind it.
TEST(CSizes, SmallerOutputsAreWrittenOnlyAsFar) {
  Everything e;
  e.shape.struct_size = offsetof(tamis_shape, q_heads);
  e.shape.q_heads = -99;
  ASSERT_EQ(tamis_describe(&e.c.problem, &e.shape, nullptr), TAMIS_OK);
  EXPECT_EQ(e.shape.struct_size, offsetof(tamis_shape, q_heads));
  EXPECT_EQ(e.shape.requests, 3);
  EXPECT_EQ(e.shape.q_heads, -99);

  e.counters.struct_size = offsetof(tamis_run_counters, tiles);
  e.counters.tiles = -99;
  ASSERT_EQ(tamis_run(&e.step, e.h.context, &e.counters, nullptr), TAMIS_OK);
  EXPECT_GT(e.counters.tasks, 0);
  EXPECT_EQ(e.counters.tiles, -99);

  e.counters.struct_size = offsetof(tamis_run_counters, stale_rows);  // the header before slots
  e.counters.stale_rows = e.counters.saturated = -99;
  ASSERT_EQ(tamis_run(&e.step, e.h.context, &e.counters, nullptr), TAMIS_OK);
  EXPECT_EQ(e.counters.stale_rows, -99);
  EXPECT_EQ(e.counters.saturated, -99);

  e.accounting.struct_size = 8;  // the first header there could be
  e.accounting.rows = -99;
  ASSERT_EQ(tamis_explain(&e.c.problem, nullptr, &e.accounting, nullptr), TAMIS_OK);
  EXPECT_EQ(e.accounting.rows, -99);
}

TEST(CSizes, SmallerInputsKeepDefaults) {
  Everything e;
  Error error;
  // Up to the score: what follows is never looked at, whatever it holds.
  std::memset(&e.c.problem.score, 0x5A, sizeof e.c.problem - offsetof(tamis_problem, score));
  e.c.problem.struct_size = offsetof(tamis_problem, score);
  ASSERT_EQ(tamis_describe(&e.c.problem, &e.shape, error), TAMIS_OK) << error.text;
  EXPECT_EQ(e.shape.scale, 0.25);
  EXPECT_EQ(tamis_forward(&e.c.problem, nullptr, &e.results.output, e.h.context, nullptr, error), TAMIS_OK);
  // Without a mask it is causal and without a window; without candidates there are none.
  e.c.problem.struct_size = offsetof(tamis_problem, candidates);
  ASSERT_EQ(tamis_describe(&e.c.problem, &e.shape, error), TAMIS_OK) << error.text;
  EXPECT_EQ(e.shape.index_heads, 1);

  e.plan.struct_size = offsetof(tamis_plan_options, batch_invariant);
  e.plan.shares = -5;
  e.plan.workspace_budget = -5;
  EXPECT_EQ(tamis_plan_make(&e.c.problem, &e.h.capacities, 16, &e.plan, e.h.plan, error), TAMIS_OK)
      << error.text;
  e.plan.struct_size = sizeof e.plan;
  EXPECT_EQ(tamis_plan_make(&e.c.problem, &e.h.capacities, 16, &e.plan, e.h.plan, error),
            TAMIS_INVALID_ARGUMENT);

  // The header before epilogues and slots, and an epilogue that says nothing but its size.
  e.results.output.struct_size = offsetof(tamis_output, epilogue);
  e.results.output.epilogue = reinterpret_cast<const tamis_epilogue*>(8);
  e.results.output.slots = reinterpret_cast<const tamis_slots*>(8);
  Everything newer;
  EXPECT_EQ(tamis_run(&newer.step, newer.h.context, nullptr, error), TAMIS_OK) << error.text;
  newer.step.output = &e.results.output;
  EXPECT_EQ(tamis_run(&newer.step, newer.h.context, nullptr, error), TAMIS_OK) << error.text;
  EXPECT_EQ(e.results.out, newer.results.out);
  newer.epilogue.struct_size = 8;
  newer.epilogue.scale = 0;
  newer.step.output = &newer.results.output;
  EXPECT_EQ(tamis_run(&newer.step, newer.h.context, nullptr, error), TAMIS_OK) << error.text;
  EXPECT_EQ(newer.results.out, e.results.out) << "the scale stays 1";

  e.bundle.struct_size = 8;
  e.bundle.policy = 77;
  Everything whole;
  EXPECT_EQ(tamis_bundle(&whole.c.problem, whole.h.index, &e.bundle, whole.h.bundles, error), TAMIS_OK)
      << error.text;
}

TEST(CSizes, InitKnowsHowLargeTheCallersStructIs) {
  struct {
    tamis_plan_options options;
    char behind[16];
  } x;
  std::memset(&x, 0x5A, sizeof x);
  tamis_plan_options_init_sized(&x.options, offsetof(tamis_plan_options, batch_invariant));
  EXPECT_EQ(x.options.struct_size, offsetof(tamis_plan_options, batch_invariant));
  EXPECT_EQ(x.options.backend, TAMIS_CPU);
  EXPECT_EQ(x.options.splits, 0);
  EXPECT_EQ(x.options.shares, 0x5A5A5A5A);
  // A newer header: what this library does not know is zero, and the next call says that it is too new.
  tamis_plan_options_init_sized(&x.options, sizeof x.options + 8);
  EXPECT_EQ(x.options.workspace_budget, -1);
  EXPECT_EQ(x.behind[7], 0);
  EXPECT_EQ(x.behind[8], 0x5A);
  tamis_plan_options_init_sized(nullptr, 100);
  tamis_problem_init_sized(nullptr, 0);
  tamis_plan_options_init_sized(&x.options, 4);  // no room even for the size
  EXPECT_EQ(x.options.struct_size, sizeof x.options + 8);
}

TEST(CNull, EveryRequiredArgument) {
  Everything e;
  Error error;
  const auto refused = [&](int32_t code, const char* words) {
    EXPECT_EQ(code, TAMIS_INVALID_ARGUMENT) << words;
    EXPECT_TRUE(says(error, words));
  };
  tamis_problem* p = &e.c.problem;
  refused(tamis_context_create(1, nullptr, nullptr, error), "context: is NULL");
  refused(tamis_index_set_create(nullptr, error), "index: is NULL");
  refused(tamis_bundles_create(nullptr, error), "bundles: is NULL");
  refused(tamis_plan_create(nullptr, error), "plan: is NULL");
  refused(tamis_schedule_create(nullptr, error), "schedule: is NULL");
  refused(tamis_describe(nullptr, &e.shape, error), "problem: is NULL");
  refused(tamis_describe(p, nullptr, error), "shape: is NULL");
  refused(tamis_index_view(nullptr, &e.arrays, error), "index: is NULL");
  refused(tamis_index_view(e.h.index, nullptr, error), "arrays: is NULL");
  refused(tamis_index_stats(nullptr, &e.index, error), "index: is NULL");
  refused(tamis_index_stats(e.h.index, nullptr, error), "summary: is NULL");
  tamis_percentiles reuse;
  refused(tamis_index_reuse(nullptr, &reuse, error), "index: is NULL");
  refused(tamis_index_reuse(e.h.index, nullptr, error), "reuse: is NULL");
  refused(tamis_bundle_stats(nullptr, &e.bundles, error), "bundles: is NULL");
  refused(tamis_bundle_stats(e.h.bundles, nullptr, error), "summary: is NULL");
  refused(tamis_capacities_of(nullptr, e.h.bundles, &e.h.capacities, error), "problem: is NULL");
  refused(tamis_capacities_of(p, nullptr, &e.h.capacities, error), "bundles: is NULL");
  refused(tamis_capacities_of(p, e.h.bundles, nullptr, error), "capacities: is NULL");
  refused(tamis_plan_info(nullptr, &e.planned, error), "plan: is NULL");
  refused(tamis_plan_info(e.h.plan, nullptr, error), "summary: is NULL");
  refused(tamis_schedule_info(nullptr, &e.schedule, error), "schedule: is NULL");
  refused(tamis_schedule_info(e.h.schedule, nullptr, error), "summary: is NULL");
  int64_t bytes;
  refused(tamis_workspace_bytes(nullptr, e.h.schedule, &bytes, error), "plan: is NULL");
  refused(tamis_workspace_bytes(e.h.plan, nullptr, &bytes, error), "schedule: is NULL");
  refused(tamis_workspace_bytes(e.h.plan, e.h.schedule, nullptr, error), "bytes: is NULL");
  refused(tamis_run(nullptr, e.h.context, nullptr, error), "step: is NULL");
  refused(tamis_run(&e.step, nullptr, nullptr, error), "context: is NULL");
  const auto without = [&](auto member, const char* words) {
    tamis_step step = e.step;
    step.*member = nullptr;
    step.workspace_bytes = 1000;
    refused(tamis_run(&step, e.h.context, nullptr, error), words);
  };
  without(&tamis_step::problem, "problem: is NULL");
  without(&tamis_step::bundles, "bundles: is NULL");
  without(&tamis_step::plan, "plan: is NULL");
  without(&tamis_step::schedule, "schedule: is NULL");
  without(&tamis_step::output, "output: is NULL");
  without(&tamis_step::workspace, "workspace: is NULL");
  refused(tamis_forward(nullptr, nullptr, &e.results.output, e.h.context, nullptr, error),
          "problem: is NULL");
  refused(tamis_forward(p, nullptr, nullptr, e.h.context, nullptr, error), "output: is NULL");
  refused(tamis_forward(p, nullptr, &e.results.output, nullptr, nullptr, error), "context: is NULL");
  tamis_output no_out = e.results.output;
  no_out.out = nullptr;
  refused(tamis_forward(p, nullptr, &no_out, e.h.context, nullptr, error), "out: tensor is missing");
  for (const tamis_tensor* tamis_slots::*member :
       {&tamis_slots::slot, &tamis_slots::generation, &tamis_slots::live_generation}) {
    tamis_slots slots = e.slots;
    slots.*member = nullptr;
    tamis_output output = e.results.output;
    output.slots = &slots;
    refused(tamis_forward(p, nullptr, &output, e.h.context, nullptr, error), "is NULL");
  }
  e.results.out_tensor.data = nullptr;
  refused(tamis_forward(p, nullptr, &e.results.output, e.h.context, nullptr, error), "out: data is NULL");
  refused(tamis_reference_forward(nullptr, nullptr, 0, nullptr, 0, error), "problem: is NULL");
  refused(tamis_reference_forward(p, nullptr, 96, nullptr, 0, error), "out: is NULL");
  refused(tamis_reference_forward(p, nullptr, 0, nullptr, 12, error), "lse: is NULL");
  refused(tamis_explain(nullptr, nullptr, &e.accounting, error), "problem: is NULL");
  refused(tamis_explain(p, nullptr, nullptr, error), "accounting: is NULL");
  refused(tamis_cuda_status(0, nullptr, error), "info: is NULL");
  // These empty what they would have filled.
  refused(tamis_schedule_make(nullptr, e.h.bundles, e.h.schedule, error), "plan: is NULL");
  refused(tamis_schedule_make(e.h.plan, nullptr, e.h.schedule, error), "bundles: is NULL");
  refused(tamis_schedule_make(e.h.plan, e.h.bundles, nullptr, error), "schedule: is NULL");
  refused(tamis_plan_make(nullptr, &e.h.capacities, 16, nullptr, e.h.plan, error), "problem: is NULL");
  refused(tamis_plan_make(p, nullptr, 16, nullptr, e.h.plan, error), "capacities: is NULL");
  refused(tamis_plan_make(p, &e.h.capacities, 16, nullptr, nullptr, error), "plan: is NULL");
  refused(tamis_bundle(nullptr, e.h.index, nullptr, e.h.bundles, error), "problem: is NULL");
  refused(tamis_bundle(p, nullptr, nullptr, e.h.bundles, error), "index: is NULL");
  refused(tamis_bundle(p, e.h.index, nullptr, nullptr, error), "bundles: is NULL");
  refused(tamis_normalize(nullptr, nullptr, e.h.index, error), "problem: is NULL");
  refused(tamis_normalize(p, nullptr, nullptr, error), "index: is NULL");
}

TEST(CNull, DestroyingNothing) {
  tamis_context_destroy(nullptr);
  tamis_index_set_destroy(nullptr);
  tamis_bundles_destroy(nullptr);
  tamis_plan_destroy(nullptr);
  tamis_schedule_destroy(nullptr);
  tamis_case_free(nullptr);
}

}  // namespace
}  // namespace tamis::testing
