// Errors as values.
//
// Every function that can fail returns a Status or a Result<T>; the library never throws, prints or aborts. A
// Status is cheap when it is ok (one null pointer) and owns its text otherwise. The codes and what they mean
// are section 10 of docs/semantics.md.
//
// Threads: a Status is a value; share it like any other value.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace tamis {

enum class Code : int {
  kOk = 0,
  kInvalidArgument,
  kIndexOutOfRange,
  kDuplicateIndex,
  kUnsupportedSemantics,
  kPageOutOfRange,
  kPageUnmapped,
  kForeignPage,
  kWorkspaceTooSmall,
  kCapacityExceeded,
  kStalePlan,
  kNotCapturable,
  kUnsupported,
  kIoError,
  kDeviceError,
};

// "ok", "invalid_argument", ... as spelled in docs/semantics.md. Never null.
const char* code_name(Code code);

// Where an offence was found, as far as that applies. `row` is the candidate row, `page` the logical page,
// `value` the offending number (for pages: the stored table entry), `limit` the first value that is too
// large.
struct Where {
  std::optional<int64_t> request = {}, row = {}, page = {}, value = {}, limit = {};
};

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  Status(Code code, std::string message, Where where = {});
  Status(const Status& other);
  Status& operator=(const Status& other);
  Status(Status&&) = default;
  Status& operator=(Status&&) = default;

  bool ok() const { return detail_ == nullptr; }
  Code code() const { return ok() ? Code::kOk : detail_->code; }
  // Names the argument as docs/semantics.md section 11 spells it, the value and the limit. Empty when ok.
  const std::string& message() const&;
  std::string message() && { return static_cast<const Status&>(*this).message(); }  // of a temporary: a copy
  const Where& where() const;

 private:
  struct Detail {
    Code code;
    std::string message;
    Where where;
  };
  std::unique_ptr<const Detail> detail_;
};

// A T or the Status that says why there is none. Reading the value of a failed Result is undefined.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}
  Result(Status status) : state_(std::move(status)) {}  // must not be ok

  bool ok() const { return state_.index() == 0; }
  Status status() const { return ok() ? Status() : std::get<1>(state_); }

  T& operator*() { return *std::get_if<0>(&state_); }
  const T& operator*() const { return *std::get_if<0>(&state_); }
  T* operator->() { return std::get_if<0>(&state_); }
  const T* operator->() const { return std::get_if<0>(&state_); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace tamis
