// Making a Plan: check, choose a path, choose how rows are split, size the workspace. Never touches an array.
#include "tamis/plan.h"

#include <algorithm>
#include <limits>

#include "core/checks.h"
#include "plan/path.h"
#include "plan/policy.h"
#include "plan/stamps.h"
#include "plan/workspace.h"

namespace tamis {
namespace {

constexpr int64_t kMostBlocks = std::numeric_limits<int32_t>::max();  // tasks hold 32-bit numbers
constexpr int64_t kMostSplits = int64_t{1} << 20;                     // as in explain

Status check_options(const PlanOptions& o) {
  if (o.backend == Backend::kReference)
    return {Code::kUnsupported, "backend: 'reference' knows no plans; 'cpu' and 'cuda' do"};
  if (o.splits < 0 || o.splits > kMostSplits)
    return invalid("splits", o.splits, " is outside 0 .. ", kMostSplits);
  if (o.shares < 0) return invalid("shares", o.shares, " is negative");
  if (o.min_tiles < 0) return invalid("min_tiles", o.min_tiles, " is negative");
  if (o.workspace_budget < -1) return invalid("workspace_budget", o.workspace_budget, " is below -1");
  return {};
}

Status check_capacities(const Capacities& c, int32_t block) {
  if (block != 16 && block != 32 && block != 64 && block != 128)
    return invalid("block", block, " is not 16, 32, 64 or 128");
  const struct {
    const char* name;
    int64_t value, most;
  } sizes[] = {
      {"requests", c.requests, kMostBlocks},
      {"queries", c.queries, kMostBlocks},
      {"rows", c.rows, kMostBlocks},
      {"entries", c.entries, std::numeric_limits<int64_t>::max()},
      {"row_entries", c.row_entries, kMostBlocks},
      {"group_rows", c.group_rows, kMostBlocks},
  };
  for (const auto& size : sizes)
    if (size.value < 0 || size.value > size.most)
      return invalid("capacities", size.name, " ", size.value, " is outside 0 .. ", size.most);
  return {};
}

SplitRule split_rule(const Problem& problem, const Shape& shape, int32_t block, int32_t tile,
                     const PlanOptions& o) {
  const Policy policy = policy_of(o.backend);
  const int64_t by_mode = o.batch_invariant ? policy.invariant_tiles : policy.min_tiles;
  const int64_t min_tiles = o.min_tiles > 0 ? o.min_tiles : by_mode;
  SplitRule rule{.split = split_of(o.backend, o.splits, o.batch_invariant),
                 .shares = o.shares > 0 ? o.shares : policy.shares,
                 .min_part = (min_tiles * tile + block - 1) / block,
                 .splits = o.splits};
  if (rule.split == Split::kInvariant) {
    const int64_t rows = std::min(problem.candidates.query_block, kMostBlocks) * shape.group;
    const int64_t longer = std::max<int64_t>(1, (rows + policy.piece_rows - 1) / policy.piece_rows);
    rule.min_part = std::min(rule.min_part, kMostBlocks) * std::min(longer, kMostBlocks);
  }
  rule.min_part = std::min(rule.min_part, kMostBlocks);
  return rule;
}

// Splits less where the budget asks for it and appends the reason.
Result<SplitRule> within_budget(const SplitRule& rule, const Capacities& capacities, const Shape& shape,
                                const PlanOptions& o, std::string* reason) {
  const int64_t needed = workspace_size(rule, capacities, shape).bound;
  if (o.workspace_budget < 0 || needed <= o.workspace_budget) return rule;
  const SplitRule less = fit_budget(rule, capacities, shape, o.workspace_budget);
  std::string what;
  if (rule.split == Split::kForced) {
    if (o.fallback == Fallback::kRefuse)
      return Status(Code::kWorkspaceTooSmall,
                    text("workspace_budget: ", rule.splits, " splits need ", needed, " bytes, the budget is ",
                         o.workspace_budget),
                    {.value = o.workspace_budget});
    what = text(less.splits, " splits instead of ", rule.splits);
  } else if (rule.split == Split::kInvariant) {
    what = text("pieces of ", less.min_part, " blocks instead of ", rule.min_part);
  } else {
    what = text(less.shares, " shares instead of ", rule.shares);
  }
  *reason += text(reason->empty() ? "" : "; ", what, " keep the workspace within ", o.workspace_budget,
                  " bytes, ", needed, " were needed");
  return less;
}

// What a plan may know of a shape: nothing that another step or another layer changes.
Shape lasting(Shape shape) {
  shape.requests = shape.total_q = shape.pages = shape.max_pages = shape.kv_rows = 0;
  shape.scale = 0;
  return shape;
}

}  // namespace

Result<Plan> make_plan(const Problem& problem, const Capacities& capacities, int32_t block,
                       const PlanOptions& options) {
  const Result<Shape> shape = describe(problem);
  TAMIS_RETURN_IF_ERROR(shape.status());
  TAMIS_RETURN_IF_ERROR(check_options(options));
  TAMIS_RETURN_IF_ERROR(check_capacities(capacities, block));
  Result<PathChoice> choice = choose_path(problem, *shape, capacities, block, options);
  TAMIS_RETURN_IF_ERROR(choice.status());
  // A tile holds whole blocks.
  const int32_t tile = std::max(policy_of(options.backend).tile, block);
  std::string reason = std::move(choice->reason);
  const Result<SplitRule> rule =
      within_budget(split_rule(problem, *shape, block, tile, options), capacities, *shape, options, &reason);
  TAMIS_RETURN_IF_ERROR(rule.status());
  return Plan{.backend = options.backend,
              .path = choice->path,
              .reason = std::move(reason),
              .block = block,
              .tile = tile,
              .splits = static_cast<int32_t>(rule->splits),
              .batch_invariant = options.batch_invariant,
              .shares = static_cast<int32_t>(rule->shares),
              .min_part = rule->min_part,
              .max_parts = most_parts(*rule, capacities.row_entries),
              .capacities = capacities,
              .shape = lasting(*shape),
              .workspace = workspace_size(*rule, capacities, *shape),
              .fingerprint = fingerprint(problem, *shape, block, options.backend)};
}

}  // namespace tamis
