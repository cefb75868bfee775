// Containers: places of tensors, damaged files, and things that are not files.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <limits>

#include "io/bytes.h"
#include "io/load.h"

namespace tamis::io {
namespace {

std::string entry(const char* dtype, const char* shape, uint64_t begin, uint64_t end) {
  return std::string(R"({"dtype":")") + dtype + R"(","shape":)" + shape + R"(,"data_offsets":[)" +
         std::to_string(begin) + "," + std::to_string(end) + "]}";
}

// A file of three tensors, two of them at odd places, and metadata.
std::string small_file() {
  return raw_file(R"({"__metadata__":{"k":"v"},"a":)" + entry("U8", "[3]", 0, 3) + ",\"b\":" +
                      entry("F32", "[2,2]", 3, 19) + ",\"c\":" + entry("I64", "[1]", 19, 27) + "}",
                  "abcdefghijklmnopqrstuvwxyz!");
}

TEST(Safetensors, AlignsEveryTensor) {
  const Result<TensorFile> file = parse(small_file());
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->metadata.at("k"), "v");
  ASSERT_EQ(file->tensors.size(), 3u);
  for (const auto& [name, view] : file->tensors) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(view.data) % 64, 0u) << name;
  }
  EXPECT_EQ(bytes_of(file->tensors.at("a")), "abc");
  EXPECT_EQ(bytes_of(file->tensors.at("b")), "defghijklmnopqrs");
  EXPECT_EQ(bytes_of(file->tensors.at("c")), "tuvwxyz!");
  // Read as numbers: a misaligned place would be reported by the sanitizer.
  EXPECT_NE(file->tensors.at("b").at<float>({1, 1}), 0.f);
  EXPECT_NE(file->tensors.at("c").at<int64_t>({0}), 0);
}

TEST(Safetensors, ViewsLiveAsLongAsTheStorage) {
  TensorView kept;
  std::shared_ptr<const void> storage;
  {
    const Result<TensorFile> file = parse(small_file());
    ASSERT_TRUE(file.ok());
    const TensorFile copy = *file;
    kept = copy.tensors.at("a");
    storage = copy.storage;
  }
  EXPECT_EQ(bytes_of(kept), "abc");
}

TEST(Safetensors, TakesEmptyTensorsAnywhere) {
  const std::string five = entry("U8", "[5]", 0, 5);
  for (const char* place : {"0", "5"}) {
    const uint64_t at = std::stoull(place);
    for (const char* shape : {"[0]", "[0,7]", "[7,0]", "[2,0,3]", "[4611686018427387904,0]"}) {
      const Result<TensorFile> file =
          parse(raw_file("{\"b\":" + five + ",\"a\":" + entry("U8", shape, at, at) +
                             ",\"c\":" + entry("I64", "[0]", 5, 5) + "}",
                         "12345"));
      ASSERT_TRUE(file.ok()) << file.status().message();
      EXPECT_EQ(file->tensors.at("a").elements(), 0);
      EXPECT_EQ(bytes_of(file->tensors.at("b")), "12345");
    }
  }
  expect_io_error(raw_file("{\"b\":" + five + ",\"a\":" + entry("U8", "[0]", 3, 3) + "}", "12345"),
                  "overlap");
  expect_io_error(raw_file("{\"b\":" + five + ",\"a\":" + entry("U8", "[0]", 6, 6) + "}", "12345"),
                  "not inside");
  EXPECT_TRUE(parse(raw_file("{\"a\":" + entry("F64", "[0]", 0, 0) + "}")).ok());
}

TEST(Safetensors, RefusesLyingPlaces) {
  const auto two = [](uint64_t a0, uint64_t a1, uint64_t b0, uint64_t b1, size_t data) {
    const auto shape = [](uint64_t n) { return "[" + std::to_string(n) + "]"; };
    return raw_file("{\"a\":" + entry("U8", shape(a1 - a0).c_str(), a0, a1) +
                        ",\"b\":" + entry("U8", shape(b1 - b0).c_str(), b0, b1) + "}",
                    std::string(data, 'x'));
  };
  EXPECT_TRUE(parse(two(0, 4, 4, 8, 8)).ok());
  EXPECT_TRUE(parse(two(4, 8, 0, 4, 8)).ok());  // the header's order is free
  expect_io_error(two(0, 4, 5, 8, 8), "gap");
  expect_io_error(two(1, 4, 4, 8, 8), "gap");
  expect_io_error(two(0, 5, 4, 8, 8), "overlap");
  expect_io_error(two(0, 8, 0, 8, 8), "overlap");
  expect_io_error(two(0, 8, 2, 4, 8), "overlap");
  expect_io_error(two(0, 4, 4, 8, 9), "follow the last tensor");
  expect_io_error(two(0, 4, 4, 8, 7), "not inside");
  expect_io_error(raw_file("{}", "x"), "follow the last tensor");
  expect_io_error(one_entry(entry("U8", "[0]", 8, 0)), "not inside");
  expect_io_error(one_entry(entry("U8", "[1]", INT64_MAX, INT64_MAX)), "not inside");
}

TEST(Safetensors, RefusesShapesThatDoNotFitTheirBytes) {
  for (const char* shape :
       {"[]", "[0]", "[1]", "[3]", "[2,2]", "[2305843009213693951]", "[1048576,1048576]"}) {
    expect_io_error(one_entry(entry("F32", shape, 0, 8)), "do not hold its shape");
  }
  // Each product is 0 or 8 modulo 2^64.
  for (const char* shape : {"[4611686018427387904,4611686018427387904]", "[4611686018427387904]",
                            "[4294967296,4294967296,2]", "[9223372036854775807,9223372036854775807]",
                            "[2305843009213693953,2,4]", "[0,9223372036854775807,9223372036854775807]"}) {
    expect_io_error(one_entry(entry("F32", shape, 0, 8)), "too large");
  }
}

