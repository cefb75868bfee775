#include "io/header.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "io/text.h"

namespace tamis::io {
namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 16;  // 3 are needed; more can only be inside unknown fields
constexpr uint64_t kMaxInt = std::numeric_limits<int64_t>::max();

std::optional<DType> find_dtype(std::string_view name) {
  for (int i = 0; i <= static_cast<int>(DType::kBool); ++i) {
    if (name == dtype_name(static_cast<DType>(i))) return static_cast<DType>(i);
  }
  return std::nullopt;
}

// Receives the parser's events. Every handler returns false to stop the parse, with the reason in `error`.
// No tree is built: what is not wanted is dropped as it passes.
class HeaderReader {
 public:
  HeaderReader(const ReadLimits& limits, Header& header) : limits_(limits), header_(header) {}

  std::string error;

  bool null() { return other_scalar(); }
  bool boolean(bool) { return other_scalar(); }
  bool number_integer(Json::number_integer_t) { return other_scalar(); }  // only negative ones come here
  bool number_float(Json::number_float_t, const std::string&) { return other_scalar(); }
  bool binary(Json::binary_t&) { return other_scalar(); }
  bool number_unsigned(Json::number_unsigned_t value);
  bool string(std::string& value);
  bool key(std::string& name);
  bool start_object(size_t) { return open(true); }
  bool start_array(size_t) { return open(false); }
  bool end_object() { return close(true); }
  bool end_array() { return close(false); }

  bool parse_error(size_t position, const std::string&, const Json::exception&) {
    return fail("header is not JSON (byte " + std::to_string(position) + ")");
  }

 private:
  enum class At { kOutside, kRoot, kMetadata, kEntry, kNumbers, kUnknown };
  enum class Field { kDType, kShape, kOffsets, kUnknown };

  bool fail(std::string why) {
    if (error.empty()) error = std::move(why);
    return false;
  }
  bool fail_field(const char* why) { return fail(in_quotes(name_) + ": " + why); }

  bool open(bool object);
  bool close(bool object);
  bool open_named(bool object);
  bool close_entry();
  bool other_scalar();
  bool wrong_value();

