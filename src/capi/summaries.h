// What a stage says about its result, C++ to C.
#pragma once

#include "tamis/attention.h"
#include "tamis/tamis_c.h"

namespace tamis::capi {

tamis_percentiles summary(const Percentiles& from);
tamis_index_summary summary(const IndexStats& from);
tamis_bundle_summary summary(const BundleStats& from);      // the count of bundles is 0
tamis_schedule_summary summary(const ScheduleStats& from);  // fingerprint and stamp are 0

}  // namespace tamis::capi
