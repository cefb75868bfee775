// How to go about a problem: options of all stages, from the dictionary that the front end makes. Numbers of
// enums are those of tamis_c.h.
#pragma once

#include <nanobind/nanobind.h>
#include <tamis/tamis_c_step.h>

namespace tamis::python {

struct Options {
  explicit Options(nanobind::dict from);
  Options(const Options&) = delete;

  tamis_normalize_options normalize;
  tamis_bundle_options bundle;
  tamis_plan_options plan;
  tamis_cuda_plan_options cuda;  // points at `plan`
};

}  // namespace tamis::python
