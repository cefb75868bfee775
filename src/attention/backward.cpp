// backward(): bundle, cut into tasks, look the kernels up, run. Nothing is selected here.
#include "tamis/backward.h"

#include <cstdint>

#include "core/clock.h"
#include "core/elements.h"
#include "core/pool.h"
#include "core/source.h"
#include "core/tensor_checks.h"
#include "kernels/cpu/backward_run.h"
#include "kernels/cpu/run.h"

namespace tamis {

struct BackwardPlan::Storage {
  Bundles bundles;
  cpu::BackwardWork work;
  Shape shape{};
  std::vector<int32_t> span_place;  // [spans] place in `touched`, -1
  std::vector<int64_t> touched;     // spans that some bundle reads
  uint64_t fingerprint = 0;

  index::PhysicalSpans spans() const { return {shape.page_size, cache_slots(shape)}; }
  cpu::BackwardLayout layout(const GradientView& gradients) const {
    return cpu::backward_layout(work, shape, spans(), static_cast<int64_t>(touched.size()), gradients);
  }
};

BackwardPlan::BackwardPlan() : storage_(std::make_unique<Storage>()) {}
BackwardPlan::~BackwardPlan() = default;
BackwardPlan::BackwardPlan(BackwardPlan&&) noexcept = default;
BackwardPlan& BackwardPlan::operator=(BackwardPlan&&) noexcept = default;

namespace {

constexpr int64_t kToLine = 63;  // a workspace may start anywhere

Status check_gradient(const char* name, const MutableTensorView& t, const TensorView& like, int64_t dim) {
  TAMIS_RETURN_IF_ERROR(need_tensor(name, t, kPlainFloats, like.rank));
  for (int axis = 0; axis < t.rank; ++axis) {
    const int64_t want = axis == t.rank - 1 ? dim : like.shape[axis];
    if (t.shape[axis] != want)
      return invalid(name, "extent ", t.shape[axis], " of axis ", axis, ", expected ", want);
  }
  return need_memory(name, t);
}

Status check_gradients(const GradientView& g, const Problem& p, const Shape& s) {
  TAMIS_RETURN_IF_ERROR(check_gradient("d_q", g.d_q, p.query.q, s.head_dim));
  TAMIS_RETURN_IF_ERROR(check_gradient("d_k", g.d_k, p.cache.k, s.head_dim));
  return check_gradient("d_v", g.d_v, p.cache.v, s.v_head_dim);
}

// describe() has judged the shapes of d_out and d_lse.
Status check_saved(const SavedForward& saved, const Problem& p, const Shape& s) {
  const TensorView &lse = saved.lse, &out = saved.out;
  if (!lse.present()) return invalid("lse", "tensor is missing, a backward needs the forward's");
  if (lse.dtype != DType::kF32 || lse.rank != 2 || lse.shape[0] != s.total_q || lse.shape[1] != s.q_heads)
    return invalid("lse", "is not F32 [", s.total_q, ",", s.q_heads, "]");
  TAMIS_RETURN_IF_ERROR(need_memory("lse", lse));
  if (out.present()) {
    TAMIS_RETURN_IF_ERROR(need_tensor("out", out, kPlainFloats, out.rank));
    if (out.rank != 3 || out.shape[0] != s.total_q || out.shape[1] != s.q_heads ||
        out.shape[2] != s.v_head_dim)
      return invalid("out", "shape is not [", s.total_q, ",", s.q_heads, ",", s.v_head_dim, "]");
    TAMIS_RETURN_IF_ERROR(need_memory("out", out));
  }
  const OutputGradients& g = p.gradients;
  if (!g.d_out.present()) return invalid("d_out", "tensor is missing, a backward needs it");
  TAMIS_RETURN_IF_ERROR(need_memory("d_out", g.d_out));
  return need_memory("d_lse", g.d_lse);
}

// What is wrong with the problem whoever asks; fills *shape.
Status check_problem(const Problem& problem, Shape* shape) {
  const Result<Shape> described = describe(problem);
  if (!described.ok()) return described.status();
  *shape = *described;
  if (shape->index_only) return invalid("q", "tensor is missing, an index-only problem has no values");
  TAMIS_RETURN_IF_ERROR(check_arrays(problem, *shape));
  return cpu::supports(problem, *shape);
}

// Numbers the physical spans that some bundle reads.
void number_spans(const BundleView& view, const index::PhysicalSpans& spans, BackwardPlan::Storage* plan) {
  plan->span_place.assign(spans.count(), -1);
  for (int64_t i = 0, n = view.entries == 0 ? 0 : view.span_begin[view.entries]; i < n; ++i)
    for (int64_t slot = view.spans[i].slot, end = slot + view.spans[i].length; slot < end;) {
      const int64_t span = spans.of(slot);
      if (plan->span_place[span] < 0) {
        plan->span_place[span] = static_cast<int32_t>(plan->touched.size());
        plan->touched.push_back(span);
      }
      slot = spans.first(span) + spans.length(span);
    }
}

Result<BackwardPlan> plan_unguarded(const Problem& problem, const IndexSet& index,
                                    const BackwardOptions& options) {
  BackwardPlan plan;
  BackwardPlan::Storage& s = plan.storage();
  TAMIS_RETURN_IF_ERROR(check_problem(problem, &s.shape));
  if (options.slab_bytes < 1) return invalid("slab_bytes", options.slab_bytes, " is below 1");
  if (index.view().source != source_stamp(problem, s.shape) || cache_slots(s.shape) < index.view().slots)
    return Status(Code::kStalePlan, "index: was made for other lengths, positions or sizes; normalize again");
  Result<Bundles> bundles = bundle(problem, index, options.bundle);
  if (!bundles.ok()) return bundles.status();
  s.bundles = std::move(*bundles);
  s.work =
      cpu::cut_backward(problem, s.shape, s.bundles.view(), cpu::store_sizes(s.shape), options.slab_bytes);
  number_spans(s.bundles.view(), s.spans(), &s);
  s.fingerprint = fingerprint(problem, s.shape, index.view().block, Backend::kCpu);
  return plan;
}

Status run_unguarded(const BackwardPlan& plan, const Problem& problem, const SavedForward& saved,
                     const GradientView& gradients, std::span<std::byte> workspace, Context& context,
                     BackwardCounters* counters) {
  Shape shape;
  TAMIS_RETURN_IF_ERROR(check_problem(problem, &shape));
  TAMIS_RETURN_IF_ERROR(check_values(problem));
  TAMIS_RETURN_IF_ERROR(check_saved(saved, problem, shape));
  TAMIS_RETURN_IF_ERROR(check_gradients(gradients, problem, shape));
  const BackwardPlan::Storage& s = plan.storage();
  const BundleView bundles = s.bundles.view();
  if (fingerprint(problem, shape, bundles.block, Backend::kCpu) != s.fingerprint ||
      source_stamp(problem, shape) != bundles.source || cache_slots(shape) != cache_slots(s.shape))
    return {Code::kStalePlan, "plan: was made for other lengths, positions or sizes; make it anew"};
  const index::PhysicalSpans spans = s.spans();
  const cpu::BackwardLayout layout = s.layout(gradients);
  const int64_t needed = layout.bytes + kToLine;
  if (static_cast<int64_t>(workspace.size()) < needed)
    return {Code::kWorkspaceTooSmall,
            text("workspace: ", workspace.size(), " bytes, ", needed, " are needed"),
            {.value = static_cast<int64_t>(workspace.size()), .limit = needed}};
  const cpu::Isa* isa = cpu::find_isa(context.isa().c_str());
  if (isa == nullptr) return {Code::kUnsupported, text("isa: '", context.isa(), "' is not available here")};
  const auto address = reinterpret_cast<uintptr_t>(workspace.data());
  const cpu::BackwardStep step{.problem = problem,
                               .shape = shape,
                               .bundles = bundles,
                               .work = s.work,
                               .spans = spans,
                               .span_place = s.span_place,
                               .touched = s.touched,
                               .saved = saved,
                               .gradients = gradients,
                               .layout = layout,
                               .workspace = workspace.data() + (64 - address % 64) % 64};
  return cpu::run_backward(step, *isa, context.pool(), counters);
}

}  // namespace

int64_t BackwardPlan::workspace_bytes(const GradientView& gradients) const {
  return storage_->layout(gradients).bytes + kToLine;
}

Result<BackwardPlan> plan_backward(const Problem& problem, const IndexSet& index,
                                   const BackwardOptions& options) {
  return guarded([&] { return plan_unguarded(problem, index, options); });
}

Status run_backward(const BackwardPlan& plan, const Problem& problem, const SavedForward& saved,
                    const GradientView& gradients, std::span<std::byte> workspace, Context& context,
                    BackwardCounters* counters) {
  return guarded(
      [&] { return run_unguarded(plan, problem, saved, gradients, workspace, context, counters); });
}

Status backward(const Problem& problem, const IndexSet& index, const SavedForward& saved,
                const BackwardOptions& options, const GradientView& gradients, Context& context,
                BackwardReport* report) {
  return guarded([&]() -> Status {
    const auto start = Clock::now();
    const Result<BackwardPlan> plan = plan_backward(problem, index, options);
    if (!plan.ok()) return plan.status();
    const double plan_us = microseconds_since(start);
    const int64_t bytes = plan->workspace_bytes(gradients);
    const std::unique_ptr<std::byte[]> workspace(new std::byte[static_cast<size_t>(bytes)]);
    BackwardCounters counters;
    TAMIS_RETURN_IF_ERROR(run_backward(*plan, problem, saved, gradients,
                                       {workspace.get(), static_cast<size_t>(bytes)}, context, &counters));
    if (report != nullptr)
      *report = {.counters = counters,
                 .workspace_bytes = bytes,
                 .plan_us = plan_us,
                 .total_us = microseconds_since(start)};
    return {};
  });
}

}  // namespace tamis
