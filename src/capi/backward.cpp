// Gradients: plan_backward and run_backward.
#include "tamis/backward.h"

#include "capi/handles.h"
#include "capi/options.h"
#include "capi/problem.h"
#include "capi/structs.h"
#include "tamis/tamis_c_backward.h"

struct tamis_backward_plan {
  std::optional<tamis::BackwardPlan> plan;
  std::shared_ptr<const tamis::capi::IndexState> index;
  uint64_t generation = 0;

  bool made() const { return plan.has_value(); }
  void clear() {
    plan.reset();
    index.reset();
  }
};

namespace tamis::capi {
namespace {

Status read_options(const tamis_backward_options* from, BackwardOptions* to) {
  if (from == nullptr) return {};
  tamis_backward_options o{.struct_size = sizeof o, .bundle = nullptr, .slab_bytes = to->slab_bytes};
  TAMIS_RETURN_IF_ERROR(read_struct("options", from, &o));
  to->slab_bytes = o.slab_bytes;
  return capi::read_options(o.bundle, &to->bundle);
}

Status read_gradients(const tamis_input_gradients* from, bool read, GradientView* to) {
  tamis_input_gradients g{};
  TAMIS_RETURN_IF_ERROR(read_struct("gradients", from, &g));
  TAMIS_RETURN_IF_ERROR(read_optional("d_q", g.d_q, read, &to->d_q));
  TAMIS_RETURN_IF_ERROR(read_optional("d_k", g.d_k, read, &to->d_k));
  return read_optional("d_v", g.d_v, read, &to->d_v);
}

Status plan_c(const tamis_problem* problem, const tamis_index_set* index,
              const tamis_backward_options* options, tamis_backward_plan* out) {
  Problem p;
  BackwardOptions o;
  TAMIS_RETURN_IF_ERROR(read_problem(problem, Reads::kLists, &p));
  TAMIS_RETURN_IF_ERROR(need("index", index));
  TAMIS_RETURN_IF_ERROR(read_options(options, &o));
  Result<BackwardPlan> made = plan_backward(p, index->state->set, o);
  if (!made.ok()) return made.status();
  out->plan = std::move(*made);
  out->index = index->state;
  out->generation = index->state->generation;
  return {};
}

Status need_current(const tamis_backward_plan* plan) {
  TAMIS_RETURN_IF_ERROR(need("plan", plan));
  if (plan->index->generation == plan->generation) return {};
  return {Code::kStalePlan, "plan: its index set was filled again; make it anew"};
}

Status run_c(const tamis_backward_step* step, tamis_context* context, tamis_backward_counters* counters) {
  tamis_backward_step s{};
  Problem p;
  SavedForward saved;
  GradientView gradients;
  BackwardCounters c;
  TAMIS_RETURN_IF_ERROR(read_struct("step", step, &s));
  TAMIS_RETURN_IF_ERROR(read_problem(s.problem, Reads::kGradients, &p));
  TAMIS_RETURN_IF_ERROR(need_current(s.plan));
  TAMIS_RETURN_IF_ERROR(read_optional("lse", s.lse, true, &saved.lse));
  TAMIS_RETURN_IF_ERROR(read_optional("out", s.out, true, &saved.out));
  TAMIS_RETURN_IF_ERROR(read_gradients(s.gradients, true, &gradients));
  if (s.workspace == nullptr && s.workspace_bytes != 0) return invalid("workspace", "is NULL");
  if (context == nullptr) return invalid("context", "is NULL");
  if (counters != nullptr) TAMIS_RETURN_IF_ERROR(check_struct("counters", counters));
  TAMIS_RETURN_IF_ERROR(run_backward(*s.plan->plan, p, saved, gradients,
                                     {static_cast<std::byte*>(s.workspace), s.workspace_bytes},
                                     context->context, &c));
  if (counters != nullptr)
    write_struct<tamis_backward_counters>({.struct_size = sizeof(tamis_backward_counters),
                                           .tasks = c.tasks,
                                           .slabs = c.slabs,
                                           .tiles = c.tiles,
                                           .runs = c.runs,
                                           .owners = c.owners,
                                           .clear_us = c.clear_us,
                                           .query_us = c.query_us,
                                           .transpose_us = c.transpose_us,
                                           .key_us = c.key_us},
                                          counters);
  return {};
}

}  // namespace
}  // namespace tamis::capi

using tamis::Status;
using namespace tamis::capi;

extern "C" {

int32_t tamis_backward_plan_create(tamis_backward_plan** plan, tamis_error* error) {
  return create("plan", plan, error);
}
void tamis_backward_plan_destroy(tamis_backward_plan* plan) { delete plan; }

void tamis_backward_options_init_sized(tamis_backward_options* options, uint64_t size) {
  init_struct<tamis_backward_options>(
      {.struct_size = 0, .bundle = nullptr, .slab_bytes = tamis::BackwardOptions{}.slab_bytes}, options,
      size);
}

int32_t tamis_plan_backward(const tamis_problem* problem, const tamis_index_set* index,
                            const tamis_backward_options* options, tamis_backward_plan* plan,
                            tamis_error* error) {
  return guarded(error, [&]() -> Status {
    TAMIS_RETURN_IF_ERROR(empty("plan", plan));
    return plan_c(problem, index, options, plan);
  });
}

int32_t tamis_backward_workspace_bytes(const tamis_backward_plan* plan,
                                       const tamis_input_gradients* gradients, int64_t* bytes,
                                       tamis_error* error) {
  return guarded(error, [&]() -> Status {
    tamis::GradientView g;
    TAMIS_RETURN_IF_ERROR(need_current(plan));
    TAMIS_RETURN_IF_ERROR(read_gradients(gradients, false, &g));
    if (bytes == nullptr) return tamis::invalid("bytes", "is NULL");
    for (const auto& [name, t] : {std::pair{"d_q", &g.d_q}, {"d_k", &g.d_k}, {"d_v", &g.d_v}})
      if (!t->present()) return tamis::invalid(name, "tensor is missing");
    *bytes = plan->plan->workspace_bytes(g);
    return {};
  });
}

int32_t tamis_run_backward(const tamis_backward_step* step, tamis_context* context,
                           tamis_backward_counters* counters, tamis_error* error) {
  return guarded(error, [&] { return run_c(step, context, counters); });
}

}  // extern "C"
