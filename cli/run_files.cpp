#include "run_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

namespace tamis::cli {
namespace {

namespace fs = std::filesystem;

// A text on its way to a file: beside the target until `commit`, so that whatever goes wrong meanwhile leaves
// the target alone. Devices and pipes cannot be replaced; they are written to in place, and last.
class StagedText {
 public:
  StagedText() = default;
  StagedText(const StagedText&) = delete;
  ~StagedText() {
    if (fd_ >= 0) ::close(fd_);
    if (!beside_.empty()) ::unlink(beside_.c_str());
  }

  Status stage(const char* argument, const std::string& path, std::string text) {
    argument_ = argument;
    target_ = path;
    text_ = std::move(text);
    struct stat old {};
    if (::stat(path.c_str(), &old) == 0 && !S_ISREG(old.st_mode)) {
      fd_ = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
      return fd_ >= 0 ? Status() : os_error("open");
    }
    std::error_code none;
    if (const fs::path real = fs::canonical(path, none); !none) target_ = real.string();  // links stay links
    const std::string folder = target_.substr(0, target_.rfind('/') + 1);
    const mode_t mode = none ? 0666 : old.st_mode & 0777;
    for (int attempt = 0; attempt < 100; ++attempt) {  // a name may be left from a process that was killed
      beside_ = fmt::format("{}.tamis-{}-{}{}.tmp", folder, ::getpid(), argument_, attempt);
      fd_ = ::open(beside_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
      if (fd_ >= 0 || errno != EEXIST) break;
    }
    if (fd_ < 0) {
      beside_.clear();  // not ours to remove
      return os_error("create a file beside");
    }
    if (!none && ::fchmod(fd_, mode) != 0) return os_error("keep the permissions of");
    return write();
  }

  Status commit() {
    if (fd_ < 0) return {};
    if (beside_.empty())
      if (Status s = write(); !s.ok()) return s;
    const int fd = fd_;
    fd_ = -1;
    if (::close(fd) != 0) return os_error("finish");
    if (beside_.empty()) return {};
    if (::rename(beside_.c_str(), target_.c_str()) != 0) return os_error("put in place");
    beside_.clear();
    return {};
  }

 private:
  Status write() {
    for (size_t done = 0; done < text_.size();) {
      const ssize_t put = ::write(fd_, text_.data() + done, text_.size() - done);
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) return os_error("write");
      done += static_cast<size_t>(put);
    }
    return {};
  }

  Status os_error(const char* what) const {
    return {Code::kIoError, fmt::format("{}: cannot {} {}: {}", argument_, what, target_,
                                        std::generic_category().message(errno))};
  }

  int fd_ = -1;
  std::string argument_, target_, beside_, text_;  // no file beside: the target itself is open
};

// Names of files that need not exist yet.
bool same_name(const std::string& a, const std::string& b) {
  std::error_code none;
  const fs::path x = fs::weakly_canonical(a, none), y = fs::weakly_canonical(b, none);
  return same_file(a, b) || (x == y && !fs::exists(x, none));
}

Status write_result(const RunOptions& options, const Problem& p, const Shape& s, const Computed& values,
                    const reference::Sets& sets) {
  const int64_t count = static_cast<int64_t>(sets.tokens.size());
  io::NamedTensors tensors{
      {"out", dense_view(values.out.data(), DType::kF32, {s.total_q, s.q_heads, s.v_head_dim})},
      {"lse", dense_view(values.lse.data(), DType::kF32, {s.total_q, s.q_heads})}};
  if (values.gradients) {
    const GradientValues& g = *values.gradients;
    // Axes as in the inputs; an int4 input counts bytes along its last one, a gradient numbers.
    const auto add = [&](const char* name, const std::vector<float>& numbers, const TensorView& input,
                         int64_t dim) {
      TensorView t = input;
      t.data = numbers.data();
      t.dtype = DType::kF32;
      t.shape[t.rank - 1] = dim;
      int64_t step = 1;
      for (int axis = t.rank - 1; axis >= 0; step *= t.shape[axis--]) t.stride[axis] = step;
      tensors.push_back({name, t});
    };
    add("d_q", g.d_q, p.query.q, s.head_dim);
    add("d_k", g.d_k, p.cache.k, s.head_dim);
    add("d_v", g.d_v, p.cache.v, s.v_head_dim);
  }
  std::vector<int64_t> slots;
  if (options.dump_index) {
    slots = reference::physical_slots(p, sets);
    const int64_t offsets = static_cast<int64_t>(sets.indptr.size());
    tensors.push_back({"set_indptr", dense_view(sets.indptr.data(), DType::kI64, {offsets})});
    tensors.push_back({"set_tokens", dense_view(sets.tokens.data(), DType::kI32, {count})});
    tensors.push_back({"set_slots", dense_view(slots.data(), DType::kI64, {count})});
  }
  return io::write_tensors(options.out, tensors);
}

}  // namespace

// Devices may be named twice.
bool same_file(const std::string& a, const std::string& b) {
  std::error_code none;
  return fs::is_regular_file(a, none) && fs::equivalent(a, b, none);
}

Status check_targets(const RunOptions& o) {
  for (const auto& [argument, path] : {std::pair{"out", &o.out}, {"map", &o.map}}) {
    if (!path->empty() && same_file(*path, o.file))
      return {Code::kInvalidArgument, fmt::format("{}: {} is the case itself", argument, *path)};
    if (!path->empty() && !o.original.empty() && same_file(*path, o.original))
      return {Code::kInvalidArgument, fmt::format("{}: {} is the original case", argument, *path)};
  }
  if (!o.out.empty() && !o.map.empty() && same_name(o.out, o.map))
    return {Code::kInvalidArgument, fmt::format("map: {} is also the result file (out)", o.map)};
  return {};
}

Status write_files(const RunOptions& options, const Problem& problem, const RunReport& report,
                   const reference::Sets& sets) {
  StagedText map;
  if (!options.map.empty()) {
    const Shape& shape = report.shape;
    Result<std::string> svg =
        draw_map(problem, sets, shape.page_size > 0 ? shape.page_size : report.computed.block);
    if (!svg.ok()) return svg.status();
    if (Status s = map.stage("map", options.map, std::move(*svg)); !s.ok()) return s;
  }
  if (!options.out.empty())
    if (Status s = write_result(options, problem, report.shape, report.computed, sets); !s.ok()) return s;
  return map.commit();
}

}  // namespace tamis::cli
