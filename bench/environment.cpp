#include "environment.h"

#include <unistd.h>

#include <ctime>
#include <fstream>

#include "data.h"
#include "record.h"
#include "tamis/version.h"

// Written by the build (bench/commit.cmake); a build by hand has none.
#if __has_include("tamis_bench_build.h")
#include "tamis_bench_build.h"
#else
#define TAMIS_BENCH_COMMIT "unknown"
#define TAMIS_BENCH_FLAGS "unknown"
#endif

namespace tamis::bench {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

Json or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

// The value of the first "key : value" line.
std::string cpu_info(const std::string& key) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || line.compare(0, key.size(), key) != 0) continue;
    const size_t value = line.find_first_not_of(" \t", colon + 1);
    return value == std::string::npos ? "" : line.substr(value);
  }
  return "";
}

std::string date() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

// What tells one processor from another where virtual machines all call it by one name.
Json cpu() {
  std::string model = cpu_info("model name");
  const std::string family = cpu_info("cpu family"), number = cpu_info("model\t"),
                    step = cpu_info("stepping");
  if (!family.empty()) model += " (family " + family + ", model " + number + ", stepping " + step + ")";
  return {{"model", model.empty() ? "unknown" : model},
          {"cores", sysconf(_SC_NPROCESSORS_ONLN)},
          {"last_level_cache_bytes", last_level_cache()},
          {"huge_pages", or_null(first_line("/sys/kernel/mm/transparent_hugepage/enabled"))}};
}

Json clocks() {
  const std::string frequency = "/sys/devices/system/cpu/cpu0/cpufreq/";
  return {{"governor", or_null(first_line(frequency + "scaling_governor"))},
          {"max_khz", or_null(first_line(frequency + "scaling_max_freq"))},
          {"mhz_at_start", or_null(cpu_info("cpu MHz"))}};
}

}  // namespace

std::string load_average() {
  const std::string line = first_line("/proc/loadavg");
  return line.empty() ? "unknown" : line.substr(0, line.rfind(' '));
}

Json environment(const std::string& isa, int threads) {
  return {{"schema", kSchema},
          {"date", date()},
          {"gpu", nullptr},
          {"driver", nullptr},
          {"cuda", nullptr},
          {"cpu", cpu()},
          {"isa", isa},
          {"threads", threads},
          {"compiler", __VERSION__},
          {"flags", TAMIS_BENCH_FLAGS},
          {"version", TAMIS_VERSION},
          {"commit", TAMIS_BENCH_COMMIT},
          {"clocks", clocks()},
          {"power_limit", nullptr},
          {"ecc", nullptr},
          {"other_processes", {{"load_average_before", load_average()}}}};
}

}  // namespace tamis::bench
