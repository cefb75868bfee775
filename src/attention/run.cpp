// run(): checks that everything belongs together, then hands the step to the backend.
#include "kernels/cpu/run.h"
#include "attention/check_out.h"
#include "core/checks.h"
#include "core/pool.h"
#include "core/source.h"
#include "tamis/attention.h"

namespace tamis {
namespace {

Status check_stamps(const Plan& plan, const Problem& problem, const Shape& shape, const BundleView& bundles,
                    const Schedule& schedule) {
  const auto stale = [](const char* what) {
    return Status(Code::kStalePlan, text("plan: ", what, "; make it anew"));
  };
  if (fingerprint(problem, shape, plan.block, plan.backend) != plan.fingerprint)
    return stale("was made for another shape than this problem's");
  if (schedule.fingerprint != plan.fingerprint) return stale("the schedule was made by another plan");
  if (bundles.block != plan.block) return stale("the bundles have another block size");
  if (bundles.source != source_stamp(problem, shape))
    return stale("the bundles were made for other lengths, positions or sizes");
  if (cache_slots(shape) < bundles.slots) return stale("the cache has shrunk since the bundles were made");
  if (schedule_stamp(bundles) != schedule.stamp) return stale("the schedule was made for other bundles");
  return {};
}

}  // namespace

Status run(const Plan& plan, const Problem& problem, const BundleView& bundles, const Schedule& schedule,
           const OutView& out, std::span<std::byte> workspace, Context& context, RunCounters* counters) {
  const Result<Shape> shape = describe(problem);
  if (!shape.ok()) return shape.status();
  if (shape->index_only) return invalid("q", "tensor is missing, an index-only problem has no values");
  if (plan.backend != Backend::kCpu)
    return {Code::kUnsupported,
            text("backend: run serves cpu, the plan is for ", backend_name(plan.backend))};
  TAMIS_RETURN_IF_ERROR(check_arrays(problem, *shape));
  TAMIS_RETURN_IF_ERROR(check_values(problem));
  TAMIS_RETURN_IF_ERROR(check_out(out, *shape));
  TAMIS_RETURN_IF_ERROR(cpu::supports(problem, *shape));
  TAMIS_RETURN_IF_ERROR(check_stamps(plan, problem, *shape, bundles, schedule));
  const int64_t needed = partial_bytes(plan, schedule);
  if (static_cast<int64_t>(workspace.size()) < needed)
    return {Code::kWorkspaceTooSmall,
            text("workspace: ", workspace.size(), " bytes, ", needed, " are needed"),
            {.value = static_cast<int64_t>(workspace.size()), .limit = needed}};
  if (reinterpret_cast<uintptr_t>(workspace.data()) % alignof(float) != 0)
    return invalid("workspace", "does not start on a multiple of ", alignof(float), " bytes");
  const cpu::Isa* isa = cpu::find_isa(context.isa().c_str());
  if (isa == nullptr) return {Code::kUnsupported, text("isa: '", context.isa(), "' is not available here")};
  const cpu::Step step{plan, problem, *shape, bundles, schedule, out, workspace.data()};
  return cpu::run(step, *isa, context.pool(), counters);
}

}  // namespace tamis
