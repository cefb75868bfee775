#include "io/output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "core/checks.h"

namespace tamis::io {
namespace {

Status os_error(const std::string& path, const char* what) {
  const int error = errno;
  return {Code::kIoError, text("'", path, "': ", what, ": ", std::generic_category().message(error))};
}

}  // namespace

Output::~Output() {
  if (fd_ >= 0) ::close(fd_);
  if (!beside_.empty()) ::unlink(beside_.c_str());
}

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

}  // namespace tamis::io
