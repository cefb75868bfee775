// Headers that lie, one field at a time. Each must be an io_error that says what is wrong.
#include "io/header.h"

#include "io/bytes.h"

namespace tamis::io {
namespace {

constexpr const char* kGood = R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})";

std::string entry_with(const std::string& from, const std::string& to) {
  std::string entry = kGood;
  entry.replace(entry.find(from), from.size(), to);
  return one_entry(entry);
}

TEST(Header, AcceptsAPlainFile) {
  const Result<TensorFile> file = parse(one_entry(kGood));
  ASSERT_TRUE(file.ok()) << file.status().message();
  const TensorView& x = file->tensors.at("x");
  EXPECT_EQ(x.dtype, DType::kF32);
  EXPECT_EQ(x.rank, 1);
  EXPECT_EQ(x.shape[0], 2);
  EXPECT_EQ(x.stride[0], 1);
}

TEST(Header, AcceptsAnEmptyObjectAndPadding) {
  EXPECT_TRUE(parse(raw_file("{}")).ok());
  EXPECT_TRUE(parse(raw_file("{}      ")).ok());
}

TEST(Header, KnowsEveryDtype) {
  for (int i = 0; i <= static_cast<int>(DType::kBool); ++i) {
    const DType dtype = static_cast<DType>(i);
    const std::string size = std::to_string(dtype_bytes(dtype));
    const std::string entry =
        R"({"dtype":")" + std::string(dtype_name(dtype)) + R"(","shape":[],"data_offsets":[0,)" + size + "]}";
    const Result<TensorFile> file = parse(one_entry(entry, static_cast<size_t>(dtype_bytes(dtype))));
    ASSERT_TRUE(file.ok()) << file.status().message();
    EXPECT_EQ(file->tensors.at("x").dtype, dtype);
    EXPECT_EQ(file->tensors.at("x").rank, 0);
  }
}

TEST(Header, RefusesWhatIsNotJson) {
  for (const char* text : {"", " ", "{", "}", "{]", "{\"a\"}", "{} {}", "{},", "{\"a\":}", "{'a':1}",
                           "{/**/}", "{\"x\":NaN}", "{\"x\":1e999}", "{\"x\":\"\\q\"}"}) {
    expect_io_error(raw_file(text), "header is not");
  }
}

TEST(Header, RefusesWhatIsNotAnObject) {
  for (const char* text :
       {"[]", "[{}]", "1", "-1", "1.5", "\"text\"", "null", "true", " {}", "\xEF\xBB\xBF{}"}) {
    expect_io_error(raw_file(text), "header is not a JSON object");
  }
}

TEST(Header, RefusesBytesHiddenBehindANul) {
  using namespace std::string_literals;
  expect_io_error(raw_file("{}\0"s), "NUL");
  expect_io_error(raw_file("{}\0 {\"x\":1}"s), "NUL");
  expect_io_error(raw_file("{\"a\0b\":1}"s), "NUL");
}

TEST(Header, RefusesTextThatIsNotUtf8) {
  for (const char* bad : {"\xFF", "\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE2\x82", "\x80"}) {
    expect_io_error(raw_file(std::string("{\"") + bad + "\":" + kGood + "}", "12345678"), "not JSON");
    expect_io_error(raw_file(std::string(R"({"__metadata__":{"k":")") + bad + "\"}}"), "not JSON");
  }
  expect_io_error(raw_file(R"({"__metadata__":{"k":"\ud800"}})"), "not JSON");
}

TEST(Header, KeepsOddNames) {
  const Result<TensorFile> file = parse(raw_file(
      std::string(R"({"":)") + kGood + R"(,"a\u0000b":{"dtype":"U8","shape":[0],"data_offsets":[8,8]}})",
      "12345678"));
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->tensors.count(""), 1u);
  EXPECT_EQ(file->tensors.count(std::string("a\0b", 3)), 1u);
}

