// Numbers as people read them.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace tamis::cli {

inline std::string bytes_text(int64_t bytes) {
  const double b = static_cast<double>(bytes);
  if (bytes >= int64_t{1} << 30) return fmt::format("{:.2f} GiB", b / (1 << 30));
  if (bytes >= 1 << 20) return fmt::format("{:.2f} MiB", b / (1 << 20));
  if (bytes >= 1 << 10) return fmt::format("{:.1f} KiB", b / (1 << 10));
  return fmt::format("{} B", bytes);
}

inline std::string time_text(double us) {
  if (us >= 1e6) return fmt::format("{:.2f} s", us / 1e6);
  if (us >= 1e3) return fmt::format("{:.2f} ms", us / 1e3);
  return fmt::format("{:.1f} us", us);
}

inline std::string percent_text(double ratio) { return fmt::format("{:.2f} %", 100 * ratio); }

// "  name        value\n"
inline std::string line(std::string_view name, std::string_view value) {
  return fmt::format("  {:<12}{}\n", name, value);
}

}  // namespace tamis::cli
