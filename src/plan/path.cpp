#include "plan/path.h"

#include <cmath>

#include "core/checks.h"
#include "plan/policy.h"

namespace tamis {
namespace {

// Blocks that a request can hold at most, as far as shapes tell; 0: they do not.
double blocks_of_request(const Shape& shape, int32_t block) {
  if (shape.page_size > 0) return std::ceil(static_cast<double>(shape.max_pages * shape.page_size) / block);
  if (shape.requests == 0) return 0;
  return std::ceil(static_cast<double>(shape.kv_rows) / static_cast<double>(shape.requests) / block);
}

// There are no more bundles than rows, so blocks per row understate blocks per bundle: dense is taken only
// where the lists are surely that long.
PathChoice choose_auto(const Problem& problem, const Shape& shape, const Capacities& capacities,
                       int32_t block, double dense_share) {
  if (problem.candidates.form == CandidateForm::kAll)
    return {Path::kDense, "auto: every token is a candidate"};
  const double all = blocks_of_request(shape, block) * static_cast<double>(capacities.rows);
  if (all <= 0) return {Path::kDirect, "auto: the number of all blocks is not known"};
  const double share = static_cast<double>(capacities.entries) / all;
  // In whole percents, but where that would round a share down to the edge that it is above.
  const double rounded = std::round(share * 100);
  const double shown = share > dense_share && rounded <= dense_share * 100 ? share * 100 : rounded;
  const std::string found = text("auto: bundles hold at least ", shown, " % of all blocks, ");
  if (share > dense_share) return {Path::kDense, text(found, "more than ", dense_share * 100, " %")};
  return {Path::kDirect, text(found, "dense is taken above ", dense_share * 100, " %")};
}

}  // namespace

const char* path_name(Path path) {
  switch (path) {
    case Path::kAuto:
      return "auto";
    case Path::kDirect:
      return "direct";
    case Path::kGather:
      return "gather";
    case Path::kDense:
      return "dense";
  }
  return "unknown";
}

Result<PathChoice> choose_path(const Problem& problem, const Shape& shape, const Capacities& capacities,
                               int32_t block, const PlanOptions& options) {
  switch (options.path) {
    case Path::kDirect:
    case Path::kDense:
      return PathChoice{options.path, {}};
    case Path::kGather:
      if (options.fallback == Fallback::kRefuse)
        return Status(Code::kUnsupported, "path: 'gather' is not built; 'direct' and 'dense' are");
      return PathChoice{Path::kDirect, "path 'gather' is not built: direct computes the same"};
    case Path::kAuto:
      return choose_auto(problem, shape, capacities, block, policy_of(options.backend).dense_share);
  }
  return invalid("path", static_cast<int>(options.path), " is none of auto, direct, gather, dense");
}

}  // namespace tamis
