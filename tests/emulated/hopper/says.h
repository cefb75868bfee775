// What tests ask of a run.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "emulated/hopper/grid.h"

namespace tamis::emulated {

// The run ended with an error that has these words in it.
inline ::testing::AssertionResult says(const Report& report, const std::string& words) {
  if (report.error.find(words) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "'" << report.error << "' does not say '" << words << "'";
}

}  // namespace tamis::emulated
