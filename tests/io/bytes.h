// Files built byte by byte, so that tests can lie in any field.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "support/folder.h"
#include "tamis/io.h"

namespace tamis::io {

using testing::TempFolder;

inline std::string le64(uint64_t value) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &value, 8);
  return bytes;
}

// A file of this header and data, with an honest header length.
inline std::string raw_file(std::string_view header, std::string_view data = "") {
  return le64(header.size()) + std::string(header) + std::string(data);
}

// One tensor of f32 zeros whose entry reads as given.
inline std::string one_entry(std::string_view entry, size_t data_bytes = 8) {
  return raw_file("{\"x\":" + std::string(entry) + "}", std::string(data_bytes, '\0'));
}

// Reads from a block of exactly the right size, so that a sanitizer sees the first byte too many.
template <class Parse>
auto exactly(const std::string& bytes, Parse parse) {
  const std::unique_ptr<char[]> block(new char[bytes.size()]);
  std::memcpy(block.get(), bytes.data(), bytes.size());
  return parse(static_cast<const void*>(block.get()), bytes.size());
}

inline Result<TensorFile> parse(const std::string& bytes, const ReadLimits& limits = {}) {
  return exactly(bytes, [&](const void* data, size_t size) { return parse_tensors(data, size, limits); });
}

inline Result<Case> parse_as_case(const std::string& bytes) {
  return exactly(bytes, [](const void* data, size_t size) { return parse_case(data, size); });
}

inline void expect_code(const Status& status, Code code, std::string_view part) {
  EXPECT_STREQ(code_name(status.code()), code_name(code)) << status.message();
  EXPECT_NE(status.message().find(part), std::string::npos)
      << "'" << status.message() << "' does not hold '" << part << "'";
}

inline void expect_io_error(const std::string& bytes, std::string_view part, const ReadLimits& limits = {}) {
  SCOPED_TRACE(bytes.substr(0, 300));
  expect_code(parse(bytes, limits).status(), Code::kIoError, part);
}

// A tensor as a file states it.
struct Stated {
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

template <class T>
Stated stated(const char* dtype, std::vector<int64_t> shape, const std::vector<T>& values) {
  return {dtype, std::move(shape),
          std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T))};
}

inline std::string build(const Metadata& metadata, const std::map<std::string, Stated>& tensors) {
  std::string header = "{\"__metadata__\":{", data;
  for (const auto& [key, value] : metadata) {
    if (header.back() != '{') header += ',';
    header += "\"" + key + "\":\"" + value + "\"";
  }
  header += "}";
  for (const auto& [name, t] : tensors) {
    header += ",\"" + name + "\":{\"dtype\":\"" + t.dtype + "\",\"shape\":[";
    for (size_t i = 0; i < t.shape.size(); ++i) header += (i > 0 ? "," : "") + std::to_string(t.shape[i]);
    header += "],\"data_offsets\":[" + std::to_string(data.size()) + "," +
              std::to_string(data.size() + t.bytes.size()) + "]}";
    data += t.bytes;
  }
  return raw_file(header + "}", data);
}

inline std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

inline void spill(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

// The bytes of a dense view.
inline std::string bytes_of(const TensorView& view) {
  if (view.elements() == 0) return {};
  return std::string(static_cast<const char*>(view.data),
                     static_cast<size_t>(view.elements() * dtype_bytes(view.dtype)));
}

}  // namespace tamis::io