  const ReadLimits& limits_;
  Header& header_;
  At at_ = At::kOutside;
  int depth_ = 0, unknown_depth_ = 0;
  std::vector<std::set<std::string>> keys_;  // of every object that is open
  std::string name_;                         // the root key under way
  Field field_ = Field::kUnknown;            // of the entry under way
  std::string metadata_key_;
  HeaderEntry entry_;
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  int numbers_ = 0;  // elements of the array under way
};

// A value of a kind that its place does not allow.
bool HeaderReader::wrong_value() {
  switch (at_) {
    case At::kOutside:
      return fail("header is not a JSON object");
    case At::kRoot:
      return fail_field("is not a JSON object");
    case At::kMetadata:
      return fail("__metadata__ is not string to string");
    default:
      break;
  }
  switch (field_) {
    case Field::kDType:
      return fail_field("dtype is not a string");
    case Field::kShape:
      return fail_field("shape is not a list of integers in [0, 2^63)");
    case Field::kOffsets:
      return fail_field("data_offsets are not two integers in [0, 2^63)");
    case Field::kUnknown:
      return true;
  }
  return true;
}

bool HeaderReader::other_scalar() {
  const bool free = at_ == At::kUnknown || (at_ == At::kEntry && field_ == Field::kUnknown);
  return free || wrong_value();
}

bool HeaderReader::number_unsigned(Json::number_unsigned_t value) {
  if (at_ != At::kNumbers) return other_scalar();
  if (value > kMaxInt) return wrong_value();
  const int64_t number = static_cast<int64_t>(value);
  if (field_ == Field::kShape) {
    if (numbers_ == kMaxRank) {
      return fail(in_quotes(name_) + ": rank is over " + std::to_string(kMaxRank) +
                  ", the most there may be");
    }
    entry_.shape[numbers_] = number;
    entry_.rank = numbers_ + 1;
  } else {
    // A third number is refused when the array closes.
    (numbers_ == 0 ? entry_.begin : entry_.end) = number;
  }
  ++numbers_;
  return true;
}

bool HeaderReader::string(std::string& value) {
  if (at_ == At::kMetadata) {
    header_.metadata[metadata_key_] = std::move(value);
    return true;
  }
  if (at_ != At::kEntry || field_ != Field::kDType) return other_scalar();
  const std::optional<DType> dtype = find_dtype(value);
  if (!dtype) return fail(in_quotes(name_) + ": unknown dtype " + in_quotes(value));
  entry_.dtype = *dtype;
  return true;
}

bool HeaderReader::key(std::string& name) {
  if (!keys_.back().insert(name).second) return fail("header repeats the key " + in_quotes(name));
  // The root may hold __metadata__ beside its tensors. Other objects get the same bound, because every key
  // costs a node of many times its size in the text.
  if (static_cast<int64_t>(keys_.back().size()) - 1 > limits_.tensors) {
    return fail("an object of the header has more than " + std::to_string(limits_.tensors) + " keys");
  }
  if (at_ == At::kRoot) name_ = name;
  if (at_ == At::kMetadata) metadata_key_ = name;
  if (at_ != At::kEntry) return true;
  field_ = name == "dtype"          ? Field::kDType
           : name == "shape"        ? Field::kShape
           : name == "data_offsets" ? Field::kOffsets
                                    : Field::kUnknown;
  has_dtype_ |= field_ == Field::kDType;
  has_shape_ |= field_ == Field::kShape;
  has_offsets_ |= field_ == Field::kOffsets;
  return true;
}

bool HeaderReader::open(bool object) {
  if (++depth_ > kMaxDepth) return fail("header is nested more than " + std::to_string(kMaxDepth) + " deep");
  if (object) keys_.emplace_back();
  switch (at_) {
    case At::kOutside:
      return object ? (at_ = At::kRoot, true) : wrong_value();
    case At::kRoot:
      return open_named(object);
    case At::kMetadata:
      return wrong_value();
    case At::kNumbers:
      return wrong_value();
    case At::kUnknown:
      return ++unknown_depth_, true;
    case At::kEntry:
      break;
  }
  if (field_ == Field::kUnknown) return at_ = At::kUnknown, unknown_depth_ = 1, true;
  if (object || field_ == Field::kDType) return wrong_value();
  at_ = At::kNumbers;
  numbers_ = 0;
  return true;
}

bool HeaderReader::open_named(bool object) {
  if (name_ == "__metadata__") {
    at_ = At::kMetadata;
    return object || wrong_value();
  }
  if (!object) return wrong_value();
  if (static_cast<int64_t>(header_.entries.size()) >= limits_.tensors) {
    return fail("file holds more than " + std::to_string(limits_.tensors) + " tensors");
  }
  at_ = At::kEntry;
  entry_ = HeaderEntry{.name = name_};
  has_dtype_ = has_shape_ = has_offsets_ = false;
  return true;
}

bool HeaderReader::close(bool object) {
  --depth_;
  if (object) keys_.pop_back();
  switch (at_) {
    case At::kOutside:
      return true;
    case At::kRoot:
      return at_ = At::kOutside, true;
    case At::kMetadata:
      return at_ = At::kRoot, true;
    case At::kEntry:
      return close_entry();
    case At::kNumbers:
      if (field_ == Field::kOffsets && numbers_ != 2) return wrong_value();
      return at_ = At::kEntry, true;
    case At::kUnknown:
      if (--unknown_depth_ == 0) at_ = At::kEntry;
      return true;
  }
  return true;
}

bool HeaderReader::close_entry() {
  if (!has_dtype_ || !has_shape_ || !has_offsets_) {
    return fail_field("entry lacks dtype, shape or data_offsets");
  }
  header_.entries.push_back(std::move(entry_));
  at_ = At::kRoot;
  return true;
}

}  // namespace

Result<Header> parse_header(std::string_view text, const ReadLimits& limits) {
  // The format asks for a brace first. The parser would take a byte-order mark before it, and would take a
  // NUL byte for the end of the text and never look at what follows.
  if (text.empty() || text.front() != '{') return Status(Code::kIoError, "header is not a JSON object");
  if (text.find('\0') != text.npos) return Status(Code::kIoError, "header is not JSON (it holds a NUL byte)");
  Header header;
  HeaderReader reader(limits, header);
  if (!Json::sax_parse(text.begin(), text.end(), &reader)) {
    return Status(Code::kIoError, reader.error.empty() ? "header is not JSON" : reader.error);
  }
  return header;
}

std::optional<int64_t> byte_count(int rank, const std::array<int64_t, kMaxRank>& shape, DType dtype) {
  int64_t bytes = dtype_bytes(dtype);
  bool none = false;
  for (int axis = 0; axis < rank; ++axis) {
    if (shape[axis] < 0) return std::nullopt;
    none |= shape[axis] == 0;
    if (shape[axis] > 0 && __builtin_mul_overflow(bytes, shape[axis], &bytes)) return std::nullopt;
  }
  return none ? 0 : bytes;
}

}  // namespace tamis::io
