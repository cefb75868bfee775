// run(): checks that everything belongs together, then hands the step to the backend.
#include "kernels/cpu/run.h"
#include "core/checks.h"
#include "core/pool.h"
#include "core/source.h"
#include "tamis/attention.h"

namespace tamis {
namespace {

Status check_out(const OutView& out, const Shape& s) {
  const MutableTensorView &o = out.out, &lse = out.lse;
  if (!o.present()) return invalid("out", "tensor is missing");
  if (o.data == nullptr && o.elements() > 0) return invalid("out", "has elements but no memory");
  if (o.dtype != DType::kF32 && o.dtype != DType::kF16 && o.dtype != DType::kBF16)
    return invalid("out", "dtype ", dtype_name(o.dtype), " is not one of F32 F16 BF16");
  if (o.rank != 3 || o.shape[0] != s.total_q || o.shape[1] != s.q_heads || o.shape[2] != s.v_head_dim)
    return invalid("out", "shape is not [", s.total_q, ",", s.q_heads, ",", s.v_head_dim, "]");
  if (!lse.present()) return {};
  if (lse.data == nullptr && lse.elements() > 0) return invalid("lse", "has elements but no memory");
  if (lse.dtype != DType::kF32) return invalid("lse", "dtype ", dtype_name(lse.dtype), " is not F32");
  if (lse.rank != 2 || lse.shape[0] != s.total_q || lse.shape[1] != s.q_heads)
    return invalid("lse", "shape is not [", s.total_q, ",", s.q_heads, "]");
  return {};
}

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
