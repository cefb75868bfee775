// The module tamis._core: the C interface for the Python front end in python/tamis. Nothing in it is public.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <tamis/tamis_c.h>

#include "array.h"
#include "failure.h"
#include "problem.h"
#include "stages.h"

namespace tamis::python {
namespace {

nb::dict build_info() {
  nb::dict d;
  d["version"] = tamis_version();
  d["abi"] = tamis_abi_version();
  tamis_cuda_info cuda{};
  cuda.struct_size = sizeof cuda;
  Report ignored;
  tamis_cuda_status(0, &cuda, ignored);
  d["cuda"] = cuda.built_with_cuda != 0;
  d["devices"] = cuda.devices;
  tamis_case* none = nullptr;
  const int32_t read = tamis_read_case("", &none, nullptr);
  tamis_case_free(none);
  d["case_files"] = read != TAMIS_UNSUPPORTED;
  const char* names[16] = {};
  int64_t count = 0;
  tamis_cpu_isas(names, 16, &count, nullptr);
  nb::list isas;
  for (int64_t i = 0; i < count; ++i) isas.append(names[i]);
  d["cpu_isas"] = nb::tuple(isas);
  return d;
}

}  // namespace
}  // namespace tamis::python

NB_MODULE(_core, m) {
  using namespace tamis::python;
  m.doc() = "The C interface of Tamis; use the package tamis.";
  // Whoever keeps a module's globals alive to the end of the process (torch.compile does) keeps plans and
  // sets in them: no leak of ours.
  nb::set_leak_warnings(false);
  register_failures(m);
  register_arrays(m);
  register_problem(m);
  register_host(m);
  register_device(m);
  register_gradients(m);
  register_cases(m);
  m.def(
      "build_info", &build_info, nb::sig("def build_info() -> dict[str, object]"),
      "What this build of Tamis is and has.\n\n"
      "Returns a dictionary: `version`; `abi`, of the C interface; `cuda`, whether it has code for devices;\n"
      "`devices`, how many are there; `case_files`, whether it reads and writes them; `cpu_isas`, the\n"
      "instruction sets it can use here, widest first.");
}
