// forward(): normalize -> bundle -> plan -> schedule -> run. Nothing else.
#include "attention/check_out.h"
#include "core/checks.h"
#include "core/clock.h"
#include "kernels/cpu/run.h"
#include "tamis/attention.h"

namespace tamis {
namespace {

// The left half of the line: what `run` needs beside the problem.
struct Prepared {
  IndexSet index;
  Bundles bundles;
  Plan plan;
  Schedule schedule;
  double normalize_us = 0, plan_us = 0;
};

Result<Prepared> prepare(const Problem& problem, const ForwardOptions& options) {
  Prepared p;
  NormalizeOptions normalize_options = options.normalize;
  PlanOptions plan_options = options.plan;
  BundleOptions bundle_options = options.bundle;
  std::string reason;
  if (plan_options.batch_invariant) {
    // What `auto` measures is the whole batch, so a neighbour could change a row's bits: shapes decide
    // instead.
    if (bundle_options.policy == BundlePolicy::kAuto) bundle_options.policy = BundlePolicy::kHeads;
    if (plan_options.path == Path::kAuto) {
      plan_options.path = problem.candidates.form == CandidateForm::kAll ? Path::kDense : Path::kDirect;
      reason = "batch_invariant: the path follows from the form of the candidates alone";
    }
  }
  normalize_options.all_blocks =
      plan_options.path == Path::kDense ||
      (plan_options.path == Path::kAuto && problem.candidates.form == CandidateForm::kAll);
  for (;;) {
    const auto start = Clock::now();
    TAMIS_RETURN_IF_ERROR(normalize_into(problem, normalize_options, &p.index));
    const auto normalized = Clock::now();
    Result<Bundles> bundles = bundle(problem, p.index, bundle_options);
    if (!bundles.ok()) return bundles.status();
    p.bundles = std::move(*bundles);
    const Capacities capacities = capacities_of(problem, p.bundles.view());
    Result<Plan> plan = make_plan(problem, capacities, p.index.view().block, plan_options);
    if (!plan.ok()) return plan.status();
    p.plan = std::move(*plan);
    p.normalize_us += microseconds(start, normalized);
    p.plan_us += microseconds_since(normalized);
    if (normalize_options.all_blocks || p.plan.path != Path::kDense) break;
    // The plan turned to the dense path, which wants every block; the sets stay what they are.
    normalize_options.all_blocks = true;
    plan_options.path = Path::kDense;
    reason = std::move(p.plan.reason);
  }
  if (!reason.empty()) p.plan.reason = reason + (p.plan.reason.empty() ? "" : "; ") + p.plan.reason;
  const auto planned = Clock::now();
  Result<Schedule> made = schedule(p.plan, p.bundles.view());
  if (!made.ok()) return made.status();
  p.schedule = std::move(*made);
  p.plan_us += microseconds_since(planned);
  return p;
}

}  // namespace

namespace {

Status forward_unguarded(const Problem& problem, const ForwardOptions& options, const OutView& out,
                         Context& context, ForwardReport* report, IndexSet* index) {
  const auto start = Clock::now();
  const Result<Shape> shape = describe(problem);
  if (!shape.ok()) return shape.status();
  if (shape->index_only) return invalid("q", "tensor is missing, an index-only problem has no values");
  // Arguments are judged before candidates.
  TAMIS_RETURN_IF_ERROR(check_out(out, *shape));
  TAMIS_RETURN_IF_ERROR(cpu::supports(problem, *shape));
  Result<Prepared> prepared = prepare(problem, options);
  if (!prepared.ok()) return prepared.status();
  Prepared& p = *prepared;

  std::vector<std::byte> workspace(partial_bytes(p.plan, p.schedule));
  RunCounters counters;
  TAMIS_RETURN_IF_ERROR(
      run(p.plan, problem, p.bundles.view(), p.schedule, out, workspace, context, &counters));
  if (report != nullptr)
    *report = {.path = p.plan.path,
               .reason = p.plan.reason,
               .block = p.plan.block,
               .tile = p.plan.tile,
               .index = p.index.stats(),
               .bundles = p.bundles.stats(),
               .schedule = p.schedule.stats,
               .counters = counters,
               .normalize_us = p.normalize_us,
               .plan_us = p.plan_us,
               .total_us = microseconds_since(start)};
  if (index != nullptr) *index = std::move(p.index);
  return {};
}

}  // namespace

Status forward(const Problem& problem, const ForwardOptions& options, const OutView& out, Context& context,
               ForwardReport* report, IndexSet* index) {
  return guarded([&] { return forward_unguarded(problem, options, out, context, report, index); });
}

}  // namespace tamis
