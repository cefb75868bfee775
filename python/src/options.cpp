#include "options.h"

#include <nanobind/stl/string.h>

#include <string>

#include "failure.h"

namespace tamis::python {

namespace nb = nanobind;

Options::Options(nb::dict from) {
  tamis_normalize_options_init(&normalize);
  tamis_bundle_options_init(&bundle);
  tamis_plan_options_init(&plan);
  tamis_cuda_plan_options_init(&cuda);
  cuda.plan = &plan;
  const struct {
    const char* name;
    int32_t* number;
  } small[] = {{"block", &normalize.block},
               {"ordering", &normalize.ordering},
               {"all_blocks", &normalize.all_blocks},
               {"bundle", &bundle.policy},
               {"neighbours", &bundle.neighbours},
               {"path", &plan.path},
               {"fallback", &plan.fallback},
               {"splits", &plan.splits},
               {"batch_invariant", &plan.batch_invariant},
               {"shares", &plan.shares},
               {"min_tiles", &plan.min_tiles},
               {"load", &cuda.load},
               {"ring", &cuda.ring},
               {"engine", &cuda.engine}};
  const struct {
    const char* name;
    int64_t* number;
  } large[] = {{"workspace_budget", &plan.workspace_budget},
               {"row_entries", &cuda.row_entries},
               {"max_kv_len", &cuda.max_kv_len}};
  for (auto [key, value] : from) {
    const std::string name = nb::cast<std::string>(key);
    bool known = name == "density";
    if (known) cuda.density = number_of<double>(name, value);
    for (const auto& s : small)
      if (name == s.name) known = true, *s.number = number_of<int32_t>(name, value);
    for (const auto& l : large)
      if (name == l.name) known = true, *l.number = number_of<int64_t>(name, value);
    if (!known) throw nb::key_error(name.c_str());
  }
  cuda.block = normalize.block;
}

}  // namespace tamis::python
