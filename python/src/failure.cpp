#include "failure.h"

namespace tamis::python {
namespace {

nb::object number_or_none(const Failure& f, uint32_t bit, int64_t number) {
  return (f.has & bit) != 0 ? nb::object(nb::int_(number)) : nb::object(nb::none());
}

void raise(const Failure& f) {
  try {
    const nb::object type = nb::module_::import_("tamis._errors").attr("Error");
    // A message may be cut or quote bytes of a file.
    const nb::object message = nb::steal(
        PyUnicode_DecodeUTF8(f.message.data(), static_cast<Py_ssize_t>(f.message.size()), "replace"));
    const nb::object error =
        type(tamis_code_name(f.code), message, number_or_none(f, TAMIS_HAS_REQUEST, f.request),
             number_or_none(f, TAMIS_HAS_ROW, f.row), number_or_none(f, TAMIS_HAS_PAGE, f.page),
             number_or_none(f, TAMIS_HAS_VALUE, f.value), number_or_none(f, TAMIS_HAS_LIMIT, f.limit));
    PyErr_SetObject(type.ptr(), error.ptr());
  } catch (nb::python_error& e) {
    e.restore();
  }
}

}  // namespace

void Report::fail(int32_t code) const {
  throw Failure{code,       message_,    error_.has,   error_.request,
                error_.row, error_.page, error_.value, error_.limit};
}

void register_failures(nb::module_&) {
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const Failure& f) {
      raise(f);
    }
  });
}

}  // namespace tamis::python
