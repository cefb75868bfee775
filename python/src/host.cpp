// Stages and runs on the host. Whatever takes long goes without the GIL.
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <mutex>
#include <vector>

#include "contexts.h"
#include "handle.h"
#include "options.h"
#include "problem.h"
#include "stages.h"

namespace tamis::python {
namespace {

template <class T>
T sized() {
  T made{};
  made.struct_size = sizeof made;
  return made;
}

// A read-only NumPy array over memory that `owner` keeps.
template <class T>
nb::object lent(const T* data, int64_t count, nb::handle owner) {
  return nb::cast(nb::ndarray<nb::numpy, const T, nb::ndim<1>>(data, {static_cast<size_t>(count)}, owner));
}

// One that owns its memory.
template <class T>
nb::object given(std::vector<T>&& values) {
  auto* kept = new std::vector<T>(std::move(values));
  const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(kept->data(), {kept->size()}, owner));
}

// The canonical candidates of a problem. Never filled again, so threads may share it.
class HostIndex {
 public:
  HostIndex(const Problem& from, nb::dict options) : problem(from) {
    const Options o(std::move(options));
    if (problem.place().device()) refuse_argument("q", "lies on a device; this is the index of the host");
    const Unlocked unlocked;
    Report report;
    report.check(tamis_normalize(&problem.c(), &o.normalize, handle.get(), report));
    arrays = sized<tamis_index_arrays>();
    report.check(tamis_index_view(handle.get(), &arrays, report));
  }

  nb::dict view(nb::handle self) const {
    const tamis_index_arrays& a = arrays;
    std::vector<int64_t> indptr(static_cast<size_t>(a.rows) + 1, a.entries), slots;
    for (int64_t r = 0; r < a.rows; ++r) indptr[r] = a.begin[r];
    for (int64_t e = 0; e < a.entries; ++e) {
      const int64_t first = a.span_begin[e];
      slots.push_back(a.span_begin[e + 1] - first == 1 ? a.spans[first].slot : -1);
    }
    const int64_t spans = a.entries > 0 ? a.span_begin[a.entries] : 0;
    nb::dict d;
    d["rows"] = a.rows;
    d["entries"] = a.entries;
    d["block"] = a.block;
    d["words"] = a.words;
    d["indptr"] = given(std::move(indptr));
    d["slots"] = given(std::move(slots));
    d["blocks"] = lent(a.blocks, a.entries, self);
    d["members"] = lent(a.members, a.entries * a.words, self);
    d["full"] = lent(a.full, a.entries, self);
    d["span_begin"] = lent(a.span_begin, a.entries + 1, self);
    d["spans"] = lent(reinterpret_cast<const int32_t*>(a.spans), spans * 4, self);
    d["row"] = lent(reinterpret_cast<const int32_t*>(a.row), a.rows * 4, self);
    return d;
  }

  nb::dict stats() const {
    Report report;
    auto s = sized<tamis_index_summary>();
    report.check(tamis_index_stats(handle.get(), &s, report));
    nb::dict d;
    d["raw"] = s.raw;
    d["padding"] = s.padding;
    d["invalid"] = s.invalid;
    d["duplicates"] = s.duplicates;
    d["unique"] = s.unique;
    d["future"] = s.future;
    d["empty_rows"] = s.empty_rows;
    d["blocks"] = s.blocks;
    d["spans"] = s.spans;
    d["touched_pages"] = s.touched_pages;
    d["gaps"] = s.gaps;
    return d;
  }

  // (indptr, tokens) of the sets of section 4, a row for each (query, index head).
  nb::tuple tokens() const {
    const Problem now = problem.refreshed();
    const int64_t queries = arrays.rows == 0 ? 0 : arrays.row[arrays.rows - 1].last_query;
    std::vector<int64_t> indptr(static_cast<size_t>(queries * now.c().candidates.index_heads) + 1);
    std::vector<int32_t> all;
    {
      const Unlocked unlocked;
      Report report;
      int64_t count = 0;
      const auto expand = [&](int32_t* tokens, int64_t capacity) {
        report.check(
            tamis_expand_sets(&now.c(), handle.get(), indptr.data(), tokens, capacity, &count, report));
      };
      expand(nullptr, 0);
      all.resize(static_cast<size_t>(count));
      expand(all.data(), count);
    }
    return nb::make_tuple(given(std::move(indptr)), given(std::move(all)));
  }

