// What the two backends, case files and gradients register.
#pragma once

#include <nanobind/nanobind.h>

namespace tamis::python {

void register_host(nanobind::module_& m);
void register_device(nanobind::module_& m);
void register_gradients(nanobind::module_& m);
void register_cases(nanobind::module_& m);

}  // namespace tamis::python
