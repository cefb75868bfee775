// Arrays as Python sees them: views of bits, and the facts that problems are built by.
#include <string>

#include "array.h"
#include "failure.h"

namespace tamis::python {
namespace {

// What Python asks of an array before a problem is built of it.
struct Facts {
  nb::tuple shape, stride;
  const char* dtype;
  bool device;
  int32_t device_id;
  bool read_only;
  uintptr_t data;
};

Facts facts_of(nb::handle object, const std::string& name) {
  const Array array(object, name.c_str());
  nb::list shape, stride;
  for (int axis = 0; axis < array.tensor.rank; ++axis) {
    shape.append(array.tensor.shape[axis]);
    stride.append(array.tensor.stride[axis]);
  }
  return {nb::tuple(shape),
          nb::tuple(stride),
          dtype_name(array.tensor.dtype),
          array.place.device(),
          array.place.id,
          array.read_only,
          reinterpret_cast<uintptr_t>(array.tensor.data)};
}

}  // namespace

void register_arrays(nb::module_& m) {
  nb::class_<View>(
      m, "View",
      "An array whose bits are read as another dtype of the same width.\n\n"
      "For frameworks without the dtype: `View(bits, \"bf16\")` of a uint16 array, `\"f8_e4m3\"` or\n"
      "`\"f8_e5m2\"` of a uint8 array. Nothing is copied or converted. Goes wherever an array goes.\n\n"
      "Raises Error `invalid_argument` for a dtype without that meaning.")
      .def(
          "__init__",
          [](View* self, nb::object array, nb::object name) {
            std::string dtype;
            if (!nb::isinstance<nb::str>(name) || !nb::try_cast(name, dtype))
              throw nb::type_error(text("dtype: expected a name, not ", type_name_of(name)).c_str());
            std::string upper = dtype;
            for (char& c : upper) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
            const int32_t number = dtype_of(upper);
            if (number != TAMIS_BF16 && number != TAMIS_F8_E4M3 && number != TAMIS_F8_E5M2 &&
                number != TAMIS_F16)
              refuse_argument("dtype", "'", dtype, "' is none of bf16, f16, f8_e4m3, f8_e5m2");
            Array checked(array, "array");
            checked.read_as(number, "array");
            new (self) View{std::move(array), number};
          },
          nb::arg("array").none(), nb::arg("dtype").none(),
          nb::sig("def __init__(self, array: object, dtype: str) -> None"))
      .def_prop_ro(
          "array", [](const View& v) { return v.array; }, "What the view was made of.")
      .def_prop_ro(
          "dtype", [](const View& v) { return dtype_name(v.dtype); }, "\"BF16\" and so on.")
      .def_prop_ro(
          "requires_grad",
          [](const View& v) {  // other arrays than tensors may call anything so
            const int is_true =
                PyObject_IsTrue(nb::getattr(v.array, "requires_grad", nb::bool_(false)).ptr());
            if (is_true < 0) nb::raise_python_error();
            return is_true != 0;
          },
          "Whether torch records what becomes of the array.");

  nb::class_<Facts>(m, "Facts", "Where an array lies and how.")
      .def_ro("shape", &Facts::shape, nb::for_getter(nb::sig("def shape(self) -> tuple[int, ...]")))
      .def_ro("stride", &Facts::stride, nb::for_getter(nb::sig("def stride(self) -> tuple[int, ...]")),
              "Elements.")
      .def_prop_ro(
          "dtype", [](const Facts& f) { return f.dtype; }, "\"BF16\" and so on.")
      .def_ro("device", &Facts::device, "On a CUDA device.")
      .def_ro("device_id", &Facts::device_id)
      .def_ro("read_only", &Facts::read_only)
      .def_ro("data", &Facts::data, "Address.");
  m.def("facts", &facts_of, nb::arg("array").none(), nb::arg("name"),
        "Facts of an array; `name` is the argument's, for errors.");
}

}  // namespace tamis::python
