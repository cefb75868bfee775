// Small helpers for turning a broken rule into a Status.
#pragma once

#include <locale>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

#include "tamis/status.h"

#define TAMIS_RETURN_IF_ERROR(expression)                                                        \
  do {                                                                                           \
    if (::tamis::Status tamis_status_ = (expression); !tamis_status_.ok()) return tamis_status_; \
  } while (false)

namespace tamis {

// The arguments written one after the other.
template <class... Args>
std::string text(const Args&... args) {
  std::ostringstream out;
  out.imbue(std::locale::classic());  // a message never follows the application's locale
  (out << ... << args);
  return std::move(out).str();
}

// invalid_argument with a message that starts with the argument's name.
template <class... Args>
Status invalid(const char* argument, const Args&... args) {
  return {Code::kInvalidArgument, text(argument, ": ", args...)};
}

// Runs f, which returns a Status or a Result; running out of memory becomes capacity_exceeded, since the
// library does not throw.
template <class F>
auto guarded(const F& f) -> decltype(f()) {
  try {
    return f();
  } catch (const std::bad_alloc&) {
  } catch (const std::length_error&) {
  }
  return Status(Code::kCapacityExceeded, "memory: the problem needs more than there is");
}

}  // namespace tamis
