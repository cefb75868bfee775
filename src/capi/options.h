// Options of the stages, C to C++. NULL stands for the defaults.
#pragma once

#include "tamis/attention.h"
#include "tamis/tamis_c.h"

namespace tamis::capi {

Status read_options(const tamis_normalize_options* from, NormalizeOptions* to);
Status read_options(const tamis_bundle_options* from, BundleOptions* to);
Status read_options(const tamis_plan_options* from, PlanOptions* to);
Status read_options(const tamis_forward_options* from, ForwardOptions* to);

}  // namespace tamis::capi
