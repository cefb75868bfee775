// Writing: the same bytes for the same input, strided views made dense, and nothing left behind by a failure.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <iterator>
#include <limits>
#include <numeric>

#include "io/bytes.h"

namespace tamis::io {
namespace {

const std::array<float, 24> kNumbers = [] {
  std::array<float, 24> numbers{};
  std::iota(numbers.begin(), numbers.end(), 0.f);
  return numbers;
}();
const uint8_t kOdd[3] = {7, 8, 9};

TEST(WriteTensors, RoundTrips) {
  const TempFolder folder;
  const NamedTensors tensors = {{"odd", dense_view(kOdd, DType::kU8, {3})},
                                {"x", dense_view(kNumbers.data(), DType::kF32, {2, 3, 4})},
                                {"scalar", dense_view(kNumbers.data() + 5, DType::kF32, {})},
                                {"none", dense_view(nullptr, DType::kI64, {4, 0})}};
  const Metadata metadata = {{"quote", "\"\\\n\x01"}, {"name", "\xC3\xA9t\xC3\xA9"}, {"", ""}};
  ASSERT_TRUE(write_tensors(folder / "a", tensors, metadata).ok());
  const Result<TensorFile> file = read_tensors(folder / "a");
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->metadata, metadata);
  ASSERT_EQ(file->tensors.size(), tensors.size());
  for (const auto& [name, view] : tensors) {
    const TensorView& read = file->tensors.at(name);
    EXPECT_EQ(read.dtype, view.dtype);
    EXPECT_EQ(read.rank, view.rank);
    EXPECT_EQ(read.shape, view.shape);
    EXPECT_EQ(bytes_of(read), bytes_of(view)) << name;
  }
}

TEST(WriteTensors, HasOneFormOfBytes) {
  const TempFolder folder;
  const NamedTensors tensors = {{"odd", dense_view(kOdd, DType::kU8, {3})},
                                {"x", dense_view(kNumbers.data(), DType::kF32, {2})}};
  ASSERT_TRUE(write_tensors(folder / "a", tensors, {{"k", "v"}}).ok());
  // Larger elements first, so that every tensor is aligned in the file; the header padded to 8.
  std::string header = R"({"__metadata__":{"k":"v"},"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                       R"("odd":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}})";
  header.append((8 - header.size() % 8) % 8, ' ');
  std::string data(reinterpret_cast<const char*>(kNumbers.data()), 8);
  data += "\x07\x08\x09";
  EXPECT_EQ(slurp(folder / "a"), raw_file(header, data));
  ASSERT_TRUE(write_tensors(folder / "b", tensors, {{"k", "v"}}).ok());
  EXPECT_EQ(slurp(folder / "a"), slurp(folder / "b"));
  ASSERT_TRUE(write_tensors(folder / "empty", {}).ok());
  EXPECT_EQ(slurp(folder / "empty"), raw_file("{}      "));
}

// What a strided view holds, element by element.
std::string gather(const TensorView& view) {
  std::string out;
  for (int64_t i = 0; i < view.shape[0]; ++i) {
    for (int64_t j = 0; j < view.shape[1]; ++j) {
      for (int64_t k = 0; k < view.shape[2]; ++k) {
        out.append(reinterpret_cast<const char*>(&view.at<float>({i, j, k})), sizeof(float));
      }
    }
  }
  return out;
}

TEST(WriteTensors, WritesStridedViewsDense) {
  const TempFolder folder;
  const std::array<int64_t, kMaxRank> strides[] = {{12, 4, 1}, {1, 2, 6},     {0, 0, 0}, {12, 4, 0},
                                                   {0, 4, 1},  {-12, -4, -1}, {1, 8, 2}, {24, 4, 1}};
  for (const auto& stride : strides) {
    TensorView view{
        .data = kNumbers.data(), .dtype = DType::kF32, .rank = 3, .shape = {2, 3, 4}, .stride = stride};
    if (stride[0] < 0) view.data = kNumbers.data() + 23;
    if (stride[0] == 24) view.shape[0] = 1;
    ASSERT_TRUE(write_tensors(folder / "a", {{"x", view}}).ok());
    const Result<TensorFile> file = read_tensors(folder / "a");
    ASSERT_TRUE(file.ok()) << file.status().message();
    EXPECT_EQ(bytes_of(file->tensors.at("x")), gather(view))
        << stride[0] << " " << stride[1] << " " << stride[2];
  }
}

TEST(WriteTensors, WritesRunsLongerThanItsBuffer) {
  const TempFolder folder;
  std::vector<float> wide(3 * 40000);
  std::iota(wide.begin(), wide.end(), 0.f);
  const TensorView rows{
      .data = wide.data(), .dtype = DType::kF32, .rank = 2, .shape = {3, 39999}, .stride = {40000, 1}};
  const TensorView columns{
      .data = wide.data(), .dtype = DType::kF32, .rank = 2, .shape = {40000, 3}, .stride = {1, 40000}};
  ASSERT_TRUE(write_tensors(folder / "a", {{"rows", rows}, {"columns", columns}}).ok());
  const Result<TensorFile> file = read_tensors(folder / "a");
  ASSERT_TRUE(file.ok()) << file.status().message();
  for (int64_t i = 0; i < 3; ++i) {
    for (int64_t j = 0; j < 39999; ++j) {
      ASSERT_EQ(file->tensors.at("rows").at<float>({i, j}), wide[i * 40000 + j]);
      ASSERT_EQ(file->tensors.at("columns").at<float>({j, i}), wide[i * 40000 + j]);
    }
  }
}

TEST(WriteTensors, RefusesWhatNoFileCanHold) {
  const TempFolder folder;
  const TensorView x = dense_view(kNumbers.data(), DType::kF32, {2});
  const TensorView huge{.data = kNumbers.data(), .rank = 2, .shape = {INT64_MAX, 4}, .stride = {0, 0}};
  const TensorView large{.data = kNumbers.data(), .rank = 1, .shape = {int64_t{1} << 60}, .stride = {0}};
  const auto refused = [&](const NamedTensors& tensors, const Metadata& metadata = {}) {
    expect_code(write_tensors(folder / "a", tensors, metadata), Code::kInvalidArgument, "");
  };
  refused({{"x", x}, {"x", x}});
  refused({{"__metadata__", x}});
  refused({{"x", TensorView{}}});
  refused({{"x", dense_view(nullptr, DType::kF32, {2})}});
  refused({{"x", dense_view(kNumbers.data(), DType::kF32, {-1})}});
  refused({{"x", huge}});
  refused({{"x", large}, {"y", large}});
  refused({{"\xFF", x}});
  refused({{"x", x}}, {{"k", "\xFF"}});
  refused({{"x", x}}, {{"\xFF", "v"}});
  EXPECT_EQ(folder.entries(), 0);
}

TEST(WriteTensors, ReplacesWholeFilesOnly) {
  const TempFolder folder;
  spill(folder / "a", "old");
  ASSERT_EQ(::chmod((folder / "a").c_str(), 0666), 0);
  ASSERT_EQ(::symlink("a", (folder / "link").c_str()), 0);
  ASSERT_TRUE(write_tensors(folder / "link", {{"x", dense_view(kNumbers.data(), DType::kF32, {2})}}).ok());
  EXPECT_EQ(folder.entries(), 2);
  EXPECT_TRUE(read_tensors(folder / "a").ok());
  struct stat info {};
  ASSERT_EQ(::lstat((folder / "link").c_str(), &info), 0);
  EXPECT_TRUE(S_ISLNK(info.st_mode));
  ASSERT_EQ(::stat((folder / "a").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0666u);
}

TEST(WriteText, ReplacesWholeFilesAndKeepsLinks) {
  const TempFolder folder;
  const std::string target = folder / "target", link = folder / "link";
  ASSERT_TRUE(write_text(target, "old and longer").ok());
  ASSERT_EQ(::symlink("target", link.c_str()), 0);
  ASSERT_TRUE(write_text(link, "new").ok());
  struct stat of_link {};
  ASSERT_EQ(::lstat(link.c_str(), &of_link), 0);
  EXPECT_TRUE(S_ISLNK(of_link.st_mode));
  std::ifstream file(target);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "new");
  EXPECT_EQ(write_text(folder / "no" + "/such/folder", "x").code(), Code::kIoError);
}

TEST(WriteTensors, WritesToTheCurrentFolder) {
  const TempFolder folder;
  const auto old = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  EXPECT_TRUE(write_tensors("plain", {}).ok());
  std::filesystem::current_path(old);
  EXPECT_TRUE(read_tensors(folder / "plain").ok());
}

TEST(WriteTensors, WritesDevicesAndPipesDirectly) {
  EXPECT_TRUE(write_tensors("/dev/null", {}).ok());
  struct stat info {};
  ASSERT_EQ(::stat("/dev/null", &info), 0);
  EXPECT_TRUE(S_ISCHR(info.st_mode));
  const TempFolder folder;
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  const int end = ::open((folder / "fifo").c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(end, 0);
  ASSERT_TRUE(write_tensors(folder / "fifo", {}).ok());
  char bytes[32];
  EXPECT_EQ(::read(end, bytes, sizeof bytes), 16);
  ::close(end);
  EXPECT_EQ(folder.entries(), 1);
}

TEST(WriteTensors, SaysWhyItFailed) {
  const TempFolder folder;
  expect_code(write_tensors(folder / "none/a", {}), Code::kIoError, "No such file or directory");
  expect_code(write_tensors(folder.path(), {}), Code::kIoError, "Is a directory");
  expect_code(write_tensors("", {}), Code::kIoError, "No such file or directory");
  if (::access("/dev/full", W_OK) == 0) {
    expect_code(write_tensors("/dev/full", {}), Code::kIoError, "No space left on device");
  }
  spill(folder / "file", "x");
  expect_code(write_tensors(folder / "file/a", {}), Code::kIoError, "Not a directory");
  EXPECT_EQ(slurp(folder / "file"), "x");
}

TEST(WriteTensors, LeavesNothingWhenTheNameIsRefused) {
  const TempFolder folder;
  expect_code(write_tensors(folder / std::string(300, 'a'), {}), Code::kIoError, "too long");
  EXPECT_EQ(folder.entries(), 0);
}

TEST(WriteTensors, LeavesNothingWhenTheDiskIsFull) {
  const TempFolder folder;
  spill(folder / "a", "old");
  struct rlimit old {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  struct rlimit small = old;
  small.rlim_cur = 100 << 10;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::vector<float> big(100 << 10);
  const TensorView dense = dense_view(big.data(), DType::kF32, {100 << 10});
  TensorView strided = dense;
  strided.shape[0] = 50 << 10;
  strided.stride[0] = 2;
  const Status first = write_tensors(folder / "a", {{"x", dense}});
  const Status second = write_tensors(folder / "b", {{"x", strided}});
  ::setrlimit(RLIMIT_FSIZE, &old);
  ::signal(SIGXFSZ, handler);
  expect_code(first, Code::kIoError, "File too large");
  expect_code(second, Code::kIoError, "File too large");
  EXPECT_EQ(folder.entries(), 1);
  EXPECT_EQ(slurp(folder / "a"), "old");
}

}  // namespace
}  // namespace tamis::io
