// Small helpers for turning a broken rule into a Status.
#pragma once

#include <locale>
#include <sstream>
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

}  // namespace tamis
