// Sets through handles, one query and index head at a time, and the current device.
#include <gtest/gtest.h>
#include <tamis/tamis_c_step.h>

#include <vector>

#include "capi/c_problem.h"
#include "tamis/device.h"
#include "tamis/index.h"

namespace tamis::testing {
namespace {

TEST(CExpand, IsTheSetOfExpandSet) {
  TestProblem t = decode_problem();
  t.problem.mask = {.causal = true, .window = 3, .sink = 1};
  const CProblem c(t.problem);
  Handles h;
  Error error;
  ASSERT_EQ(tamis_normalize(&c.problem, nullptr, h.index, error), TAMIS_OK) << error.text;
  const IndexSet set = std::move(*normalize(t.problem));
  int64_t most = 0;
  std::vector<int32_t> all;
  std::vector<int64_t> begins{0};
  for (int64_t query = 0; query < 3; ++query)
    for (int64_t head = 0; head < 2; ++head) {
      const std::vector<int32_t> expected = expand_set(t.problem, set.view(), query, head);
      int64_t count = -1;
      ASSERT_EQ(tamis_expand_set(&c.problem, h.index, query, head, nullptr, 0, &count, error), TAMIS_OK)
          << error.text;
      ASSERT_EQ(count, static_cast<int64_t>(expected.size()));
      std::vector<int32_t> tokens(expected.size() + 1, -7);
      ASSERT_EQ(tamis_expand_set(&c.problem, h.index, query, head, tokens.data(), count, &count, error),
                TAMIS_OK);
      EXPECT_EQ(tokens.back(), -7);
      tokens.pop_back();
      EXPECT_EQ(tokens, expected);
      most = std::max(most, count);
      all.insert(all.end(), expected.begin(), expected.end());
      begins.push_back(static_cast<int64_t>(all.size()));
    }
  int64_t count = -1;
  std::vector<int64_t> indptr(begins.size(), -7);
  ASSERT_EQ(tamis_expand_sets(&c.problem, h.index, indptr.data(), nullptr, 0, &count, error), TAMIS_OK)
      << error.text;
  EXPECT_EQ(count, begins.back());
  EXPECT_EQ(indptr, begins);
  for (const int64_t capacity : {count, count - 3, int64_t{1}}) {
    std::vector<int32_t> tokens(all.size() + 1, -7);
    ASSERT_EQ(tamis_expand_sets(&c.problem, h.index, indptr.data(), tokens.data(), capacity, &count, error),
              TAMIS_OK);
    EXPECT_EQ(indptr, begins);
    for (int64_t i = 0; i <= count; ++i) EXPECT_EQ(tokens[i], i < capacity ? all[i] : -7) << i;
  }
  EXPECT_EQ(most, 9);  // 1 2 3 40 41 of a list, 0 of the sink, 67 68 69 of the window
}

TEST(CExpand, WritesNoMoreThanThereIsRoomFor) {
  TestProblem t = decode_problem();
  const CProblem c(t.problem);
  Handles h;
  Error error;
  ASSERT_EQ(tamis_normalize(&c.problem, nullptr, h.index, error), TAMIS_OK);
  int32_t tokens[] = {-7, -7, -7};
  int64_t count = 0;
  ASSERT_EQ(tamis_expand_set(&c.problem, h.index, 0, 0, tokens, 2, &count, error), TAMIS_OK);
  EXPECT_EQ(count, 4);
  EXPECT_EQ(tokens[0], 0);
  EXPECT_EQ(tokens[1], 5);
  EXPECT_EQ(tokens[2], -7);
}

TEST(CExpand, Refusals) {
  TestProblem t = decode_problem();
  const CProblem c(t.problem);
  Handles h;
  Error error;
  int64_t count = 0;
  const auto expand = [&](int64_t query, int64_t head, int64_t capacity = 0) {
    return tamis_expand_set(&c.problem, h.index, query, head, nullptr, capacity, &count, error);
  };
  EXPECT_EQ(expand(0, 0), TAMIS_INVALID_ARGUMENT);
  EXPECT_TRUE(says(error, "index: is empty"));
  ASSERT_EQ(tamis_normalize(&c.problem, nullptr, h.index, error), TAMIS_OK);
  EXPECT_EQ(expand(3, 0), TAMIS_INVALID_ARGUMENT);
  EXPECT_TRUE(says(error, "query: 3 is outside [0, 3)"));
  EXPECT_EQ(error.c.value, 3);
  EXPECT_EQ(error.c.limit, 3);
  EXPECT_EQ(expand(-1, 0), TAMIS_INVALID_ARGUMENT);
  EXPECT_EQ(expand(0, 2), TAMIS_INVALID_ARGUMENT);
  EXPECT_TRUE(says(error, "index_head: 2"));
  EXPECT_EQ(expand(0, 0, 1), TAMIS_INVALID_ARGUMENT);
  EXPECT_TRUE(says(error, "tokens: is NULL"));
  EXPECT_EQ(expand(0, 0, -1), TAMIS_INVALID_ARGUMENT);
  EXPECT_EQ(tamis_expand_set(&c.problem, h.index, 0, 0, nullptr, 0, nullptr, error), TAMIS_INVALID_ARGUMENT);
  int64_t indptr[8], all;
  EXPECT_EQ(tamis_expand_sets(&c.problem, h.index, nullptr, nullptr, 0, &all, error), TAMIS_INVALID_ARGUMENT);
  EXPECT_EQ(tamis_expand_sets(&c.problem, h.index, indptr, nullptr, 1, &all, error), TAMIS_INVALID_ARGUMENT);
  EXPECT_EQ(tamis_expand_sets(&c.problem, h.index, indptr, nullptr, 0, nullptr, error),
            TAMIS_INVALID_ARGUMENT);

  // Another problem of the same shape: the masks were others.
  t.problem.mask.window = 5;
  const CProblem other(t.problem);
  EXPECT_EQ(tamis_expand_set(&other.problem, h.index, 0, 0, nullptr, 0, &count, error), TAMIS_STALE_PLAN);
}

TEST(CDevice, TheCurrentOneIsAnsweredOrTheReason) {
  Error error;
  int32_t previous = -7;
  const int32_t code = tamis_cuda_use_device(0, &previous, error);
  if (cuda_devices().ok()) {
    EXPECT_EQ(code, TAMIS_OK) << error.text;
    EXPECT_GE(previous, 0);
    EXPECT_EQ(tamis_cuda_use_device(1 << 20, nullptr, error), TAMIS_DEVICE_ERROR);
    EXPECT_EQ(tamis_cuda_use_device(previous, nullptr, error), TAMIS_OK);
  } else {
    EXPECT_EQ(code, TAMIS_DEVICE_ERROR);
    EXPECT_EQ(previous, -7);
    EXPECT_NE(std::string(error.text), "");
  }
}

}  // namespace
}  // namespace tamis::testing