  const Problem problem;
  IndexHandle handle;
  tamis_index_arrays arrays{};
};

// One step that is ready to run: bundles, plan, schedule and workspace over an index set.
class HostStep {
 public:
  HostStep(const Problem& from, nb::object index, nb::dict options)
      : problem_(from.refreshed()), index_(std::move(index)), set_(nb::cast<const HostIndex*>(index_)) {
    const Options o(std::move(options));
    const Unlocked unlocked;
    Report report;
    report.check(tamis_bundle(&problem_.c(), set_->handle.get(), &o.bundle, bundles_.get(), report));
    auto capacities = sized<tamis_capacities>();
    report.check(tamis_capacities_of(&problem_.c(), bundles_.get(), &capacities, report));
    report.check(
        tamis_plan_make(&problem_.c(), &capacities, set_->arrays.block, &o.plan, plan_.get(), report));
    report.check(tamis_schedule_make(plan_.get(), bundles_.get(), schedule_.get(), report));
    report.check(tamis_workspace_bytes(plan_.get(), schedule_.get(), &workspace_bytes_, report));
    workspace_ = std::make_unique<float[]>(static_cast<size_t>(workspace_bytes_) / sizeof(float) + 1);
  }

  void run(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse, int threads) {
    std::mutex& mutex = one_user();
    const Problem now = problem_.refreshed();
    const RunArrays arrays(now, q, k, v, out, lse);
    if (arrays.q().place.device())
      refuse_argument("q", "lies on ", place_name(arrays.q().place), ", the plan is one of the host");
    tamis_step step{
        sizeof(tamis_step), arrays.problem(), bundles_.get(),   plan_.get(),
        schedule_.get(),    arrays.output(),  workspace_.get(), static_cast<uint64_t>(workspace_bytes_)};
    const Unlocked unlocked;
    const std::lock_guard lock(mutex);
    const Lease lease(threads);
    Report report;
    report.check(tamis_run(&step, lease.context(), nullptr, report));
  }

  nb::dict info() const {
    Report report;
    auto p = sized<tamis_plan_summary>();
    auto s = sized<tamis_schedule_summary>();
    auto b = sized<tamis_bundle_summary>();
    report.check(tamis_plan_info(plan_.get(), &p, report));
    report.check(tamis_schedule_info(schedule_.get(), &s, report));
    report.check(tamis_bundle_stats(bundles_.get(), &b, report));
    nb::dict d;
    d["path"] = p.path;
    d["reason"] = p.reason;
    d["block"] = p.block;
    d["tile"] = p.tile;
    d["bundles"] = b.bundles;
    d["tasks"] = s.tasks;
    d["split_rows"] = s.split_rows;
    d["parts"] = s.parts;
    d["workspace_bytes"] = workspace_bytes_;
    d["fingerprint"] = p.fingerprint;
    return d;
  }

 private:
  const Problem problem_;
  const nb::object index_;
  const HostIndex* set_;
  BundlesHandle bundles_;
  PlanHandle plan_;
  ScheduleHandle schedule_;
  std::unique_ptr<float[]> workspace_;
  int64_t workspace_bytes_ = 0;

