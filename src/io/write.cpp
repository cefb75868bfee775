// Writing safetensors files: the header from the views, then their elements, through a file beside the target
// that takes its name only when it is whole.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <string_view>
#include <system_error>
#include <vector>

#include "core/checks.h"
#include "io/header.h"
#include "io/text.h"

namespace tamis::io {
namespace {

using Json = nlohmann::json;

Status os_error(const std::string& path, const char* what) {
  const int error = errno;
  return {Code::kIoError, text("'", path, "': ", what, ": ", std::generic_category().message(error))};
}

// The file under way. Whatever ends it early, the destructor leaves nothing behind.
class Output {
 public:
  Output() = default;
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  ~Output() {
    if (fd_ >= 0) ::close(fd_);
    if (!beside_.empty()) ::unlink(beside_.c_str());
  }

  Status open(const std::string& path);
  Status put(const void* data, int64_t count);
  Status commit();

 private:
  Status open_beside(mode_t mode, bool keep_mode);
  Status flush();
  Status write_all(const std::byte* data, int64_t count);

  static constexpr size_t kBuffer = 64 << 10;

  int fd_ = -1;
  std::string target_, beside_;  // no file beside: the target itself is open
  std::vector<std::byte> buffer_;
};

Status Output::open(const std::string& path) {
  target_ = path;
  buffer_.reserve(kBuffer);
  struct stat old {};
  if (::stat(path.c_str(), &old) != 0) return open_beside(0666, false);
  if (S_ISREG(old.st_mode)) {
    // A link keeps pointing at its file: what is replaced is the file itself.
    if (char* real = ::realpath(path.c_str(), nullptr)) {
      target_ = real;
      std::free(real);
    }
    return open_beside(old.st_mode & 0777, true);
  }
  // Devices and pipes cannot be replaced, only written to.
  fd_ = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
  return fd_ >= 0 ? Status() : os_error(path, "cannot open for writing");
}

Status Output::open_beside(mode_t mode, bool keep_mode) {
  static std::atomic<unsigned> serial{0};
  const std::string folder = target_.substr(0, target_.rfind('/') + 1);  // empty: the current folder
  for (int attempt = 0; attempt < 100; ++attempt) {
    // The name does not grow with the target's, which may be as long as names may be.
    beside_ = folder + ".tamis-" + std::to_string(::getpid()) + "-" + std::to_string(serial++) + ".tmp";
    fd_ = ::open(beside_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd_ >= 0 || errno != EEXIST) break;
  }
  if (fd_ < 0) {
    beside_.clear();  // not ours to remove
    return os_error(target_, "cannot create a file beside it");
  }
  if (keep_mode && ::fchmod(fd_, mode) != 0) return os_error(target_, "cannot keep its permissions");
  return {};
}

Status Output::write_all(const std::byte* data, int64_t count) {
  constexpr int64_t kMost = int64_t{1} << 30;  // one call moves at most 2 GiB on Linux
  while (count > 0) {
    const ssize_t put = ::write(fd_, data, static_cast<size_t>(std::min(count, kMost)));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return os_error(target_, "cannot write");
    data += put;
    count -= put;
  }
  return {};
}

Status Output::flush() {
  Status s = write_all(buffer_.data(), static_cast<int64_t>(buffer_.size()));
  buffer_.clear();
  return s;
}

Status Output::put(const void* data, int64_t count) {
  const auto* bytes = static_cast<const std::byte*>(data);
  if (buffer_.size() + static_cast<size_t>(count) > kBuffer) {
    TAMIS_RETURN_IF_ERROR(flush());
  }
  if (static_cast<size_t>(count) >= kBuffer) return write_all(bytes, count);
  buffer_.insert(buffer_.end(), bytes, bytes + count);
  return {};
}

Status Output::commit() {
  TAMIS_RETURN_IF_ERROR(flush());
  const int fd = fd_;
  fd_ = -1;
  if (::close(fd) != 0) return os_error(target_, "cannot finish writing");
  if (beside_.empty()) return {};
  if (::rename(beside_.c_str(), target_.c_str()) != 0)
    return os_error(target_, "cannot put the file in place");
  beside_.clear();
  return {};
}

// A strided view, written dense. Trailing axes that already lie dense go out in one piece.
Status put_tensor(Output& out, const TensorView& view) {
  if (view.elements() == 0) return {};
  const int64_t size = dtype_bytes(view.dtype);
  int64_t run = 1;
  int outer = view.rank;
  while (outer > 0 && (view.shape[outer - 1] == 1 || view.stride[outer - 1] == run)) {
    run *= view.shape[--outer];
  }
  const auto* base = static_cast<const std::byte*>(view.data);
  std::array<int64_t, kMaxRank> at{};
  for (int64_t offset = 0;;) {
    TAMIS_RETURN_IF_ERROR(out.put(base + offset * size, run * size));
    int axis = outer - 1;
    for (; axis >= 0 && ++at[axis] == view.shape[axis]; --axis) {
      offset -= (view.shape[axis] - 1) * view.stride[axis];
      at[axis] = 0;
    }
    if (axis < 0) return {};
    offset += view.stride[axis];
  }
}

Status check_tensors(const NamedTensors& tensors) {
  std::set<std::string_view> names{"__metadata__"};
  for (const auto& [name, view] : tensors) {
    if (!names.insert(name).second) return invalid(in_quotes(name).c_str(), "the name is taken");
    if (!view.present() || view.rank > kMaxRank)
      return invalid(in_quotes(name).c_str(), "there is no such tensor");
    const std::optional<int64_t> bytes = byte_count(view.rank, view.shape, view.dtype);
    if (!bytes) return invalid(in_quotes(name).c_str(), "its extents are negative or too large");
    if (*bytes > 0 && view.data == nullptr) return invalid(in_quotes(name).c_str(), "there is no data");
  }
  return {};
}

// Tensors are placed by falling element size, in the caller's order within a size. The data starts at a
// multiple of 8, so every tensor lies at a multiple of its element size: readers that map files need that.
std::vector<size_t> order_of(const NamedTensors& tensors) {
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return dtype_bytes(tensors[a].second.dtype) > dtype_bytes(tensors[b].second.dtype);
  });
  return order;
}

