// What tests ask of an answer.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tamis/reference.h"
#include "tamis/status.h"

namespace tamis::testing {

// The reference's answer. A refusal fails the test and yields an empty answer.
inline reference::Answer answer(const Problem& problem) {
  Result<reference::Answer> result = reference::forward(problem);
  EXPECT_TRUE(result.ok()) << code_name(result.status().code()) << ": " << result.status().message();
  return result.ok() ? std::move(*result) : reference::Answer{};
}

// The refusal, which must be of the given code.
inline Status refusal(const Problem& problem, Code code) {
  const Result<reference::Answer> result = reference::forward(problem);
  EXPECT_STREQ(code_name(result.status().code()), code_name(code)) << result.status().message();
  return result.status();
}

// The same where nothing but the code is of interest; kOk for none.
inline void expect_code(const Problem& problem, Code code) {
  const Status status = reference::forward(problem).status();
  EXPECT_STREQ(code_name(status.code()), code_name(code)) << status.message();
}

inline ::testing::AssertionResult says(const Status& status, const std::string& words) {
  if (status.message().find(words) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "'" << status.message() << "' does not say '" << words << "'";
}

// Equal bit for bit: also the sign of zero and where the NaNs are.
inline ::testing::AssertionResult same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size())
    return ::testing::AssertionFailure() << a.size() << " and " << b.size() << " values";
  for (size_t i = 0; i < a.size(); ++i)
    if (std::memcmp(&a[i], &b[i], sizeof a[i]) != 0)
      return ::testing::AssertionFailure() << a[i] << " and " << b[i] << " at " << i;
  return ::testing::AssertionSuccess();
}

inline ::testing::AssertionResult same_answer(const reference::Answer& a, const reference::Answer& b) {
  if (a.sets.tokens != b.sets.tokens || a.sets.indptr != b.sets.indptr)
    return ::testing::AssertionFailure() << "other sets";
  if (a.output.out.empty()) return ::testing::AssertionFailure() << "nothing was computed";
  const ::testing::AssertionResult lse = same_bits(a.output.lse, b.output.lse);
  return lse ? same_bits(a.output.out, b.output.out) : lse;
}

// The reference's gradients over the sets and the output of its own forward pass.
inline reference::Gradients gradients(const Problem& problem) {
  const reference::Answer a = answer(problem);
  Result<reference::Gradients> result = reference::backward(problem, a.sets, a.output);
  EXPECT_TRUE(result.ok()) << code_name(result.status().code()) << ": " << result.status().message();
  return result.ok() ? std::move(*result) : reference::Gradients{};
}

inline ::testing::AssertionResult same_gradients(const reference::Gradients& a,
                                                 const reference::Gradients& b) {
  if (a.d_q.empty()) return ::testing::AssertionFailure() << "nothing was computed";
  for (const auto part : {&reference::Gradients::d_q, &reference::Gradients::d_k, &reference::Gradients::d_v})
    if (const auto same = same_bits(a.*part, b.*part); !same) return same;
  return ::testing::AssertionSuccess();
}

// Set (query, index head) as a vector.
inline std::vector<int32_t> set_of(const reference::Sets& sets, int64_t set) {
  return {sets.tokens.begin() + sets.indptr[set], sets.tokens.begin() + sets.indptr[set + 1]};
}

}  // namespace tamis::testing