  // A workspace has one user at a time. Called with the GIL. In a child of fork a thread that is not there
  // may hold the mutex for ever: it is given up for a new one.
  std::mutex& one_user() {
    if (forks_ != forks()) {
      static_cast<void>(mutex_.release());
      mutex_ = std::make_unique<std::mutex>();
      forks_ = forks();
    }
    return *mutex_;
  }
  int forks_ = forks();
  std::unique_ptr<std::mutex> mutex_ = std::make_unique<std::mutex>();
};

// Everything at once; what it did.
nb::dict forward(const Problem& problem, nb::handle out, nb::handle lse, nb::dict options, int threads) {
  const Options o(std::move(options));
  Array out_array(out, "out");
  std::optional<Array> lse_array;
  if (!lse.is_none()) lse_array.emplace(lse, "lse");
  const Place place = problem.place();
  if (place.device())
    refuse_argument("q", "lies on ", place_name(place), "; backend cpu reads memory of the host");
  for (Array* array : {&out_array, lse_array ? &*lse_array : nullptr}) {
    const char* name = array == &out_array ? "out" : "lse";
    if (array == nullptr) continue;
    if (!array->place.agrees(place))
      refuse_argument(name, "lies on ", place_name(array->place), ", q on ", place_name(place));
    array->check_written(name);
    if (problem.join_q) join(array, name, problem.c());
  }
  tamis_output output{};
  output.struct_size = sizeof output;
  output.out = &out_array.tensor;
  output.lse = lse_array ? &lse_array->tensor : nullptr;
  const tamis_forward_options f{sizeof(tamis_forward_options), &o.normalize, &o.bundle, &o.plan};
  auto report = sized<tamis_forward_report>();
  auto counters = sized<tamis_run_counters>();
  auto index = sized<tamis_index_summary>();
  char reason[512] = "";
  report.reason = reason;
  report.reason_capacity = sizeof reason;
  report.counters = &counters;
  report.index = &index;
  {
    const Unlocked unlocked;
    const Lease lease(threads);
    Report error;
    error.check(tamis_forward(&problem.c(), &f, &output, lease.context(), &report, error));
  }
  nb::dict d;
  d["path"] = report.path;
  d["reason"] = nb::str(reason);
  d["block"] = report.block;
  d["tile"] = report.tile;
  d["empty_rows"] = counters.empty_rows;
  d["duplicates"] = index.duplicates;
  d["invalid"] = index.invalid;
  d["padding"] = index.padding;
  return d;
}

// The judge, into dense float64 arrays of the caller.
void reference(const Problem& problem, nb::handle out, nb::handle lse) {
  const Array out_array(out, "out"), lse_array(lse, "lse");
  const Place place = problem.place();
  if (place.device())
    refuse_argument("q", "lies on ", place_name(place), "; backend reference reads memory of the host");
  for (const auto& [array, name] : {std::pair{&out_array, "out"}, {&lse_array, "lse"}}) {
    const tamis_tensor& t = array->tensor;
    if (array->place.device() || array->read_only || t.dtype != TAMIS_F64 ||
        reinterpret_cast<uintptr_t>(t.data) % sizeof(double) != 0)
      refuse_argument(name, "backend reference writes aligned float64 of the host");
    int64_t dense = 1;
    for (int axis = t.rank - 1; axis >= 0 && !array->empty(); --axis) {
      if (t.shape[axis] > 1 && t.stride[axis] != dense)
        refuse_argument(name, "backend reference writes dense arrays");
      dense *= t.shape[axis];
    }
  }
  const auto count = [](const tamis_tensor& t) {
    int64_t n = 1;
    for (int axis = 0; axis < t.rank; ++axis) n *= t.shape[axis];
    return n;
  };
  const Unlocked unlocked;
  Report report;
  report.check(tamis_reference_forward(&problem.c(), static_cast<double*>(out_array.tensor.data),
                                       count(out_array.tensor), static_cast<double*>(lse_array.tensor.data),
                                       count(lse_array.tensor), report));
}

// Dense f32 arrays: outs [rows, dim] each, lses [rows] each.
void merge_states(nb::list outs, nb::list lses, nb::handle out, nb::handle lse) {
  std::vector<Array> arrays;
  std::vector<const float*> out_data, lse_data;
  const Array out_array(out, "out"), lse_array(lse, "lse");
  const tamis_tensor& shape = out_array.tensor;
  int64_t rows = 1;
  for (int axis = 0; axis + 1 < shape.rank; ++axis) rows *= shape.shape[axis];
  const auto check = [&](const Array& array, const char* name, int rank) {
    const tamis_tensor& t = array.tensor;
    if (t.dtype != TAMIS_F32) refuse_argument(name, "dtype ", dtype_name(t.dtype), ", expected F32");
    if (array.place.device())
      refuse_argument(name, "lies on ", place_name(array.place), "; merge_states reads memory of the host");
    if (t.rank != rank) refuse_argument(name, "rank ", t.rank, ", expected ", rank);
    if (reinterpret_cast<uintptr_t>(t.data) % sizeof(float) != 0)
      refuse_argument(name, "is not aligned to its dtype");
    int64_t dense = 1;
    for (int axis = rank - 1; axis >= 0; --axis) {
      if (t.shape[axis] != shape.shape[axis])
        refuse_argument(name, "extent ", t.shape[axis], " of axis ", axis, ", expected ", shape.shape[axis]);
      if (!array.empty() && t.shape[axis] > 1 && t.stride[axis] != dense)
        refuse_argument(name, "is not dense");
      dense *= t.shape[axis];
    }
  };
  if (shape.rank < 1) refuse_argument("out", "rank 0, expected 1 or more");
  out_array.check_written("out");
  lse_array.check_written("lse");
  check(out_array, "out", shape.rank);
  check(lse_array, "lse", shape.rank - 1);
  arrays.reserve(outs.size() + lses.size());
  for (nb::handle o : outs) {
    check(arrays.emplace_back(o, "outs"), "outs", shape.rank);
    out_data.push_back(static_cast<const float*>(arrays.back().tensor.data));
  }
  for (nb::handle l : lses) {
    check(arrays.emplace_back(l, "lses"), "lses", shape.rank - 1);
    lse_data.push_back(static_cast<const float*>(arrays.back().tensor.data));
  }
  if (out_data.size() != lse_data.size())
    refuse_argument("lses", lse_data.size(), " arrays, there are ", out_data.size(), " in outs");
  const Unlocked unlocked;
  Report report;
  report.check(tamis_merge_states(static_cast<int64_t>(out_data.size()), out_data.data(), lse_data.data(),
                                  rows, shape.shape[shape.rank - 1],
                                  static_cast<float*>(out_array.tensor.data),
                                  static_cast<float*>(lse_array.tensor.data), report));
}

nb::dict explain(const Problem& problem, int64_t tile, int64_t splits, double bandwidth) {
  if (problem.place().device())
    refuse(TAMIS_UNSUPPORTED, "q", "lies on a device; explain reads lists of the host");
  auto a = sized<tamis_accounting>();
  {
    const Unlocked unlocked;
    tamis_explain_options o;
    tamis_explain_options_init(&o);
    o.tile = tile;
    o.splits = splits;
    o.bandwidth = bandwidth;
    Report report;
    report.check(tamis_explain(&problem.c(), &o, &a, report));
  }
  nb::dict d;
#define TAMIS_FIELD(name) d[#name] = a.name
  TAMIS_FIELD(rows);
  TAMIS_FIELD(kv_heads);
  TAMIS_FIELD(selected_tokens);
  TAMIS_FIELD(touched_pages);
  TAMIS_FIELD(tiles_aligned);
  TAMIS_FIELD(tiles_packed);
  TAMIS_FIELD(tile_efficiency_aligned);
  TAMIS_FIELD(tile_efficiency_packed);
  TAMIS_FIELD(block_utilization);
  TAMIS_FIELD(bytes_logical);
  TAMIS_FIELD(bytes_pages);
  TAMIS_FIELD(bytes_aligned);
  TAMIS_FIELD(bytes_dense);
  TAMIS_FIELD(compression_logical);
  TAMIS_FIELD(compression_aligned);
  TAMIS_FIELD(index_bytes);
  TAMIS_FIELD(index_bytes_normalized);
  TAMIS_FIELD(scale_bytes);
  TAMIS_FIELD(transaction_bytes);
  TAMIS_FIELD(transaction_efficiency);
  TAMIS_FIELD(flops_logical);
  TAMIS_FIELD(flops_aligned);
  TAMIS_FIELD(workspace_splits);
  TAMIS_FIELD(workspace_partial_o);
  TAMIS_FIELD(workspace_partial_ml);
  TAMIS_FIELD(workspace_total);
  TAMIS_FIELD(floor_us);
#undef TAMIS_FIELD
  return d;
}

}  // namespace

