// The device step: plan_step, normalize, schedule, run and poll of cuda.h.
#include "tamis/tamis_c_step.h"

#include <cstddef>

#include "capi/handles.h"
#include "capi/numbers.h"
#include "capi/options.h"
#include "capi/output.h"
#include "capi/problem.h"
#include "capi/structs.h"
#include "tamis/cuda.h"
#include "tamis/device.h"

struct tamis_cuda_plan {
  std::optional<tamis::cuda::StepPlan> plan;

  bool made() const { return plan.has_value(); }
  void clear() { plan.reset(); }
};

namespace tamis::capi {
namespace {

static_assert(TAMIS_CUDA_LOAD_BLOCKS == static_cast<int>(cuda::Load::kBlocks) &&
              TAMIS_CUDA_LOAD_TOKENS == static_cast<int>(cuda::Load::kTokens) &&
              TAMIS_CUDA_RING_FULL == static_cast<int>(cuda::Ring::kFull) &&
              TAMIS_CUDA_RING_SHORT == static_cast<int>(cuda::Ring::kShort) &&
              TAMIS_CUDA_ENGINE_DECODE == static_cast<int>(cuda::Engine::kDecode) &&
              TAMIS_CUDA_ENGINE_PREFILL == static_cast<int>(cuda::Engine::kPrefill));

// The device adds to the caller's own struct.
using Counters = cuda::StepCounters;
static_assert(sizeof(tamis_cuda_counters) == sizeof(Counters) &&
              offsetof(tamis_cuda_counters, tasks) == offsetof(Counters, tasks) &&
              offsetof(tamis_cuda_counters, tiles) == offsetof(Counters, tiles) &&
              offsetof(tamis_cuda_counters, tokens_loaded) == offsetof(Counters, tokens_loaded) &&
              offsetof(tamis_cuda_counters, rows_redone) == offsetof(Counters, rows_redone) &&
              offsetof(tamis_cuda_counters, empty_rows) == offsetof(Counters, empty_rows) &&
              offsetof(tamis_cuda_counters, stale_rows) == offsetof(Counters, stale_rows));

tamis_cuda_plan_options defaults(const cuda::StepOptions& o) {
  return {.struct_size = sizeof(tamis_cuda_plan_options),
          .plan = nullptr,
          .block = o.block,
          .load = static_cast<int32_t>(o.load),
          .density = o.density,
          .row_entries = o.row_entries,
          .max_kv_len = o.max_kv_len,
          .ring = static_cast<int32_t>(o.ring),
          .engine = static_cast<int32_t>(o.engine)};
}

Status read_options(const tamis_cuda_plan_options* from, cuda::StepOptions* to) {
  if (from == nullptr) return {};
  tamis_cuda_plan_options o = defaults({});
  TAMIS_RETURN_IF_ERROR(read_struct("options", from, &o));
  TAMIS_RETURN_IF_ERROR(capi::read_options(o.plan, &to->plan));
  TAMIS_RETURN_IF_ERROR(read_enum("load", o.load, cuda::Load::kTokens, &to->load));
  TAMIS_RETURN_IF_ERROR(read_enum("ring", o.ring, cuda::Ring::kShort, &to->ring));
  TAMIS_RETURN_IF_ERROR(read_enum("engine", o.engine, cuda::Engine::kPrefill, &to->engine));
  to->block = o.block;
  to->density = o.density;
  to->row_entries = o.row_entries;
  to->max_kv_len = o.max_kv_len;
  return {};
}

Status read_buffers(const tamis_cuda_buffers* from, cuda::StepBuffers* to) {
  tamis_cuda_buffers b{};
  TAMIS_RETURN_IF_ERROR(read_struct("buffers", from, &b));
  *to = {.control = b.control,
         .index = b.index,
         .scratch = b.scratch,
         .bytes = {.control = b.control_bytes, .index = b.index_bytes, .scratch = b.scratch_bytes}};
  return {};
}

Status read_counters(tamis_cuda_counters* from, Counters** to) {
  if (reinterpret_cast<uintptr_t>(from) % alignof(Counters) != 0)
    return invalid("counters", "do not start on a multiple of ", alignof(Counters), " bytes");
  *to = reinterpret_cast<Counters*>(from);
  return {};
}

tamis_cuda_plan_summary summary(const cuda::StepPlan& p) {
  return {.struct_size = sizeof(tamis_cuda_plan_summary),
          .kernel = p.kernel.c_str(),
          .reason = p.plan.reason.c_str(),
          .path_name = path_name(p.plan.path),
          .load_name = cuda::load_name(p.load),
          .fingerprint = p.plan.fingerprint,
          .path = static_cast<int32_t>(p.plan.path),
          .block = p.plan.block,
          .load = static_cast<int32_t>(p.load),
          .columns = p.columns,
          .lists = p.lists,
          .ring = static_cast<int32_t>(p.ring),
          .bundles = p.bundles,
          .groups = p.groups,
          .tasks = p.tasks,
          .parts = p.parts,
          .column_tiles = p.column_tiles,
          .row_entries = p.plan.capacities.row_entries,
          .max_kv_len = p.max_kv_len,
          .engine = static_cast<int32_t>(p.engine),
          .reserved = 0};
}

tamis_cuda_stats summary(const cuda::StepStats& s, int32_t block) {
  return {.struct_size = sizeof(tamis_cuda_stats),
          .raw = s.raw,
          .padding = s.padding,
          .invalid = s.invalid,
          .duplicates = s.duplicates,
          .unique = s.unique,
          .future = s.future,
          .bundles = s.bundles,
          .empty_bundles = s.empty_bundles,
          .blocks = s.blocks,
          .gaps = s.gaps,
          .touched_pages = s.touched_pages,
          .selected = s.selected,
          .tasks = s.tasks,
          .parts = s.parts,
          .most_parts = s.most_parts,
          .epoch = s.epoch,
          .density = s.density(block)};
}

// `made` runs on what plan and buffers turn into: what clear and schedule have in common.
template <class Call>
int32_t launched(const tamis_cuda_plan* plan, const tamis_cuda_buffers* buffers, tamis_error* error,
                 Call call) {
  return guarded(error, [&]() -> Status {
    cuda::StepBuffers b;
    TAMIS_RETURN_IF_ERROR(need("plan", plan));
    TAMIS_RETURN_IF_ERROR(read_buffers(buffers, &b));
    return call(*plan->plan, b);
  });
}

// The same with a problem, of which `reads` is looked at on the device.
template <class Call>
int32_t launched(const tamis_cuda_plan* plan, const tamis_problem* problem, Reads reads,
                 const tamis_cuda_buffers* buffers, tamis_error* error, Call call) {
  return launched(plan, buffers, error,
                  [&](const cuda::StepPlan& made, const cuda::StepBuffers& b) -> Status {
                    Problem p;
                    TAMIS_RETURN_IF_ERROR(read_problem(problem, reads, &p));
                    return call(made, p, b);
                  });
}

// run() and step() take the same.
using Run = Status (*)(const cuda::StepPlan&, const Problem&, const OutView&, const cuda::StepBuffers&,
                       cuda::Stream, Counters*);
int32_t run_c(Run run, const tamis_cuda_plan* plan, const tamis_problem* problem, const tamis_output* output,
              const tamis_cuda_buffers* buffers, void* stream, tamis_cuda_counters* counters,
              tamis_error* error) {
  return launched(plan, problem, Reads::kValues, buffers, error,
                  [&](const cuda::StepPlan& made, const Problem& p, const cuda::StepBuffers& b) -> Status {
                    OutView out;
                    Counters* counts = nullptr;
                    TAMIS_RETURN_IF_ERROR(read_output(output, &out));
                    TAMIS_RETURN_IF_ERROR(read_counters(counters, &counts));
                    return run(made, p, out, b, stream, counts);
                  });
}

Status poll_c(const cuda::StepPlan& plan, const cuda::StepBuffers& buffers, void* stream,
              tamis_cuda_stats* stats) {
  if (stats == nullptr) return cuda::poll(plan, buffers, stream);
  TAMIS_RETURN_IF_ERROR(check_struct("stats", stats));
  // No count is negative: one that still is says that the device was not asked.
  cuda::StepStats s{.raw = -1};
  Status verdict = cuda::poll(plan, buffers, stream, &s);
  if (s.raw >= 0) write_struct(summary(s, plan.plan.block), stats);
  return verdict;
}

}  // namespace
}  // namespace tamis::capi

