#include "tamis/status.h"

namespace tamis {

Status::Status(Code code, std::string message, Where where)
    : detail_(std::make_unique<const Detail>(Detail{code, std::move(message), where})) {}

Status::Status(const Status& other)
    : detail_(other.detail_ ? std::make_unique<const Detail>(*other.detail_) : nullptr) {}

Status& Status::operator=(const Status& other) { return *this = Status(other); }

const std::string& Status::message() const& {
  static const std::string empty;
  return detail_ ? detail_->message : empty;
}

const Where& Status::where() const {
  static const Where nowhere;
  return detail_ ? detail_->where : nowhere;
}

const char* code_name(Code code) {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kInvalidArgument:
      return "invalid_argument";
    case Code::kIndexOutOfRange:
      return "index_out_of_range";
    case Code::kDuplicateIndex:
      return "duplicate_index";
    case Code::kUnsupportedSemantics:
      return "unsupported_semantics";
    case Code::kPageOutOfRange:
      return "page_out_of_range";
    case Code::kPageUnmapped:
      return "page_unmapped";
    case Code::kForeignPage:
      return "foreign_page";
    case Code::kWorkspaceTooSmall:
      return "workspace_too_small";
    case Code::kCapacityExceeded:
      return "capacity_exceeded";
    case Code::kStalePlan:
      return "stale_plan";
    case Code::kNotCapturable:
      return "not_capturable";
    case Code::kUnsupported:
      return "unsupported";
    case Code::kIoError:
      return "io_error";
    case Code::kDeviceError:
      return "device_error";
  }
  return "unknown";
}

}  // namespace tamis
