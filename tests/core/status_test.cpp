// Errors as values: what a Status keeps, and what its copies share (nothing).
#include "tamis/status.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "core/checks.h"

namespace tamis {
namespace {

TEST(Status, DefaultIsOkAndEmpty) {
  const Status ok;
  EXPECT_TRUE(ok.ok());
  EXPECT_EQ(ok.code(), Code::kOk);
  EXPECT_EQ(ok.message(), "");
  EXPECT_FALSE(ok.where().request || ok.where().row || ok.where().page || ok.where().value ||
               ok.where().limit);
  EXPECT_EQ(sizeof(Status), sizeof(void*)) << "an ok status is one null pointer";
}

TEST(Status, KeepsWhatItWasGiven) {
  const Status s(Code::kForeignPage, "table_stamps: no", {.request = 1, .page = 2, .value = -3, .limit = 4});
  EXPECT_FALSE(s.ok());
  EXPECT_EQ(s.code(), Code::kForeignPage);
  EXPECT_EQ(s.message(), "table_stamps: no");
  EXPECT_EQ(s.where().request, 1);
  EXPECT_EQ(s.where().row, std::nullopt);
  EXPECT_EQ(s.where().page, 2);
  EXPECT_EQ(s.where().value, -3);
  EXPECT_EQ(s.where().limit, 4);
}

TEST(Status, CopiesAreTheirOwn) {
  Status first(Code::kIoError, "first", {.row = 7});
  const Status copy = first;
  first = Status(Code::kDeviceError, "second");
  EXPECT_EQ(copy.code(), Code::kIoError);
  EXPECT_EQ(copy.message(), "first");
  EXPECT_EQ(copy.where().row, 7);
  first = Status();
  EXPECT_TRUE(first.ok());
  first = copy;
  EXPECT_EQ(first.message(), "first");
  first = *&first;  // to itself
  EXPECT_EQ(first.message(), "first");
  const Status moved = std::move(first);
  EXPECT_EQ(moved.message(), "first");
}

TEST(Status, CodesHaveTheNamesOfTheContract) {
  // Section 10, in order; the numbers are part of the C interface.
  const char* names[] = {"ok",
                         "invalid_argument",
                         "index_out_of_range",
                         "duplicate_index",
                         "unsupported_semantics",
                         "page_out_of_range",
                         "page_unmapped",
                         "foreign_page",
                         "workspace_too_small",
                         "capacity_exceeded",
                         "stale_plan",
                         "not_capturable",
                         "unsupported",
                         "io_error",
                         "device_error"};
  for (int i = 0; i < 15; ++i) EXPECT_STREQ(code_name(static_cast<Code>(i)), names[i]);
  EXPECT_STREQ(code_name(static_cast<Code>(15)), "unknown");
  EXPECT_STREQ(code_name(static_cast<Code>(-1)), "unknown");
}

TEST(Result, IsAValueOrTheReason) {
  Result<std::string> good = std::string("value");
  ASSERT_TRUE(good.ok());
  EXPECT_TRUE(good.status().ok());
  EXPECT_EQ(*good, "value");
  EXPECT_EQ(good->size(), 5u);
  *good += "s";
  EXPECT_EQ(*good, "values");

  const Result<std::string> bad = Status(Code::kStalePlan, "why");
  EXPECT_FALSE(bad.ok());
  EXPECT_EQ(bad.status().code(), Code::kStalePlan);
  EXPECT_EQ(bad.status().message(), "why");
}

TEST(Result, TakesWhatCanOnlyMove) {
  Result<std::unique_ptr<int>> r = std::make_unique<int>(3);
  ASSERT_TRUE(r.ok());
  const std::unique_ptr<int> taken = std::move(*r);
  EXPECT_EQ(*taken, 3);
}

Status twice(int* calls, Status inner) {
  TAMIS_RETURN_IF_ERROR((++*calls, inner));
  return {Code::kCapacityExceeded, "went on"};
}

TEST(Checks, ReturnIfErrorEvaluatesOnceAndPassesTheErrorOn) {
  int calls = 0;
  EXPECT_EQ(twice(&calls, {}).code(), Code::kCapacityExceeded);
  EXPECT_EQ(twice(&calls, {Code::kIoError, "inner", {.value = 9}}).where().value, 9);
  EXPECT_EQ(calls, 2);
}

TEST(Checks, InvalidStartsWithTheArgument) {
  const Status s = invalid("kv_len", -3, " of request ", 1);
  EXPECT_EQ(s.code(), Code::kInvalidArgument);
  EXPECT_EQ(s.message(), "kv_len: -3 of request 1");
}

}  // namespace
}  // namespace tamis
