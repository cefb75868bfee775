// The JSON header of a safetensors file: which tensors there are, and where their bytes lie.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tamis/io.h"
#include "tamis/status.h"
#include "tamis/tensor.h"

namespace tamis::io {

// One tensor as the header states it. Each number is known to be in [0, 2^63); whether they agree with one
// another and with the file is not judged here.
struct HeaderEntry {
  std::string name;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<int64_t, kMaxRank> shape{};
  int64_t begin = 0, end = 0;  // bytes after the header
};

struct Header {
  Metadata metadata;
  std::vector<HeaderEntry> entries;  // in the file's order
};

// Parses the header's text. Anything but one JSON object of well-formed entries, with no key repeated in any
// object, is an io_error. Unknown fields of an entry are skipped. Memory is proportional to the text.
Result<Header> parse_header(std::string_view text, const ReadLimits& limits);

// Bytes of a dense tensor, or nothing when they cannot be counted in 63 bits. Zero extents count as one for
// this question, so that strides and partial products of an accepted shape cannot overflow either.
std::optional<int64_t> byte_count(int rank, const std::array<int64_t, kMaxRank>& shape, DType dtype);

}  // namespace tamis::io
