#include "capi/options.h"

#include "capi/numbers.h"
#include "capi/structs.h"

namespace tamis::capi {
namespace {

tamis_normalize_options defaults(const NormalizeOptions& o) {
  return {.struct_size = sizeof(tamis_normalize_options),
          .block = o.block,
          .ordering = static_cast<int32_t>(o.ordering),
          .all_blocks = o.all_blocks,
          .reserved = 0};
}

tamis_bundle_options defaults(const BundleOptions& o) {
  return {.struct_size = sizeof(tamis_bundle_options),
          .policy = static_cast<int32_t>(o.policy),
          .neighbours = o.neighbours};
}

tamis_plan_options defaults(const PlanOptions& o) {
  return {.struct_size = sizeof(tamis_plan_options),
          .backend = static_cast<int32_t>(o.backend),
          .path = static_cast<int32_t>(o.path),
          .fallback = static_cast<int32_t>(o.fallback),
          .splits = o.splits,
          .batch_invariant = o.batch_invariant,
          .shares = o.shares,
          .min_tiles = o.min_tiles,
          .reserved = 0,
          .workspace_budget = o.workspace_budget};
}

}  // namespace

Status read_options(const tamis_normalize_options* from, NormalizeOptions* to) {
  if (from == nullptr) return {};
  tamis_normalize_options o = defaults(NormalizeOptions{});
  TAMIS_RETURN_IF_ERROR(read_struct("normalize_options", from, &o));
  TAMIS_RETURN_IF_ERROR(check_reserved("normalize_options", o.reserved));
  to->block = o.block;
  TAMIS_RETURN_IF_ERROR(read_enum("ordering", o.ordering, Ordering::kHash, &to->ordering));
  return read_flag("all_blocks", o.all_blocks, &to->all_blocks);
}

Status read_options(const tamis_bundle_options* from, BundleOptions* to) {
  if (from == nullptr) return {};
  tamis_bundle_options o = defaults(BundleOptions{});
  TAMIS_RETURN_IF_ERROR(read_struct("bundle_options", from, &o));
  to->neighbours = o.neighbours;
  return read_enum("policy", o.policy, BundlePolicy::kNeighbours, &to->policy);
}

Status read_options(const tamis_plan_options* from, PlanOptions* to) {
  if (from == nullptr) return {};
  tamis_plan_options o = defaults(PlanOptions{});
  TAMIS_RETURN_IF_ERROR(read_struct("plan_options", from, &o));
  TAMIS_RETURN_IF_ERROR(check_reserved("plan_options", o.reserved));
  TAMIS_RETURN_IF_ERROR(read_enum("backend", o.backend, Backend::kCuda, &to->backend));
  TAMIS_RETURN_IF_ERROR(read_enum("path", o.path, Path::kDense, &to->path));
  TAMIS_RETURN_IF_ERROR(read_enum("fallback", o.fallback, Fallback::kRefuse, &to->fallback));
  TAMIS_RETURN_IF_ERROR(read_flag("batch_invariant", o.batch_invariant, &to->batch_invariant));
  to->splits = o.splits;
  to->shares = o.shares;
  to->min_tiles = o.min_tiles;
  to->workspace_budget = o.workspace_budget;
  return {};
}

Status read_options(const tamis_forward_options* from, ForwardOptions* to) {
  if (from == nullptr) return {};
  tamis_forward_options o{};
  TAMIS_RETURN_IF_ERROR(read_struct("forward_options", from, &o));
  TAMIS_RETURN_IF_ERROR(read_options(o.normalize, &to->normalize));
  TAMIS_RETURN_IF_ERROR(read_options(o.bundle, &to->bundle));
  return read_options(o.plan, &to->plan);
}

}  // namespace tamis::capi

extern "C" {

void tamis_normalize_options_init_sized(tamis_normalize_options* options, uint64_t size) {
  tamis::capi::init_struct(tamis::capi::defaults(tamis::NormalizeOptions{}), options, size);
}

void tamis_bundle_options_init_sized(tamis_bundle_options* options, uint64_t size) {
  tamis::capi::init_struct(tamis::capi::defaults(tamis::BundleOptions{}), options, size);
}

void tamis_plan_options_init_sized(tamis_plan_options* options, uint64_t size) {
  tamis::capi::init_struct(tamis::capi::defaults(tamis::PlanOptions{}), options, size);
}

}  // extern "C"