TEST(Safetensors, RefusesLyingHeaderLengths) {
  for (uint64_t length : {uint64_t{3}, uint64_t{1} << 31, uint64_t{1} << 32, (uint64_t{1} << 63) - 1,
                          uint64_t{1} << 63, (uint64_t{1} << 63) + 8, UINT64_MAX - 7, UINT64_MAX}) {
    expect_io_error(le64(length) + "{}", "does not fit");
  }
  expect_io_error(le64(0) + "{}", "not a JSON object");
  expect_io_error(le64(1) + "{}", "not JSON");
  expect_io_error(le64(0), "not a JSON object");
}

TEST(Safetensors, RefusesEveryPrefix) {
  const std::string whole = small_file();
  ASSERT_TRUE(parse(whole).ok());
  for (size_t n = 0; n < whole.size(); ++n) {
    EXPECT_EQ(parse(whole.substr(0, n)).status().code(), Code::kIoError) << n << " bytes";
  }
  EXPECT_EQ(parse_tensors(nullptr, 0).status().code(), Code::kIoError);
}

TEST(Safetensors, SurvivesEveryFlippedBit) {
  const std::string whole = small_file();
  for (size_t n = 0; n < whole.size(); ++n) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = whole;
      damaged[n] = static_cast<char>(damaged[n] ^ (1 << bit));
      const Result<TensorFile> file = parse(damaged);
      if (!file.ok()) {
        EXPECT_EQ(file.status().code(), Code::kIoError);
        continue;
      }
      size_t bytes = 0;
      for (const auto& [name, view] : file->tensors) bytes += bytes_of(view).size();
      EXPECT_EQ(bytes, 27u);
    }
  }
}

TEST(Safetensors, ReadsAFileAsItsBytes) {
  const TempFolder folder;
  spill(folder / "a", small_file());
  const Result<TensorFile> file = read_tensors(folder / "a");
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(bytes_of(file->tensors.at("b")), "defghijklmnopqrs");
  expect_code(read_tensors(folder / "a", {.file_bytes = 100}).status(), Code::kIoError, "limit is 100");
}

TEST(Safetensors, NamesThePathAndTheReason) {
  const TempFolder folder;
  expect_code(read_tensors(folder / "none").status(), Code::kIoError, "No such file");
  expect_code(read_tensors(folder / "none").status(), Code::kIoError, folder / "none");
  expect_code(read_tensors("").status(), Code::kIoError, "cannot open");
  spill(folder / "a", "");
  expect_code(read_tensors(folder / "a").status(), Code::kIoError, "shorter than");
}

TEST(Safetensors, ReadsOnlyRegularFiles) {
  const TempFolder folder;
  expect_code(read_tensors(folder.path()).status(), Code::kIoError, "not a regular file");
  expect_code(read_tensors("/dev/null").status(), Code::kIoError, "not a regular file");
  expect_code(read_tensors("/dev/zero").status(), Code::kIoError, "not a regular file");
  // Nobody will ever write to it: opening must not wait.
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  expect_code(read_tensors(folder / "fifo").status(), Code::kIoError, "not a regular file");
}

int64_t peak_kib() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

TEST(Safetensors, HugeSparseFilesCostNothing) {
  const TempFolder folder;
  const std::string path = folder / "sparse";
  const ReadLimits unlimited{.file_bytes = INT64_MAX};
  const int64_t before = peak_kib();
  const auto make = [&](std::string_view start) {
    spill(path, start);
    return ::truncate(path.c_str(), off_t{1} << 40) == 0;
  };
  if (!make("")) GTEST_SKIP() << "the file system holds no file of 1 TiB";
  expect_code(read_tensors(path).status(), Code::kIoError, "limit");
  expect_code(read_tensors(path, unlimited).status(), Code::kIoError, "not a JSON object");
  ASSERT_TRUE(make(le64(uint64_t{1} << 39)));
  expect_code(read_tensors(path, unlimited).status(), Code::kIoError, "limit");
  ASSERT_TRUE(make(raw_file("{}")));
  expect_code(read_tensors(path, unlimited).status(), Code::kIoError, "follow the last tensor");
  ASSERT_TRUE(make(raw_file("{\"a\":" + entry("U8", "[2199023255552]", 0, uint64_t{1} << 41) + "}")));
  expect_code(read_tensors(path, unlimited).status(), Code::kIoError, "not inside");
  EXPECT_LT(peak_kib() - before, 64 << 10);
}

// A source that has fewer bytes than it promised, from a given read on.
TEST(Safetensors, NoticesAFileThatShrinks) {
  const std::string whole = small_file();
  for (size_t end = 0; end < whole.size(); ++end) {
    const ReadAt read = [&](int64_t offset, void* to, int64_t count) -> Status {
      if (static_cast<size_t>(offset + count) > end) return Status(Code::kIoError, "became shorter");
      std::memcpy(to, whole.data() + offset, static_cast<size_t>(count));
      return {};
    };
    expect_code(load(static_cast<int64_t>(whole.size()), read, {}).status(), Code::kIoError,
                "became shorter");
  }
}

}  // namespace
}  // namespace tamis::io
