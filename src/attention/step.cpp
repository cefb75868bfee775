// normalize, schedule and run of a device step: checks, kernel arguments, launches. Nothing else.
#include <cuda_runtime_api.h>

#include "attention/check_out.h"
#include "attention/step_args.h"
#include "core/checks.h"
#include "core/launch.h"

namespace tamis::cuda {
namespace {

Status stale(const char* what) { return {Code::kStalePlan, text("plan: ", what, "; make it anew")}; }

// The problem is the one the plan was made for, as far as extents and dtypes tell.
Result<Shape> check_problem(const StepPlan& plan, const Problem& p) {
  Result<Shape> shape = describe(p);
  if (!shape.ok()) return shape;
  TAMIS_RETURN_IF_ERROR(supports(p, *shape));
  TAMIS_RETURN_IF_ERROR(check_memory(p));
  if (plan.plan.backend != Backend::kCuda) return stale("is not one of plan_step");
  if (fingerprint(p, *shape, plan.plan.block, Backend::kCuda) != plan.plan.fingerprint)
    return stale("was made for another shape than this problem's");
  const Capacities& most = plan.plan.capacities;
  if (shape->requests > most.requests || shape->total_q > most.queries)
    return Status(Code::kCapacityExceeded,
                  text("q: ", shape->total_q, " queries of ", shape->requests, " requests, the plan holds ",
                       most.queries, " of ", most.requests),
                  {.value = shape->total_q, .limit = most.queries + 1});
  if ((p.candidates.form == CandidateForm::kAll) != plan.every_token)
    return stale("was made for another form of candidates");
  if (p.candidates.query_block != plan.query_block) return stale("was made for other query blocks");
  if (plan.load == Load::kBlocks && blocks_overflow(*shape, plan.plan.block))
    return stale("was made for a cache of fewer blocks");
  return shape;
}

// What normalize and run ask for before they launch anything.
Status check_normalize(const StepPlan& plan, const Problem& problem) {
  const CandidateView& c = problem.candidates;
  if (rows_of(plan, c) > plan.plan.capacities.rows)
    return {Code::kCapacityExceeded,
            text("cand_indices: more rows than the plan's ", plan.plan.capacities.rows)};
  if (plan.places.an_entry > 0 && c.indices.shape[0] > plan.places.listed)
    return {Code::kCapacityExceeded,
            text("cand_indices: ", c.indices.shape[0], " entries, the plan holds ", plan.places.listed),
            {.value = c.indices.shape[0], .limit = plan.places.listed + 1}};
  return {};
}

Status check_run(const Problem& problem, const Shape& shape, const OutView& out) {
  TAMIS_RETURN_IF_ERROR(check_out(out, shape, false));
  TAMIS_RETURN_IF_ERROR(supports(out));
  return check_values(problem);
}

Status launch_normalize(const StepPlan& plan, const Problem& problem, const Shape& shape,
                        const StepBuffers& buffers, Stream stream) {
  const index::NormalizeShared shared = shared_of(plan, problem.candidates);
  return index::launch_normalize(normalize_args(plan, problem, shape, buffers, shared), shared, stream);
}

Status launch_run(const StepPlan& plan, const Problem& problem, const Shape& shape, const OutView& out,
                  const StepBuffers& buffers, Stream stream, StepCounters* counters) {
  if (plan.engine == Engine::kPrefill) {
    const PrefillKey key = prefill_key(problem, shape);
    PrefillArgs args = prefill_args(plan, problem, shape, out, buffers, counters);
    TAMIS_RETURN_IF_ERROR(describe_maps(shape_of_side(plan, shape), key, &args));
    return launch_prefill(key, args, stream);
  }
  return launch_decode({.dtype = problem.query.q.dtype,
                        .dim = padded_dim(shape.head_dim, shape.v_head_dim),
                        .columns = plan.columns,
                        .many = plan.plan.capacities.group_rows > shape.group || plan.lists > 1,
                        .ring = plan.ring},
                       decode_args(plan, problem, shape, out, buffers, counters),
                       {.tasks = plan.tasks, .column_tiles = plan.column_tiles}, stream);
}

}  // namespace

Status clear(const StepPlan& plan, const StepBuffers& buffers, Stream stream) {
  TAMIS_RETURN_IF_ERROR(check_buffers(plan, buffers));
  return device::cuda_status(cudaMemsetAsync(buffers.control, 0, static_cast<size_t>(plan.bytes.control),
                                             static_cast<cudaStream_t>(stream)),
                             "clear");
}

Status normalize(const StepPlan& plan, const Problem& problem, const StepBuffers& buffers, Stream stream) {
  const Result<Shape> shape = check_problem(plan, problem);
  if (!shape.ok()) return shape.status();
  TAMIS_RETURN_IF_ERROR(check_buffers(plan, buffers));
  TAMIS_RETURN_IF_ERROR(check_normalize(plan, problem));
  return launch_normalize(plan, problem, *shape, buffers, stream);
}

Status schedule(const StepPlan& plan, const StepBuffers& buffers, Stream stream) {
  TAMIS_RETURN_IF_ERROR(check_buffers(plan, buffers));
  return launch_schedule(schedule_args(plan, buffers), stream);
}

Status run(const StepPlan& plan, const Problem& problem, const OutView& out, const StepBuffers& buffers,
           Stream stream, StepCounters* counters) {
  const Result<Shape> shape = check_problem(plan, problem);
  if (!shape.ok()) return shape.status();
  TAMIS_RETURN_IF_ERROR(check_run(problem, *shape, out));
  TAMIS_RETURN_IF_ERROR(check_buffers(plan, buffers));
  return launch_run(plan, problem, *shape, out, buffers, stream, counters);
}

// Checks everything that the host can see once, and before anything is launched or captured. What a launch
// refuses comes in between (cuda.h).
Status step(const StepPlan& plan, const Problem& problem, const OutView& out, const StepBuffers& buffers,
            Stream stream, StepCounters* counters) {
  const Result<Shape> shape = check_problem(plan, problem);
  if (!shape.ok()) return shape.status();
  TAMIS_RETURN_IF_ERROR(check_buffers(plan, buffers));
  TAMIS_RETURN_IF_ERROR(check_normalize(plan, problem));
  TAMIS_RETURN_IF_ERROR(check_run(problem, *shape, out));
  TAMIS_RETURN_IF_ERROR(launch_normalize(plan, problem, *shape, buffers, stream));
  TAMIS_RETURN_IF_ERROR(launch_schedule(schedule_args(plan, buffers), stream));
  return launch_run(plan, problem, *shape, out, buffers, stream, counters);
}

}  // namespace tamis::cuda
