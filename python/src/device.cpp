// The step on a CUDA device. Nothing here allocates on the device, and only `poll` waits for it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "handle.h"
#include "options.h"
#include "problem.h"
#include "stages.h"

namespace tamis::python {
namespace {

// Launches go to the current device of the thread; it is put back afterwards.
class OnDevice {
 public:
  explicit OnDevice(int32_t device) {
    Report report;
    report.check(tamis_cuda_use_device(device, &previous_, report));
    changed_ = previous_ != device;
  }
  ~OnDevice() {
    if (changed_) tamis_cuda_use_device(previous_, nullptr, nullptr);
  }
  OnDevice(const OnDevice&) = delete;

 private:
  int32_t previous_ = 0;
  bool changed_ = false;
};

class DevicePlan {
 public:
  DevicePlan(const Problem& problem, nb::dict options) {
    const Options o(std::move(options));
    Report report;
    report.check(tamis_cuda_plan_make(&problem.c(), &o.cuda, handle.get(), report));
    sizes.struct_size = sizeof sizes;
    report.check(tamis_cuda_plan_sizes(handle.get(), &sizes, report));
  }

  nb::dict info() const {
    Report report;
    tamis_cuda_plan_summary s{};
    s.struct_size = sizeof s;
    report.check(tamis_cuda_plan_info(handle.get(), &s, report));
    nb::dict d;
    d["kernel"] = s.kernel;
    d["reason"] = s.reason;
    d["path"] = s.path;
    d["load"] = s.load_name;
    d["block"] = s.block;
    d["tasks"] = s.tasks;
    d["parts"] = s.parts;
    d["row_entries"] = s.row_entries;
    d["max_kv_len"] = s.max_kv_len;
    d["fingerprint"] = s.fingerprint;
    return d;
  }

  CudaPlanHandle handle;
  tamis_cuda_sizes sizes{};
};

// A plan, the lists of a problem, and the three buffers. The memory is the caller's: `owners` keeps it.
class DeviceStep {
 public:
  DeviceStep(nb::object plan, const Problem& from, nb::tuple addresses, nb::tuple bytes, int32_t device,
             nb::object owners)
      : problem_(from),
        plan_object_(std::move(plan)),
        owners_(std::move(owners)),
        plan_(nb::cast<const DevicePlan&>(plan_object_).handle.get()),
        device_(device) {
    const auto address = [&](int i) { return reinterpret_cast<void*>(nb::cast<uintptr_t>(addresses[i])); };
    const auto size = [&](int i) { return nb::cast<int64_t>(bytes[i]); };
    buffers_ = {sizeof buffers_, address(0), address(1), address(2), size(0), size(1), size(2)};
  }

  void clear(uintptr_t stream) {
    const OnDevice on(device_);
    Report report;
    report.check(tamis_cuda_clear(plan_, &buffers_, pointer(stream), report));
  }
  void normalize(uintptr_t stream) {
    const OnDevice on(device_);
    Report report;
    report.check(tamis_cuda_normalize(plan_, &problem_.c(), &buffers_, pointer(stream), report));
  }
  void schedule(uintptr_t stream) {
    const OnDevice on(device_);
    Report report;
    report.check(tamis_cuda_schedule(plan_, &buffers_, pointer(stream), report));
  }

  // `stream` None: the one that the framework of q works on now.
  void run(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse, nb::handle stream) {
    launch(tamis_cuda_run, q, k, v, out, lse, stream);
  }
  void step(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse, nb::handle stream) {
    launch(tamis_cuda_step, q, k, v, out, lse, stream);
  }