TEST(Header, RefusesRepeatedKeysAtEveryLevel) {
  const std::string entry = kGood;
  const std::string data = "12345678";
  expect_io_error(raw_file("{\"x\":" + entry + ",\"x\":" + entry + "}", data), "repeats the key 'x'");
  expect_io_error(raw_file("{\"x\":" + entry + ",\"\\u0078\":" + entry + "}", data), "repeats the key 'x'");
  expect_io_error(raw_file(R"({"__metadata__":{},"__metadata__":{}})"), "repeats the key '__metadata__'");
  expect_io_error(raw_file(R"({"__metadata__":{"a":"1","a":"1"}})"), "repeats the key 'a'");
  expect_io_error(entry_with("\"dtype\":\"F32\"", R"("dtype":"F32","dtype":"F32")"),
                  "repeats the key 'dtype'");
  expect_io_error(entry_with("\"shape\":[2]", R"("shape":[2],"shape":[2])"), "repeats the key 'shape'");
  expect_io_error(entry_with("]}", R"(],"data_offsets":[0,8]})"), "repeats the key 'data_offsets'");
  expect_io_error(entry_with("]}", R"(],"note":{"a":1,"a":1}})"), "repeats the key 'a'");
}

TEST(Header, RefusesMetadataThatIsNotText) {
  for (const char* value : {"1", "-1", "1.5", "null", "true", "{}", "[]", "[\"a\"]"}) {
    expect_io_error(raw_file(std::string(R"({"__metadata__":{"a":)") + value + "}}"), "__metadata__");
    if (std::string_view(value) != "{}") {
      expect_io_error(raw_file(std::string(R"({"__metadata__":)") + value + "}"), "__metadata__");
    }
  }
}

TEST(Header, RefusesEntriesThatAreNotObjects) {
  for (const char* value : {"1", "-1", "1.5", "null", "true", "\"F32\"", "[]", "[2]"}) {
    expect_io_error(one_entry(value), "'x'");
  }
}

TEST(Header, RefusesMissingFields) {
  expect_io_error(one_entry("{}"), "lacks");
  expect_io_error(entry_with("\"dtype\":\"F32\",", ""), "lacks");
  expect_io_error(entry_with("\"shape\":[2],", ""), "lacks");
  expect_io_error(entry_with(",\"data_offsets\":[0,8]", ""), "lacks");
}

TEST(Header, RefusesUnknownDtypes) {
  for (const char* dtype : {"\"F128\"", "\"f32\"", "\"\"", "\"F32 \"", "\"F3\""}) {
    expect_io_error(entry_with("\"F32\"", dtype), "unknown dtype");
  }
  for (const char* dtype : {"1", "-1", "1.5", "null", "true", "[]", "[\"F32\"]", "{}"}) {
    expect_io_error(entry_with("\"F32\"", dtype), "dtype is not a string");
  }
}

TEST(Header, RefusesBadShapes) {
  for (const char* shape : {"2", "-2", "2.0", "null", "\"2\"", "{}", "{\"0\":2}", "[-2]", "[2.0]", "[2e0]",
                            "[null]", "[true]", "[\"2\"]", "[[2]]", "[{}]", "[9223372036854775808]",
                            "[18446744073709551615]", "[18446744073709551618]", "[-9223372036854775808]"}) {
    expect_io_error(entry_with("[2]", shape), "'x': shape is not a list of integers");
  }
  for (const char* shape : {"[NaN]", "[Infinity]", "[0x2]", "[2,]", "[,2]", "[+2]"}) {
    expect_io_error(entry_with("[2]", shape), "not JSON");
  }
}

TEST(Header, RefusesRanksAboveTheHighest) {
  static_assert(kMaxRank == 5);
  EXPECT_TRUE(parse(entry_with("[2]", "[1,1,2,1,1]")).ok());
  expect_io_error(entry_with("[2]", "[1,1,2,1,1,1]"), "'x': rank is over 5");
}

