// What an error carries, and how little room it can be given.
#include <gtest/gtest.h>

#include <cstring>

#include "capi/c_problem.h"
#include "tamis/index.h"

namespace tamis::testing {
namespace {

// Token 64 of request 0 is on logical page 4.
TestProblem bad_page(int32_t entry) {
  TestProblem t = decode_problem();
  t.table(0, 4) = entry;
  return t;
}

TEST(CError, CarriesWhatTheStatusCarries) {
  TestProblem t = bad_page(9999);
  const CProblem c(t.problem);
  const Status status = normalize(t.problem).status();
  Handles h;
  Error error;
  ASSERT_EQ(tamis_normalize(&c.problem, nullptr, h.index, error), TAMIS_PAGE_OUT_OF_RANGE);
  EXPECT_EQ(error.c.code, TAMIS_PAGE_OUT_OF_RANGE);
  EXPECT_EQ(error.text, status.message());
  EXPECT_EQ(error.c.message_length, status.message().size());
  const Where& where = status.where();
  const std::pair<const std::optional<int64_t>*, std::pair<uint32_t, int64_t>> fields[] = {
      {&where.request, {TAMIS_HAS_REQUEST, error.c.request}},
      {&where.row, {TAMIS_HAS_ROW, error.c.row}},
      {&where.page, {TAMIS_HAS_PAGE, error.c.page}},
      {&where.value, {TAMIS_HAS_VALUE, error.c.value}},
      {&where.limit, {TAMIS_HAS_LIMIT, error.c.limit}}};
  for (const auto& [expected, found] : fields) {
    EXPECT_EQ(expected->has_value(), (error.c.has & found.first) != 0) << found.first;
    EXPECT_EQ(expected->value_or(0), found.second) << found.first;
  }
  EXPECT_EQ(error.c.page, 4);
  EXPECT_EQ(error.c.value, 9999);
}

TEST(CError, SuccessWipesTheLastOne) {
  TestProblem bad = bad_page(-1), good = decode_problem();
  const CProblem c(bad.problem), d(good.problem);
  Handles h;
  Error error;
  ASSERT_EQ(tamis_normalize(&c.problem, nullptr, h.index, error), TAMIS_PAGE_UNMAPPED);
  ASSERT_EQ(tamis_normalize(&d.problem, nullptr, h.index, error), TAMIS_OK);
  EXPECT_EQ(error.c.code, TAMIS_OK);
  EXPECT_EQ(error.c.has, 0u);
  EXPECT_EQ(error.c.page, 0);
  EXPECT_EQ(error.c.message_length, 0u);
  EXPECT_STREQ(error.text, "");
}

TEST(CError, SmallBuffersAreCutAndEndWithNul) {
  TestProblem t = bad_page(9999);
  const CProblem c(t.problem);
  Handles h;
  const std::string whole = normalize(t.problem).status().message();
  for (const uint64_t capacity : {uint64_t{0}, uint64_t{1}, uint64_t{5}, whole.size(), whole.size() + 1}) {
    std::vector<char> buffer(capacity + 8, '#');
    tamis_error error;
    tamis_error_init(&error, buffer.data(), capacity);
    EXPECT_EQ(tamis_normalize(&c.problem, nullptr, h.index, &error), TAMIS_PAGE_OUT_OF_RANGE);
    EXPECT_EQ(error.message_length, whole.size());
    EXPECT_EQ(error.page, 4);
    if (capacity > 0) {
      EXPECT_EQ(std::string(buffer.data()), whole.substr(0, capacity - 1));
    }
    for (size_t i = capacity; i < buffer.size(); ++i) EXPECT_EQ(buffer[i], '#') << capacity;
  }
}

TEST(CError, NoBufferAndNoErrorAtAll) {
  TestProblem t = bad_page(9999);
  const CProblem c(t.problem);
  Handles h;
  tamis_error error;
  tamis_error_init(&error, nullptr, 100);
  EXPECT_EQ(tamis_normalize(&c.problem, nullptr, h.index, &error), TAMIS_PAGE_OUT_OF_RANGE);
  EXPECT_GT(error.message_length, 0u);
  EXPECT_EQ(tamis_normalize(&c.problem, nullptr, h.index, nullptr), TAMIS_PAGE_OUT_OF_RANGE);
}

TEST(CError, CutBetweenCharacters) {
  // Three bytes each: the name of an instruction set is quoted in the message.
  const std::string isa = "\xE2\x82\xAC\xE2\x82\xAC\xE2\x82\xAC";
  tamis_context* context = nullptr;
  Error all;
  ASSERT_EQ(tamis_context_create(1, isa.c_str(), &context, all), TAMIS_UNSUPPORTED);
  const std::string whole = all.text;
  const size_t at = whole.find(isa);
  ASSERT_NE(at, std::string::npos);
  for (size_t cut = 0; cut <= isa.size(); ++cut) {
    char buffer[512];
    tamis_error error;
    tamis_error_init(&error, buffer, at + cut + 1);
    ASSERT_EQ(tamis_context_create(1, isa.c_str(), &context, &error), TAMIS_UNSUPPORTED);
    EXPECT_EQ(std::string(buffer), whole.substr(0, at + cut / 3 * 3)) << cut;
  }
}

TEST(CError, OfAnotherSizeIsRefusedAndLeftAlone) {
  TestProblem t = decode_problem();
  const CProblem c(t.problem);
  Handles h;
  for (const uint64_t size :
       {uint64_t{0}, uint64_t{4}, uint64_t{12}, uint64_t{sizeof(tamis_error) + 8}, ~uint64_t{7}}) {
    Error error, before;
    error.c.struct_size = before.c.struct_size = size;
    EXPECT_EQ(tamis_normalize(&c.problem, nullptr, h.index, error), TAMIS_INVALID_ARGUMENT) << size;
    EXPECT_STREQ(error.text, "untouched");
    EXPECT_EQ(error.c.code, before.c.code);
    EXPECT_EQ(error.c.message_length, before.c.message_length);
  }
}

TEST(CError, OfAnOlderHeaderGetsWhatItHasRoomFor) {
  TestProblem t = bad_page(9999);
  const CProblem c(t.problem);
  Handles h;
  Error error;
  error.c.struct_size = offsetof(tamis_error, page);
  error.c.page = error.c.value = error.c.limit = 12345;
  EXPECT_EQ(tamis_normalize(&c.problem, nullptr, h.index, error), TAMIS_PAGE_OUT_OF_RANGE);
  EXPECT_EQ(error.c.code, TAMIS_PAGE_OUT_OF_RANGE);
  EXPECT_TRUE(says(error, "page"));
  EXPECT_EQ(error.c.page, 12345);
  EXPECT_EQ(error.c.limit, 12345);
  EXPECT_EQ(error.c.struct_size, offsetof(tamis_error, page));
}

}  // namespace
}  // namespace tamis::testing