  nb::dict poll(uintptr_t stream) {
    tamis_cuda_stats s{};
    s.struct_size = sizeof s;
    {
      const nb::gil_scoped_release unlocked;
      const OnDevice on(device_);
      Report report;
      report.check(tamis_cuda_poll(plan_, &buffers_, pointer(stream), &s, report));
    }
    nb::dict d;
    d["raw"] = s.raw;
    d["padding"] = s.padding;
    d["invalid"] = s.invalid;
    d["duplicates"] = s.duplicates;
    d["unique"] = s.unique;
    d["future"] = s.future;
    d["bundles"] = s.bundles;
    d["empty_bundles"] = s.empty_bundles;
    d["blocks"] = s.blocks;
    d["gaps"] = s.gaps;
    d["touched_pages"] = s.touched_pages;
    d["selected"] = s.selected;
    d["tasks"] = s.tasks;
    d["parts"] = s.parts;
    d["epoch"] = s.epoch;
    d["density"] = s.density;
    return d;
  }

 private:
  using Launch = int32_t (*)(const tamis_cuda_plan*, const tamis_problem*, const tamis_output*,
                             const tamis_cuda_buffers*, void*, tamis_cuda_counters*, tamis_error*);

  static void* pointer(uintptr_t stream) { return reinterpret_cast<void*>(stream); }

  void launch(Launch call, nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse,
              nb::handle stream) {
    const RunArrays arrays(problem_, q, k, v, out, lse);
    const Place& place = arrays.q().place;
    if (!place.device() || (place.kind == Place::kDevice && place.id != device_))
      refuse_argument("q", "lies on ", place_name(place), ", the plan is one of cuda:", device_);
    void* const on_stream =
        stream.is_none() ? current_stream(arrays.q(), q) : pointer(nb::cast<uintptr_t>(stream));
    const OnDevice on(device_);
    Report report;
    report.check(call(plan_, arrays.problem(), arrays.output(), &buffers_, on_stream, nullptr, report));
  }

  const Problem problem_;
  const nb::object plan_object_, owners_;
  const tamis_cuda_plan* const plan_;
  const int32_t device_;
  tamis_cuda_buffers buffers_{};
};

}  // namespace

void register_device(nb::module_& m) {
  nb::class_<DevicePlan>(m, "DevicePlan", "What a step on a device launches, and how large its buffers are.")
      .def(nb::init<const Problem&, nb::dict>(), nb::arg("problem"), nb::arg("options"),
           nb::sig("def __init__(self, problem: Problem, options: dict[str, int | float]) -> None"))
      .def("info", &DevicePlan::info, nb::sig("def info(self) -> dict[str, object]"))
      .def_prop_ro(
          "sizes",
          [](const DevicePlan& p) { return nb::make_tuple(p.sizes.control, p.sizes.index, p.sizes.scratch); },
          nb::for_getter(nb::sig("def sizes(self) -> tuple[int, int, int]")),
          "Bytes of control, index and scratch.");
  nb::class_<DeviceStep>(m, "DeviceStep", "A plan with lists and buffers.")
      .def(nb::init<nb::object, const Problem&, nb::tuple, nb::tuple, int32_t, nb::object>(), nb::arg("plan"),
           nb::arg("problem"), nb::arg("addresses"), nb::arg("bytes"), nb::arg("device"), nb::arg("owners"),
           nb::sig("def __init__(self, plan: DevicePlan, problem: Problem, addresses: tuple[int, int, int], "
                   "bytes: tuple[int, int, int], device: int, owners: object) -> None"))
      .def("clear", &DeviceStep::clear, nb::arg("stream"))
      .def("normalize", &DeviceStep::normalize, nb::arg("stream"))
      .def("schedule", &DeviceStep::schedule, nb::arg("stream"))
      .def("run", &DeviceStep::run, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out"),
           nb::arg("lse").none(), nb::arg("stream").none(),
           nb::sig("def run(self, q: object, k: object, v: object, out: object, lse: object | None, stream: "
                   "int | None) -> None"))
      .def("step", &DeviceStep::step, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out"),
           nb::arg("lse").none(), nb::arg("stream").none(),
           nb::sig("def step(self, q: object, k: object, v: object, out: object, lse: object | None, stream: "
                   "int | None) -> None"))
      .def("poll", &DeviceStep::poll, nb::arg("stream"),
           nb::sig("def poll(self, stream: int) -> dict[str, int | float]"));
}

}  // namespace tamis::python