using tamis::Status;
using namespace tamis::capi;

extern "C" {

int32_t tamis_cuda_use_device(int32_t device, int32_t* previous, tamis_error* error) {
  return guarded(error, [&] { return tamis::use_cuda_device(device, previous); });
}

int32_t tamis_cuda_plan_create(tamis_cuda_plan** plan, tamis_error* error) {
  return create("plan", plan, error);
}
void tamis_cuda_plan_destroy(tamis_cuda_plan* plan) { delete plan; }

void tamis_cuda_plan_options_init_sized(tamis_cuda_plan_options* options, uint64_t size) {
  init_struct(defaults({}), options, size);
}

int32_t tamis_cuda_plan_make(const tamis_problem* problem, const tamis_cuda_plan_options* options,
                             tamis_cuda_plan* plan, tamis_error* error) {
  return guarded(error, [&]() -> Status {
    tamis::Problem p;
    tamis::cuda::StepOptions o;
    TAMIS_RETURN_IF_ERROR(empty("plan", plan));
    TAMIS_RETURN_IF_ERROR(read_problem(problem, Reads::kShapes, &p));
    TAMIS_RETURN_IF_ERROR(read_options(options, &o));
    tamis::Result<tamis::cuda::StepPlan> made = tamis::cuda::plan_step(p, o);
    if (!made.ok()) return made.status();
    plan->plan = std::move(*made);
    return {};
  });
}

int32_t tamis_cuda_plan_info(const tamis_cuda_plan* plan, tamis_cuda_plan_summary* out, tamis_error* error) {
  return guarded(error, [&]() -> Status {
    TAMIS_RETURN_IF_ERROR(need("plan", plan));
    TAMIS_RETURN_IF_ERROR(check_struct("summary", out));
    write_struct(summary(*plan->plan), out);
    return {};
  });
}

int32_t tamis_cuda_plan_sizes(const tamis_cuda_plan* plan, tamis_cuda_sizes* sizes, tamis_error* error) {
  return guarded(error, [&]() -> Status {
    TAMIS_RETURN_IF_ERROR(need("plan", plan));
    TAMIS_RETURN_IF_ERROR(check_struct("sizes", sizes));
    const tamis::cuda::StepSizes& s = plan->plan->bytes;
    write_struct<tamis_cuda_sizes>({.struct_size = sizeof(tamis_cuda_sizes),
                                    .control = s.control,
                                    .index = s.index,
                                    .scratch = s.scratch},
                                   sizes);
    return {};
  });
}

int32_t tamis_cuda_clear(const tamis_cuda_plan* plan, const tamis_cuda_buffers* buffers, void* stream,
                         tamis_error* error) {
  return launched(plan, buffers, error,
                  [&](const auto& made, const auto& b) { return tamis::cuda::clear(made, b, stream); });
}

int32_t tamis_cuda_normalize(const tamis_cuda_plan* plan, const tamis_problem* problem,
                             const tamis_cuda_buffers* buffers, void* stream, tamis_error* error) {
  return launched(plan, problem, Reads::kLists, buffers, error,
                  [&](const auto& made, const auto& p, const auto& b) {
                    return tamis::cuda::normalize(made, p, b, stream);
                  });
}

int32_t tamis_cuda_schedule(const tamis_cuda_plan* plan, const tamis_cuda_buffers* buffers, void* stream,
                            tamis_error* error) {
  return launched(plan, buffers, error,
                  [&](const auto& made, const auto& b) { return tamis::cuda::schedule(made, b, stream); });
}

int32_t tamis_cuda_run(const tamis_cuda_plan* plan, const tamis_problem* problem, const tamis_output* output,
                       const tamis_cuda_buffers* buffers, void* stream, tamis_cuda_counters* counters,
                       tamis_error* error) {
  return run_c(tamis::cuda::run, plan, problem, output, buffers, stream, counters, error);
}

int32_t tamis_cuda_step(const tamis_cuda_plan* plan, const tamis_problem* problem, const tamis_output* output,
                        const tamis_cuda_buffers* buffers, void* stream, tamis_cuda_counters* counters,
                        tamis_error* error) {
  return run_c(tamis::cuda::step, plan, problem, output, buffers, stream, counters, error);
}

int32_t tamis_cuda_poll(const tamis_cuda_plan* plan, const tamis_cuda_buffers* buffers, void* stream,
                        tamis_cuda_stats* stats, tamis_error* error) {
  return launched(plan, buffers, error,
                  [&](const auto& made, const auto& b) { return poll_c(made, b, stream, stats); });
}

}  // extern "C"
