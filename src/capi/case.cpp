// Case files. case_none.cpp takes this file's place in a build without TAMIS_IO.
#include <memory>

#include "capi/guard.h"
#include "capi/problem.h"
#include "capi/structs.h"
#include "core/checks.h"
#include "tamis/io.h"

// A case and its problem in C types, which point at each other: made once, where it stays.
struct tamis_case {
  tamis::io::Case file;
  tamis_problem problem;
  tamis_tensor tensors[tamis::capi::kProblemTensors];
  tamis_index_only index_only;
};

namespace tamis::capi {
namespace {

void write_problem(tamis_case* c) {
  const Problem& from = c->file.problem;
  c->problem = write_options(from);
  tamis_tensor* next = c->tensors;
  for_each_tensor(c->problem, from,
                  [&](const char*, const tamis_tensor*& tensor, const TensorView& view, Reads) {
                    *next = write_tensor(view);
                    tensor = view.present() ? next : nullptr;
                    ++next;
                  });
  if (!from.index_only) return;
  c->index_only = write_index_only(*from.index_only);
  c->problem.index_only = &c->index_only;
}

Status write_case_c(const char* path, const tamis_problem* problem, const char* const* keys,
                    const char* const* values, int64_t count) {
  if (path == nullptr) return invalid("path", "is NULL");
  if (count < 0) return invalid("count", count, " is negative");
  io::Metadata extra;
  for (int64_t i = 0; i < count; ++i) {
    if (keys == nullptr || keys[i] == nullptr) return invalid("keys", "is NULL");
    if (values == nullptr || values[i] == nullptr) return invalid("values", "is NULL");
    if (!extra.emplace(keys[i], values[i]).second)
      return invalid("keys", "'", keys[i], "' stands there twice");
  }
  Problem p;
  TAMIS_RETURN_IF_ERROR(read_problem(problem, Reads::kGradients, &p));
  return io::write_case(path, p, extra);
}

}  // namespace
}  // namespace tamis::capi

extern "C" {

int32_t tamis_read_case(const char* path, tamis_case** file, tamis_error* error) {
  if (file != nullptr) *file = nullptr;
  return tamis::capi::guarded(error, [&]() -> tamis::Status {
    if (path == nullptr) return tamis::invalid("path", "is NULL");
    if (file == nullptr) return tamis::invalid("file", "is NULL");
    tamis::Result<tamis::io::Case> read = tamis::io::read_case(path);
    if (!read.ok()) return read.status();
    auto made = std::make_unique<tamis_case>();
    made->file = std::move(*read);
    tamis::capi::write_problem(made.get());
    *file = made.release();
    return {};
  });
}

void tamis_case_free(tamis_case* file) { delete file; }

int32_t tamis_case_problem(const tamis_case* file, tamis_problem* problem, tamis_error* error) {
  return tamis::capi::guarded(error, [&]() -> tamis::Status {
    if (file == nullptr) return tamis::invalid("file", "is NULL");
    TAMIS_RETURN_IF_ERROR(tamis::capi::check_struct("problem", problem));
    tamis::capi::write_struct(file->problem, problem);
    return {};
  });
}

int32_t tamis_write_case(const char* path, const tamis_problem* problem, const char* const* keys,
                         const char* const* values, int64_t count, tamis_error* error) {
  return tamis::capi::guarded(error,
                              [&] { return tamis::capi::write_case_c(path, problem, keys, values, count); });
}

}  // extern "C"
