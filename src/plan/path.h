// Which path a plan takes, and why.
#pragma once

#include <string>

#include "tamis/plan.h"

namespace tamis {

struct PathChoice {
  Path path;
  std::string reason;  // empty where the path is the one asked for
};

// Every path computes the same thing; this only judges speed, from shapes and capacities.
Result<PathChoice> choose_path(const Problem& problem, const Shape& shape, const Capacities& capacities,
                               int32_t block, const PlanOptions& options);

}  // namespace tamis
