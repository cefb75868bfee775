// Refusals on their way to Python: what a call of the C interface answered, as the exception tamis.Error.
#pragma once

#include <nanobind/nanobind.h>
#include <tamis/tamis_c.h>

#include <sstream>
#include <string>
#include <type_traits>

namespace tamis::python {

namespace nb = nanobind;

// Thrown here, caught by the translator that register_failures installs. `has` are TAMIS_HAS_... bits.
struct Failure {
  int32_t code = TAMIS_OK;
  std::string message;
  uint32_t has = 0;
  int64_t request = 0, row = 0, page = 0, value = 0, limit = 0;
};

template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

inline std::string type_name_of(nb::handle object) { return nb::str(object.type().attr("__name__")).c_str(); }

// `name` is spelled as in docs/semantics.md section 11.
template <class... Parts>
[[noreturn]] void refuse(int32_t code, const char* name, const Parts&... parts) {
  throw Failure{code, text(name, ": ", parts...)};
}
template <class... Parts>
[[noreturn]] void refuse_argument(const char* name, const Parts&... parts) {
  refuse(TAMIS_INVALID_ARGUMENT, name, parts...);
}

// A number of the front end, of as many bits as the C interface has for it.
template <class T>
T number_of(const std::string& name, nb::handle value) {
  T made{};
  const bool taken = std::is_floating_point_v<T> ? PyNumber_Check(value.ptr()) : PyIndex_Check(value.ptr());
  if (taken && nb::try_cast<T>(value, made)) return made;
  if (taken) refuse_argument(name.c_str(), "does not fit ", 8 * sizeof made, " bits");
  throw nb::type_error(text(name, ": expected a number, not ", type_name_of(value)).c_str());
}

// Hands itself to a call as its tamis_error, and throws what the call answered.
class Report {
 public:
  Report() { tamis_error_init(&error_, message_, sizeof message_); }
  Report(const Report&) = delete;
  operator tamis_error*() { return &error_; }

  void check(int32_t code) const {
    if (code != TAMIS_OK) fail(code);
  }

 private:
  [[noreturn]] void fail(int32_t code) const;

  tamis_error error_;
  char message_[1024];
};

void register_failures(nb::module_& m);

}  // namespace tamis::python
