// One broken rule of a problem that was good, and how it must be refused.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "support/expect.h"
#include "support/problems.h"

namespace tamis::testing {

struct Broken {
  const char* what;
  std::function<void(TestProblem&)> bend;
  const char* argument;  // the message starts with it
  const char* words;     // and holds these
  Code code = Code::kInvalidArgument;
};

// Two requests, four queries, grouped heads, uneven sizes; everything optional that can be there is there.
inline TestProblem good_paged() {
  TestProblem t(
      {.kv_len = {9, 3}, .q_len = {3, 1}, .q_heads = 6, .kv_heads = 2, .head_dim = 8, .v_head_dim = 4});
  t.csr({{0, 8}, {1}, {-1}, {2, 2}}).q_pos({0, 5, 8, 2}).alibi({1, 2, 3, 4, 5, 6});
  std::vector<uint64_t> stamps(t.slots() / 4);
  for (size_t i = 0; i < stamps.size(); ++i) stamps[i] = 100 + i;
  t.stamps(stamps);
  t.problem.gradients.d_out = dense_view(nullptr, DType::kF32, {4, 6, 4});
  t.problem.gradients.d_lse = dense_view(nullptr, DType::kF32, {4, 6});
  return t;
}

inline TestProblem good_contiguous() {
  TestProblem t({.kv_len = {9, 3},
                 .q_len = {3, 1},
                 .q_heads = 6,
                 .kv_heads = 2,
                 .head_dim = 8,
                 .v_head_dim = 4,
                 .page_size = 0});
  t.fixed({{0, 8, -1}, {1, -1, -1}, {-1, 0, 0}, {2, 2, 2}}, {3, 0, 3, 1});
  return t;
}

// Checks arguments as every entry point does: describe, then the arrays.
inline Status check(const Problem& problem) {
  const Result<Shape> shape = describe(problem);
  return shape.ok() ? check_arrays(problem, *shape) : shape.status();
}

inline void expect_refused(TestProblem t, const Broken& broken) {
  SCOPED_TRACE(broken.what);
  ASSERT_TRUE(check(t.problem).ok()) << "good before it was broken: " << check(t.problem).message();
  broken.bend(t);
  const Status status = check(t.problem);
  EXPECT_EQ(status.code(), broken.code) << status.message();
  EXPECT_EQ(status.message().rfind(std::string(broken.argument) + ":", 0), 0u)
      << "'" << status.message() << "' does not start with " << broken.argument;
  EXPECT_TRUE(says(status, broken.words));
}

}  // namespace tamis::testing