// The JSON text, with spaces up to a multiple of 8. Throws Json::exception on text that is not UTF-8.
Result<std::string> header_text(const NamedTensors& tensors, const std::vector<size_t>& order,
                                const Metadata& metadata) {
  std::string text = "{";
  const auto add = [&](const std::string& name, const std::string& value) {
    if (text.size() > 1) text += ',';
    text += Json(name).dump() + ':' + value;
  };
  if (!metadata.empty()) add("__metadata__", Json(metadata).dump());
  int64_t begin = 0;
  for (size_t i : order) {
    const TensorView& view = tensors[i].second;
    int64_t end = 0;
    if (__builtin_add_overflow(begin, *byte_count(view.rank, view.shape, view.dtype), &end)) {
      return invalid(in_quotes(tensors[i].first).c_str(), "the tensors are too large together");
    }
    std::string value = R"({"dtype":")";
    value += dtype_name(view.dtype);
    value += R"(","shape":[)";
    for (int axis = 0; axis < view.rank; ++axis) {
      if (axis > 0) value += ',';
      value += std::to_string(view.shape[axis]);
    }
    value += R"(],"data_offsets":[)" + std::to_string(begin) + ',' + std::to_string(end) + "]}";
    add(tensors[i].first, value);
    begin = end;
  }
  text += '}';
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

}  // namespace

Status write_tensors(const std::string& path, const NamedTensors& tensors, const Metadata& metadata) try {
  TAMIS_RETURN_IF_ERROR(check_tensors(tensors));
  const std::vector<size_t> order = order_of(tensors);
  const Result<std::string> text = header_text(tensors, order, metadata);
  if (!text.ok()) return text.status();
  Output out;
  TAMIS_RETURN_IF_ERROR(out.open(path));
  const uint64_t length = text->size();
  TAMIS_RETURN_IF_ERROR(out.put(&length, sizeof length));
  TAMIS_RETURN_IF_ERROR(out.put(text->data(), static_cast<int64_t>(length)));
  for (size_t i : order) {
    TAMIS_RETURN_IF_ERROR(put_tensor(out, tensors[i].second));
  }
  return out.commit();
} catch (const Json::exception&) {
  return invalid("metadata", "a key, a value or a tensor's name is not UTF-8");
} catch (const std::bad_alloc&) {
  return {Code::kIoError, "no memory to write a file"};
}

Status write_text(const std::string& path, std::string_view text) try {
  Output out;
  TAMIS_RETURN_IF_ERROR(out.open(path));
  TAMIS_RETURN_IF_ERROR(out.put(text.data(), static_cast<int64_t>(text.size())));
  return out.commit();
} catch (const std::bad_alloc&) {
  return {Code::kIoError, "no memory to write a file"};
}

}  // namespace tamis::io
