#include "device_environment.h"

#include <unistd.h>

#include <cstdio>

#include "core/checks.h"

namespace tamis::bench {
namespace {

const std::vector<std::string> kFields = {"driver_version",   "clocks.sm",       "clocks.mem",
                                          "clocks.max.sm",    "clocks.max.mem",  "power.limit",
                                          "power.draw",       "temperature.gpu", "ecc.mode.current",
                                          "persistence_mode", "utilization.gpu"};

// Lines that a command prints; none where it is not there or fails.
std::vector<std::string> lines_of(const std::string& command) {
  std::vector<std::string> lines;
  FILE* pipe = popen((command + " 2>/dev/null").c_str(), "r");
  if (pipe == nullptr) return lines;
  std::string line;
  for (int c = fgetc(pipe); c != EOF; c = fgetc(pipe)) {
    if (c != '\n') {
      line += static_cast<char>(c);
      continue;
    }
    lines.push_back(std::move(line));
    line.clear();
  }
  if (!line.empty()) lines.push_back(std::move(line));
  return pclose(pipe) == 0 ? lines : std::vector<std::string>{};
}

// nvidia-smi on this device. `bus` is what the runtime printed, digits, colons and a point.
std::vector<std::string> ask(const DeviceFacts& facts, const std::string& query) {
  const std::string which = facts.bus.empty() ? "" : " --id=" + facts.bus;
  return lines_of("nvidia-smi" + which + " " + query + " --format=csv,noheader,nounits");
}

Json ask_fields(const DeviceFacts& facts) {
  std::string query = "--query-gpu=";
  for (const std::string& field : kFields) query += (field == kFields[0] ? "" : ",") + field;
  const std::vector<std::string> lines = ask(facts, query);
  return fields_of(lines.empty() ? "" : lines[0], kFields);
}

// Everything that computes on the device, this run among it where the system shows it.
Json processes(const DeviceFacts& facts) {
  Json out = Json::array();
  for (const std::string& line : ask(facts, "--query-compute-apps=pid,process_name,used_memory"))
    if (!line.starts_with(std::to_string(getpid()) + ",")) out.push_back(line);  // the others
  return out;
}

Json clocks_of(const Json& fields) {
  return {{"sm_mhz", fields["clocks.sm"]},
          {"memory_mhz", fields["clocks.mem"]},
          {"power_draw_w", fields["power.draw"]},
          {"temperature_c", fields["temperature.gpu"]}};
}

std::string version(int number) { return text(number / 1000, ".", number % 1000 / 10); }

}  // namespace

Json fields_of(const std::string& line, const std::vector<std::string>& names) {
  Json out = Json::object();
  size_t at = 0;
  for (const std::string& name : names) {
    const size_t end = at > line.size() ? line.size() : std::min(line.find(',', at), line.size());
    std::string value = at < line.size() ? line.substr(at, end - at) : "";
    value.erase(
        0, value.find_first_not_of(' ') == std::string::npos ? value.size() : value.find_first_not_of(' '));
    value.erase(value.find_last_not_of(' ') + 1);
    out[name] = value.empty() || value[0] == '[' ? Json(nullptr) : Json(value);
    at = end + 1;
  }
  return out;
}

void add_device_environment(const DeviceFacts& facts, Json* environment) {
  const Json fields = ask_fields(facts);
  Json& e = *environment;
  e["gpu"] = facts.name;
  e["multiprocessors"] = facts.multiprocessors;
  e["l2_bytes"] = facts.l2_bytes;
  e["driver"] =
      fields["driver_version"].is_null() ? Json("CUDA " + version(facts.driver)) : fields["driver_version"];
  e["cuda"] = version(facts.runtime);
  e["power_limit"] = fields["power.limit"];
  e["ecc"] = facts.ecc;
  Json& clocks = e["clocks"];
  clocks["gpu_max_khz"] = facts.core_khz;
  clocks["gpu_memory_max_khz"] = facts.memory_khz;
  clocks["gpu_before"] = clocks_of(fields);
  clocks["gpu_persistence_mode"] = fields["persistence_mode"];
  e["other_processes"]["gpu_utilization_before"] = fields["utilization.gpu"];
  e["other_processes"]["on_gpu_before"] = processes(facts);
}

void add_device_afterwards(const DeviceFacts& facts, Json* environment) {
  (*environment)["clocks"]["gpu_after"] = clocks_of(ask_fields(facts));
  (*environment)["other_processes"]["on_gpu_after"] = processes(facts);
}

}  // namespace tamis::bench
