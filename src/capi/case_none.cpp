// Case files in a build without them: a named error. case.cpp takes this file's place where TAMIS_IO is on.
#include "capi/guard.h"
#include "core/checks.h"

namespace {

int32_t refuse(tamis_error* error) {
  return tamis::capi::guarded(error, []() -> tamis::Status {
    return {tamis::Code::kUnsupported, "file: this build has no case files; configure with -DTAMIS_IO=ON"};
  });
}

}  // namespace

extern "C" {

int32_t tamis_read_case(const char*, tamis_case** file, tamis_error* error) {
  if (file != nullptr) *file = nullptr;
  return refuse(error);
}

void tamis_case_free(tamis_case*) {}

int32_t tamis_case_problem(const tamis_case*, tamis_problem*, tamis_error* error) { return refuse(error); }

int32_t tamis_write_case(const char*, const tamis_problem*, const char* const*, const char* const*, int64_t,
                         tamis_error* error) {
  return refuse(error);
}

}  // extern "C"