TEST(Header, RefusesBadOffsets) {
  for (const char* offsets :
       {"0", "8", "null", "\"0,8\"", "{}", "[]", "[0]", "[8]", "[0,8,8]", "[-1,8]", "[0,-8]", "[0.0,8]",
        "[0,8.0]", "[0,null]", "[[0,8]]", "[\"0\",\"8\"]", "[0,9223372036854775808]"}) {
    expect_io_error(entry_with("[0,8]", offsets), "'x': data_offsets are not two integers");
  }
}

TEST(Header, SkipsUnknownFields) {
  for (const char* extra : {"1", "-1", "1.5", "null", "true", "\"text\"", "[]", "{}",
                            "[1,[2,{\"a\":[]}],-3.5]", R"({"dtype":"U8","shape":[9],"data_offsets":[1]})"}) {
    EXPECT_TRUE(parse(entry_with("]}", std::string("],\"note\":") + extra + "}")).ok()) << extra;
    EXPECT_TRUE(parse(entry_with("{\"dtype", std::string("{\"note\":") + extra + ",\"dtype")).ok()) << extra;
  }
}

TEST(Header, BoundsNesting) {
  for (const char* open : {"[", "{\"a\":"}) {
    for (size_t depth : {size_t{20}, size_t{100000}}) {
      std::string deep;
      for (size_t i = 0; i < depth; ++i) deep += open;
      expect_io_error(one_entry(R"({"note":)" + deep), "nested");
    }
  }
  expect_io_error(raw_file(std::string(100000, '[')), "header is not a JSON object");
}

TEST(Header, BoundsTensorsAndKeys) {
  const ReadLimits two{.tensors = 2};
  const std::string empty = R"({"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  const std::string pair = "\"a\":" + empty + ",\"b\":" + empty;
  EXPECT_TRUE(parse(raw_file("{" + pair + R"(,"__metadata__":{}})"), two).ok());
  expect_io_error(raw_file("{" + pair + ",\"c\":" + empty + "}"), "more than 2 tensors", two);
  expect_io_error(raw_file(R"({"__metadata__":{"a":"","b":"","c":"","d":""}})"), "more than 2 keys", two);
}

TEST(Header, BoundsItsOwnLength) {
  const ReadLimits small{.header_bytes = 16};
  EXPECT_TRUE(parse(raw_file("{}" + std::string(14, ' ')), small).ok());
  expect_io_error(raw_file("{}" + std::string(15, ' ')), "limit is 16", small);
}

TEST(Header, MessagesStayShortAndWhole) {
  // 79 bytes and then two-byte characters: a cut at byte 80 would split one.
  std::string name(79, 'a');
  for (int i = 0; i < 100000; ++i) name += "\xC3\xA9";
  const Status status = parse(raw_file("{\"" + name + "\":1}")).status();
  expect_code(status, Code::kIoError, "...'");
  EXPECT_LT(status.message().size(), 200u);
  EXPECT_NE(status.message().find(std::string(79, 'a') + "...'"), std::string::npos) << status.message();
}

TEST(ByteCount, CountsInCheckedArithmetic) {
  constexpr int64_t kBig = int64_t{1} << 62;
  EXPECT_EQ(byte_count(0, {}, DType::kF64), 8);
  EXPECT_EQ(byte_count(2, {3, 5}, DType::kF16), 30);
  EXPECT_EQ(byte_count(3, {3, 0, 5}, DType::kF16), 0);
  EXPECT_EQ(byte_count(1, {kBig}, DType::kU8), kBig);
  EXPECT_EQ(byte_count(1, {kBig}, DType::kF16), std::nullopt);
  EXPECT_EQ(byte_count(2, {kBig, kBig}, DType::kU8), std::nullopt);
  EXPECT_EQ(byte_count(3, {kBig, kBig, 0}, DType::kU8), std::nullopt);
  EXPECT_EQ(byte_count(1, {-1}, DType::kU8), std::nullopt);
}

}  // namespace
}  // namespace tamis::io
