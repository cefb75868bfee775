// Files: safetensors containers and the case files built on them (docs/case-format.md).
//
// The reader trusts nothing in a file: every extent and offset is checked in 64-bit arithmetic against the
// real size before memory is asked for, header and total size are bounded, and any doubt is an io_error. A
// file that is well formed but states a wrong problem is invalid_argument.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tamis/problem.h"
#include "tamis/status.h"
#include "tamis/tensor.h"

namespace tamis::io {

struct ReadLimits {
  int64_t header_bytes = int64_t{16} << 20;
  int64_t file_bytes = int64_t{4} << 30;
  int64_t tensors = 65536;
};

using Metadata = std::map<std::string, std::string>;
using NamedTensors = std::vector<std::pair<std::string, TensorView>>;

// A file in memory. The views point into `storage`; each tensor starts on a 64-byte line, whatever the file
// did.
struct TensorFile {
  Metadata metadata;
  std::map<std::string, TensorView> tensors;  // dense, row-major
  std::shared_ptr<const void> storage;
};

Result<TensorFile> read_tensors(const std::string& path, const ReadLimits& limits = {});

// The same for bytes already in memory.
Result<TensorFile> parse_tensors(const void* data, size_t size, const ReadLimits& limits = {});

// Writes dense or strided host tensors of any order; same input, same bytes. The file appears whole or not at
// all: it is written beside `path` and renamed.
Status write_tensors(const std::string& path, const NamedTensors& tensors, const Metadata& metadata = {});

// Writes a text the same way. Links stay links; devices and pipes are written to in place.
Status write_text(const std::string& path, std::string_view text);

// One problem read from a file; `problem` points into `file`.
struct Case {
  Problem problem;
  TensorFile file;
};

// Reads a case and checks all its arguments (describe and check_arrays).
Result<Case> read_case(const std::string& path, const ReadLimits& limits = {});
Result<Case> parse_case(const void* data, size_t size, const ReadLimits& limits = {});

// Writes the case file that read_case turns back into `problem`. `extra` is added to the metadata.
Status write_case(const std::string& path, const Problem& problem, const Metadata& extra = {});

}  // namespace tamis::io