void register_host(nb::module_& m) {
  nb::class_<HostIndex>(m, "HostIndex", "An index set of the host.")
      .def(nb::init<const Problem&, nb::dict>(), nb::arg("problem"), nb::arg("options"),
           nb::sig("def __init__(self, problem: Problem, options: dict[str, int | float]) -> None"))
      .def(
          "view", [](nb::handle self) { return nb::cast<const HostIndex&>(self).view(self); },
          nb::sig("def view(self) -> dict[str, object]"))
      .def("stats", &HostIndex::stats, nb::sig("def stats(self) -> dict[str, int]"))
      .def("tokens", &HostIndex::tokens, nb::sig("def tokens(self) -> tuple[numpy.ndarray, numpy.ndarray]"));
  nb::class_<HostStep>(m, "HostStep", "A step of the host, ready to run.")
      .def(nb::init<const Problem&, nb::object, nb::dict>(), nb::arg("problem"), nb::arg("index"),
           nb::arg("options"),
           nb::sig("def __init__(self, problem: Problem, index: HostIndex, options: dict[str, int | float]) "
                   "-> None"))
      .def("run", &HostStep::run, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out"),
           nb::arg("lse").none(), nb::arg("threads"))
      .def("info", &HostStep::info, nb::sig("def info(self) -> dict[str, object]"));
  m.def("forward", &forward, nb::arg("problem"), nb::arg("out"), nb::arg("lse").none(), nb::arg("options"),
        nb::arg("threads"),
        nb::sig("def forward(problem: Problem, out: object, lse: object | None, options: dict[str, int | "
                "float], threads: int) -> dict[str, object]"));
  m.def("reference", &reference, nb::arg("problem"), nb::arg("out"), nb::arg("lse"));
  m.def(
      "merge_states", &merge_states, nb::arg("outs"), nb::arg("lses"), nb::arg("out"), nb::arg("lse"),
      nb::sig("def merge_states(outs: list[object], lses: list[object], out: object, lse: object) -> None"));
  m.def("explain", &explain, nb::arg("problem"), nb::arg("tile"), nb::arg("splits"), nb::arg("bandwidth"),
        nb::sig("def explain(problem: Problem, tile: int, splits: int, bandwidth: float) -> dict[str, int | "
                "float]"));
  m.def("forget_contexts", &forget_contexts);
}

}  // namespace tamis::python
