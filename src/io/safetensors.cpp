// The safetensors container: 8 bytes of header length, the header, then the bytes of the tensors back to
// back. Source: the format section of the safetensors project's README.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <new>
#include <system_error>
#include <tuple>

#include "core/checks.h"
#include "io/header.h"
#include "io/load.h"
#include "io/text.h"

namespace tamis::io {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are used in the byte order of the file");

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kLine = 64;

template <class... Args>
Status io_error(const Args&... args) {
  return {Code::kIoError, text(args...)};
}

std::string reason(int error) { return std::generic_category().message(error); }

// Sorts the entries by place and checks that they cover the data exactly: inside, no gap, no overlap, and
// each as long as its shape says. Empty tensors come before what starts at the same byte.
Status check_places(std::vector<HeaderEntry>& entries, int64_t data_bytes) {
  std::sort(entries.begin(), entries.end(), [](const HeaderEntry& a, const HeaderEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  int64_t reached = 0;
  for (const HeaderEntry& e : entries) {
    const std::string span = std::to_string(e.begin) + ".." + std::to_string(e.end);
    if (e.begin > e.end || e.end > data_bytes) {
      return io_error(in_quotes(e.name), ": bytes ", span, " are not inside the ", data_bytes,
                      " bytes of data");
    }
    const std::optional<int64_t> bytes = byte_count(e.rank, e.shape, e.dtype);
    if (!bytes) return io_error(in_quotes(e.name), ": the extents of its shape are too large");
    if (*bytes != e.end - e.begin) {
      return io_error(in_quotes(e.name), ": bytes ", span, " do not hold its shape, which takes ", *bytes);
    }
    if (e.begin != reached) {
      return io_error(in_quotes(e.name), ": starts at byte ", e.begin, ", expected ", reached,
                      ": tensors overlap or leave a gap");
    }
    reached = e.end;
  }
  if (reached != data_bytes) {
    return io_error(data_bytes - reached, " bytes follow the last tensor");
  }
  return {};
}

int64_t round_to_line(int64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

TensorView view_of(const HeaderEntry& entry, const std::byte* data) {
  TensorView view{.data = data, .dtype = entry.dtype, .rank = entry.rank, .shape = entry.shape};
  int64_t step = 1;
  for (int axis = entry.rank - 1; axis >= 0; --axis) {
    view.stride[axis] = step;
    step *= entry.shape[axis];
  }
  return view;
}

std::shared_ptr<std::byte> allocate(int64_t bytes) {
  constexpr std::align_val_t kAlign{kLine};
  void* block = ::operator new(static_cast<size_t>(bytes), kAlign, std::nothrow);
  if (block == nullptr) return nullptr;
  return {static_cast<std::byte*>(block), [](std::byte* p) { ::operator delete(p, kAlign); }};
}

// Reads the tensors of a checked header, each to a line of its own.
Result<TensorFile> load_data(Header header, int64_t data_at, const ReadAt& read) {
  int64_t total = 0;
  for (const HeaderEntry& e : header.entries) {
    // The sum of the lengths is below the file's size, but a line's rounding is added for each of them.
    if (__builtin_add_overflow(total, round_to_line(e.end - e.begin), &total)) {
      return io_error("the tensors are too large together");
    }
  }
  const std::shared_ptr<std::byte> block = allocate(std::max(total, kLine));
  if (!block) return io_error("no memory for ", total, " bytes of tensors");
  TensorFile file{.metadata = std::move(header.metadata), .tensors = {}, .storage = block};
  std::byte* place = block.get();
  for (HeaderEntry& e : header.entries) {
    const int64_t bytes = e.end - e.begin;
    if (bytes > 0) {
      TAMIS_RETURN_IF_ERROR(read(data_at + e.begin, place, bytes));
    }
    file.tensors.emplace(std::move(e.name), view_of(e, place));
    place += round_to_line(bytes);
  }
  return file;
}

// An open file that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

Status read_at(int fd, int64_t offset, void* to, int64_t count) {
  constexpr int64_t kMost = int64_t{1} << 30;  // one call moves at most 2 GiB on Linux
  for (auto* place = static_cast<std::byte*>(to); count > 0;) {
    const ssize_t got = ::pread(fd, place, static_cast<size_t>(std::min(count, kMost)), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return io_error("cannot read: ", reason(errno));
    if (got == 0) return io_error("file became shorter while it was read");
    place += got;
    offset += got;
    count -= got;
  }
  return {};
}

Result<TensorFile> read_file(const std::string& path, const ReadLimits& limits) {
  // Not blocking: opening a FIFO must not wait for a writer that never comes.
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
  if (fd.get() < 0) return io_error("cannot open: ", reason(errno));
  struct stat before {
  }, after{};
  if (::fstat(fd.get(), &before) != 0) return io_error("cannot look at: ", reason(errno));
  if (!S_ISREG(before.st_mode)) return io_error("is not a regular file");
  const auto read = [&](int64_t offset, void* to, int64_t count) {
    return read_at(fd.get(), offset, to, count);
  };
  Result<TensorFile> file = load(before.st_size, read, limits);
  if (file.ok() && (::fstat(fd.get(), &after) != 0 || after.st_size != before.st_size)) {
    return io_error("size changed while the file was read");
  }
  return file;
}

}  // namespace

Result<TensorFile> load(int64_t size, const ReadAt& read, const ReadLimits& limits) try {
  if (size < kLengthBytes) return io_error("file is shorter than the 8 bytes of the header length");
  if (size > limits.file_bytes) {
    return io_error("file has ", size, " bytes, the limit is ", limits.file_bytes);
  }
  uint64_t length = 0;
  TAMIS_RETURN_IF_ERROR(read(0, &length, kLengthBytes));
  if (length > static_cast<uint64_t>(size - kLengthBytes)) {
    return io_error("header of ", length, " bytes does not fit a file of ", size);
  }
  const int64_t header_bytes = static_cast<int64_t>(length);
  if (header_bytes > limits.header_bytes) {
    return io_error("header has ", header_bytes, " bytes, the limit is ", limits.header_bytes);
  }
  std::string text(length, '\0');
  TAMIS_RETURN_IF_ERROR(read(kLengthBytes, text.data(), header_bytes));
  Result<Header> header = parse_header(text, limits);
  if (!header.ok()) return header.status();
  const int64_t data_at = kLengthBytes + header_bytes;
  TAMIS_RETURN_IF_ERROR(check_places(header->entries, size - data_at));
  return load_data(std::move(*header), data_at, read);
} catch (const std::bad_alloc&) {
  return io_error("no memory for the header");
}

Result<TensorFile> parse_tensors(const void* data, size_t size, const ReadLimits& limits) {
  if (size > static_cast<size_t>(INT64_MAX)) return io_error("more than 2^63 bytes");
  const auto read = [data](int64_t offset, void* to, int64_t count) {
    if (count > 0) std::memcpy(to, static_cast<const std::byte*>(data) + offset, static_cast<size_t>(count));
    return Status();
  };
  return load(static_cast<int64_t>(size), read, limits);
}

Result<TensorFile> read_tensors(const std::string& path, const ReadLimits& limits) try {
  Result<TensorFile> file = read_file(path, limits);
  if (file.ok()) return file;
  return io_error("'", path, "': ", file.status().message());
} catch (const std::bad_alloc&) {
  return io_error("no memory to read a file");
}

}  // namespace tamis::io
