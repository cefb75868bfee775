// Whether bundles belong to a plan and fit into it.
#pragma once

#include "tamis/plan.h"

namespace tamis {

// stale_plan where block size or heads are not the plan's; capacity_exceeded naming the capacity, the number
// and the limit where the bundles outgrow it. Never cut to fit.
Status check_fit(const Plan& plan, const BundleView& bundles);

}  // namespace tamis
