// Host times for reports.
#pragma once

#include <chrono>

namespace tamis {

using Clock = std::chrono::steady_clock;

inline double microseconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::micro>(to - from).count();
}

inline double microseconds_since(Clock::time_point from) { return microseconds(from, Clock::now()); }

}  // namespace tamis
