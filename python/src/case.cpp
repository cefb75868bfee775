// Case files: NumPy arrays and numbers of a file, and a file of a problem.
#include <nanobind/ndarray.h>

#include <memory>
#include <vector>

#include "failure.h"
#include "problem.h"
#include "stages.h"

namespace tamis::python {
namespace {

// NumPy's dtype of the elements, or of their bits where it has none.
nb::dlpack::dtype numpy_dtype(int32_t dtype) {
  using Code = nb::dlpack::dtype_code;
  const auto bits = static_cast<uint8_t>(8 * dtype_bytes(dtype));
  switch (dtype) {
    case TAMIS_F64:
    case TAMIS_F32:
    case TAMIS_F16:
      return {static_cast<uint8_t>(Code::Float), bits, 1};
    case TAMIS_I64:
    case TAMIS_I32:
    case TAMIS_I16:
    case TAMIS_I8:
      return {static_cast<uint8_t>(Code::Int), bits, 1};
    default:
      return {static_cast<uint8_t>(Code::UInt), bits, 1};
  }
}

// A case in memory; lends its arrays.
class CaseFile {
 public:
  explicit CaseFile(const std::string& path) {
    Report report;
    tamis_case* read = nullptr;
    {
      const nb::gil_scoped_release unlocked;
      report.check(tamis_read_case(path.c_str(), &read, report));
    }
    held_.reset(read);
    problem_.struct_size = sizeof problem_;
    report.check(tamis_case_problem(read, &problem_, report));
  }

  // Name to (dtype, read-only array, of bits where NumPy has no such dtype).
  nb::dict arrays(nb::handle self) {
    nb::dict d;
    for (int i = 0; i < kProblemTensors; ++i) {
      const ProblemTensor place = problem_tensor(problem_, i);
      const tamis_tensor* t = *place.in_c;
      if (t == nullptr) continue;
      std::vector<size_t> shape(t->shape, t->shape + t->rank);
      const nb::ndarray<nb::numpy, nb::ro> array(t->data, shape.size(), shape.data(), self, t->stride,
                                                 numpy_dtype(t->dtype));
      d[place.name] = nb::make_tuple(dtype_name(t->dtype), array);
    }
    return d;
  }

  // By the names that Problem.set_numbers knows.
  nb::dict numbers() const {
    const tamis_problem& p = problem_;
    nb::dict d;
    d["kv_layout"] = p.cache.layout;
    d["k_format"] = p.cache.k_quant.format;
    d["v_format"] = p.cache.v_quant.format;
    d["k_scale_kind"] = p.cache.k_quant.kind;
    d["v_scale_kind"] = p.cache.v_quant.kind;
    d["form"] = p.candidates.form;
    d["duplicates"] = p.candidates.duplicates;
    d["invalid"] = p.candidates.invalid;
    d["unit"] = p.candidates.unit;
    d["query_block"] = p.candidates.query_block;
    d["index_heads"] = p.candidates.index_heads;
    d["causal"] = p.mask.causal != 0;
    d["window"] = p.mask.window;
    d["sink"] = p.mask.sink;
    d["scale"] = p.score.has_scale != 0 ? nb::object(nb::float_(p.score.scale)) : nb::object(nb::none());
    d["softcap"] = p.score.softcap;
    d["dropout_p"] = p.dropout.p;
    d["dropout_seed"] = p.dropout.seed;
    return d;
  }

  // Sizes of a case that has none of q, k and v, else None.
  nb::object index_only() const {
    const tamis_index_only* only = problem_.index_only;
    if (only == nullptr) return nb::none();
    nb::dict d;
    d["q_heads"] = only->q_heads;
    d["kv_heads"] = only->kv_heads;
    d["page_size"] = only->page_size;
    d["num_pages"] = only->num_pages;
    return d;
  }

 private:
  struct End {
    void operator()(tamis_case* file) const { tamis_case_free(file); }
  };
  std::unique_ptr<tamis_case, End> held_;
  tamis_problem problem_{};
};

std::string path_of(const nb::bytes& path) {
  const std::string text(static_cast<const char*>(path.data()), path.size());
  if (text.find('\0') != std::string::npos) refuse_argument("path", "holds a zero byte");
  return text;
}

void write_case(const nb::bytes& path, const Problem& problem) {
  const std::string name = path_of(path);
  if (const Place place = problem.place(); place.device())
    refuse_argument("q", "lies on ", place_name(place), "; a case file is written from memory of the host");
  const nb::gil_scoped_release unlocked;
  Report report;
  report.check(tamis_write_case(name.c_str(), &problem.c(), nullptr, nullptr, 0, report));
}

}  // namespace

void register_cases(nb::module_& m) {
  nb::class_<CaseFile>(m, "CaseFile", "A case file in memory.")
      .def(
          "__init__", [](CaseFile* self, const nb::bytes& path) { new (self) CaseFile(path_of(path)); },
          nb::arg("path"))
      .def(
          "arrays", [](nb::handle self) { return nb::cast<CaseFile&>(self).arrays(self); },
          nb::sig("def arrays(self) -> dict[str, tuple[str, numpy.ndarray]]"))
      .def("numbers", &CaseFile::numbers, nb::sig("def numbers(self) -> dict[str, int | float | None]"))
      .def_prop_ro("index_only", &CaseFile::index_only,
                   nb::for_getter(nb::sig("def index_only(self) -> dict[str, int] | None")));
  m.def("write_case", &write_case, nb::arg("path"), nb::arg("problem"));
}

}  // namespace tamis::python
