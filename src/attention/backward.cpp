// backward(): bundle, cut into tasks, look the kernels up, run. Nothing is selected here.
#include "tamis/backward.h"

#include <chrono>
#include <cstdint>

#include "core/checks.h"
#include "core/pool.h"
#include "core/source.h"
#include "kernels/cpu/backward_run.h"
#include "kernels/cpu/run.h"

namespace tamis {

struct BackwardPlan::Storage {
  Bundles bundles;
  cpu::BackwardWork work;
  Shape shape{};
  std::vector<int32_t> span_place;  // [spans] place among the touched ones, -1
  int64_t touched = 0;
  uint64_t fingerprint = 0;

  index::PhysicalSpans spans() const { return {shape.page_size, cache_slots(shape)}; }
};

BackwardPlan::BackwardPlan() : storage_(std::make_unique<Storage>()) {}
BackwardPlan::~BackwardPlan() = default;
BackwardPlan::BackwardPlan(BackwardPlan&&) noexcept = default;
BackwardPlan& BackwardPlan::operator=(BackwardPlan&&) noexcept = default;

namespace {

using Clock = std::chrono::steady_clock;

double microseconds(Clock::time_point from) {
  return std::chrono::duration<double, std::micro>(Clock::now() - from).count();
}

Status check_gradient(const char* name, const MutableTensorView& t, const TensorView& like, int64_t dim) {
  if (!t.present()) return invalid(name, "tensor is missing");
  if (t.dtype != DType::kF32 && t.dtype != DType::kF16 && t.dtype != DType::kBF16)
    return invalid(name, "dtype ", dtype_name(t.dtype), " is not one of F32 F16 BF16");
  if (t.rank != like.rank) return invalid(name, "rank ", t.rank, ", expected ", like.rank);
  for (int axis = 0; axis < t.rank; ++axis) {
    const int64_t want = axis == t.rank - 1 ? dim : like.shape[axis];
    if (t.shape[axis] != want)
      return invalid(name, "extent ", t.shape[axis], " of axis ", axis, ", expected ", want);
  }
  if (t.data == nullptr && t.elements() > 0) return invalid(name, "has elements but no memory");
  return {};
}

Status check_gradients(const GradientView& g, const Problem& p, const Shape& s) {
  TAMIS_RETURN_IF_ERROR(check_gradient("d_q", g.d_q, p.query.q, s.head_dim));
  TAMIS_RETURN_IF_ERROR(check_gradient("d_k", g.d_k, p.cache.k, s.head_dim));
  return check_gradient("d_v", g.d_v, p.cache.v, s.v_head_dim);
}

Status check_saved(const SavedForward& saved, const Problem& p, const Shape& s) {
  const TensorView &lse = saved.lse, &out = saved.out;
  if (!lse.present()) return invalid("lse", "tensor is missing, a backward needs the forward's");
  if (lse.dtype != DType::kF32 || lse.rank != 2 || lse.shape[0] != s.total_q || lse.shape[1] != s.q_heads)
    return invalid("lse", "is not F32 [", s.total_q, ",", s.q_heads, "]");
  if (lse.data == nullptr && lse.elements() > 0) return invalid("lse", "has elements but no memory");
  if (out.present()) {
    if (out.dtype != DType::kF32 && out.dtype != DType::kF16 && out.dtype != DType::kBF16)
      return invalid("out", "dtype ", dtype_name(out.dtype), " is not one of F32 F16 BF16");
    if (out.rank != 3 || out.shape[0] != s.total_q || out.shape[1] != s.q_heads ||
        out.shape[2] != s.v_head_dim)
      return invalid("out", "shape is not [", s.total_q, ",", s.q_heads, ",", s.v_head_dim, "]");
    if (out.data == nullptr && out.elements() > 0) return invalid("out", "has elements but no memory");
  }
  const OutputGradients& g = p.gradients;
  if (!g.d_out.present()) return invalid("d_out", "tensor is missing, a backward needs it");
  if (g.d_out.data == nullptr && g.d_out.elements() > 0)
    return invalid("d_out", "has elements but no memory");
  if (g.d_lse.present() && g.d_lse.data == nullptr && g.d_lse.elements() > 0)
    return invalid("d_lse", "has elements but no memory");
  return {};
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
      if (plan->span_place[span] < 0) plan->span_place[span] = static_cast<int32_t>(plan->touched++);
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
  const cpu::BackwardLayout layout = cpu::backward_layout(s.work, shape, spans, s.touched, gradients);
  const int64_t needed = plan.workspace_bytes(gradients);
  if (static_cast<int64_t>(workspace.size()) < needed)
    return {Code::kWorkspaceTooSmall,
            text("workspace: ", workspace.size(), " bytes, ", needed, " are needed"),
            {.value = static_cast<int64_t>(workspace.size()), .limit = needed}};
  const cpu::Isa* isa = cpu::find_isa(context.isa().c_str());
  if (isa == nullptr) return {Code::kUnsupported, text("isa: '", context.isa(), "' is not available here")};
  const auto address = reinterpret_cast<uintptr_t>(workspace.data());
  const cpu::BackwardStep step{
      problem,      shape, bundles,   s.work, spans,
      s.span_place, saved, gradients, layout, workspace.data() + (64 - address % 64) % 64};
  return cpu::run_backward(step, *isa, context.pool(), counters);
}

}  // namespace

int64_t BackwardPlan::workspace_bytes(const GradientView& gradients) const {
  constexpr int64_t to_line = 63;  // the workspace may start anywhere
  return cpu::backward_layout(storage_->work, storage_->shape, storage_->spans(), storage_->touched,
                              gradients)
             .bytes +
         to_line;
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
    const double plan_us = microseconds(start);
    const int64_t bytes = plan->workspace_bytes(gradients);
    const std::unique_ptr<std::byte[]> workspace(new std::byte[static_cast<size_t>(bytes)]);
    BackwardCounters counters;
    TAMIS_RETURN_IF_ERROR(run_backward(*plan, problem, saved, gradients,
                                       {workspace.get(), static_cast<size_t>(bytes)}, context, &counters));
    if (report != nullptr)
      *report = {.counters = counters,
                 .workspace_bytes = bytes,
                 .plan_us = plan_us,
                 .total_us = microseconds(start)};
    return {};
  });
}

}  // namespace tamis
