#include "producer.h"

#include "array.h"
#include "failure.h"

namespace tamis::python {
namespace {

const dlpack::ExchangeApi* exchange_of(nb::handle type) {
  const nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
  if (!PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) return nullptr;
  auto* api =
      static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  while (api != nullptr && api->version.major != 1) api = api->older;
  return api;
}

bool is_subclass(nb::handle type, nb::handle of) {
  const int answer = PyObject_IsSubclass(type.ptr(), of.ptr());
  if (answer < 0) throw nb::python_error();
  return answer == 1;
}

Producer look_at(nb::handle type) {
  if (const dlpack::ExchangeApi* api = exchange_of(type);
      api != nullptr && api->tensor_from_object != nullptr)
    return {Producer::kExchange, api, nb::hasattr(type, "is_neg")};
  if (type.is(nb::type<View>())) return {Producer::kView, nullptr};
  const nb::module_ numpy = nb::module_::import_("numpy");
  if (is_subclass(type, numpy.attr("ma").attr("MaskedArray"))) return {Producer::kMasked, nullptr};
  if (is_subclass(type, numpy.attr("ndarray")) || is_subclass(type, numpy.attr("generic")))
    return {Producer::kNumpy, nullptr};
  if (nb::hasattr(type, "__dlpack__") && nb::hasattr(type, "__dlpack_device__"))
    return {Producer::kDlpack, nullptr, nb::hasattr(type, "is_neg")};
  return {};
}

}  // namespace

Producer producer_of(nb::handle object) {
  struct Known {
    PyObject* type = nullptr;
    Producer producer{};
  };
  constexpr int kMost = 16;
  static Known known[kMost];
  static int next = 0;
  PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(object.ptr()));
  for (const Known& k : known)
    if (k.type == type) return k.producer;
  const Producer found = look_at(type);
  Known& k = known[next];
  next = (next + 1) % kMost;
  Py_INCREF(type);  // its address must not be given to another type
  PyObject* old = k.type;
  k = {type, found};
  Py_XDECREF(old);
  return found;
}

void refuse_negated(nb::handle object, const char* name) {
  static PyObject* const is_neg = PyUnicode_InternFromString("is_neg");
  const nb::object answer = nb::steal(PyObject_CallMethodObjArgs(object.ptr(), is_neg, nullptr));
  if (!answer.is_valid()) throw nb::python_error();
  if (answer.ptr() == Py_True) refuse(TAMIS_UNSUPPORTED, name, "is a negated view; call resolve_neg()");
}

}  // namespace tamis::python
