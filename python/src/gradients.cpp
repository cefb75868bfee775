// Gradients on the host: tamis_c_backward.h. The index set is that of the forward's candidates, made anew
// from the same arrays: nothing is selected again.
#include <tamis/tamis_c_backward.h>

#include <memory>
#include <optional>

#include "contexts.h"
#include "handle.h"
#include "options.h"
#include "problem.h"
#include "stages.h"

namespace tamis::python {
namespace {

using BackwardPlanHandle =
    Handle<tamis_backward_plan, tamis_backward_plan_create, tamis_backward_plan_destroy>;

// `problem` holds d_out, and d_lse or none. Gradients are written in full, shaped as q, k and v.
void backward(const Problem& problem, nb::handle out, nb::handle lse, nb::handle d_q, nb::handle d_k,
              nb::handle d_v, nb::dict options, int threads) {
  const Options o(std::move(options));
  Array out_array(out, "out"), lse_array(lse, "lse");
  Array gradients[3] = {Array(d_q, "d_q"), Array(d_k, "d_k"), Array(d_v, "d_v")};
  const Place place = problem.place();
  if (place.device())
    refuse(TAMIS_UNSUPPORTED, "q", "lies on ", place_name(place),
           "; gradients are computed on the host only");
  const struct {
    Array* array;
    const char* name;
    bool written, joined;
  } all[] = {{&out_array, "out", false, problem.join_q},
             {&lse_array, "lse", false, problem.join_q},
             {&gradients[0], "d_q", true, problem.join_q},
             {&gradients[1], "d_k", true, problem.join_kv},
             {&gradients[2], "d_v", true, problem.join_kv}};
  for (const auto& [array, name, written, joined] : all) {
    if (!array->place.agrees(place))
      refuse_argument(name, "lies on ", place_name(array->place), ", q on ", place_name(place));
    if (written) array->check_written(name);
    if (joined) join(array, name, problem.c());
  }
  const tamis_input_gradients to{sizeof(tamis_input_gradients), &gradients[0].tensor, &gradients[1].tensor,
                                 &gradients[2].tensor};
  const Unlocked unlocked;
  Report report;
  const IndexHandle index;
  report.check(tamis_normalize(&problem.c(), &o.normalize, index.get(), report));
  const BackwardPlanHandle plan;
  report.check(tamis_plan_backward(&problem.c(), index.get(), nullptr, plan.get(), report));
  int64_t bytes = 0;
  report.check(tamis_backward_workspace_bytes(plan.get(), &to, &bytes, report));
  const auto workspace = std::make_unique<double[]>(static_cast<size_t>(bytes) / sizeof(double) + 1);
  const tamis_backward_step step{
      sizeof(tamis_backward_step), &problem.c(), plan.get(),      &lse_array.tensor,
      &out_array.tensor,           &to,          workspace.get(), static_cast<uint64_t>(bytes)};
  const Lease lease(threads);
  report.check(tamis_run_backward(&step, lease.context(), nullptr, report));
}

}  // namespace

void register_gradients(nb::module_& m) {
  m.def("backward", &backward, nb::arg("problem"), nb::arg("out"), nb::arg("lse"), nb::arg("d_q"),
        nb::arg("d_k"), nb::arg("d_v"), nb::arg("options"), nb::arg("threads"));
}

}  // namespace tamis::python
