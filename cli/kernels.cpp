// tamis kernels: what this build can run, and on what. tamis version: which build it is.
#include "kernels/registry.h"

#include <fmt/core.h>

#include <memory>

#include "cli.h"
#include "tamis/attention.h"
#include "tamis/device.h"
#include "tamis/version.h"

namespace tamis::cli {
namespace {

std::string cuda_text() {
  const auto devices = cuda_devices();
  if (!devices.ok()) return devices.status().message();
  std::string out;
  for (const CudaDevice& d : *devices)
    out += fmt::format("{}{} (sm_{}{}, {} SMs)", out.empty() ? "" : ", ", d.name, d.major, d.minor,
                       d.multiprocessors);
  return out;
}

Json limits_json(const Limits& limits) {
  Json dtypes = Json::array();
  for (int i = 0; i <= static_cast<int>(DType::kBool); ++i)
    if (limits.dtypes.holds(static_cast<DType>(i))) dtypes.push_back(dtype_name(static_cast<DType>(i)));
  const auto range = [](const Range& r) {
    return Json{{"min", r.min}, {"max", r.max == Range{}.max ? Json(nullptr) : Json(r.max)}};
  };
  return {{"dtypes", dtypes},
          {"head_dim", range(limits.head_dims)},
          {"v_head_dim", range(limits.v_head_dims)},
          {"group", range(limits.group)},
          {"page_multiple_of", limits.page_multiple_of},
          {"contiguous", limits.contiguous},
          {"quantized", limits.quantized},
          {"dropout", limits.dropout}};
}

// Whether this machine has what the kernel needs.
bool runs_here(const Kernel& k) {
  if (k.backend == Backend::kReference) return true;
  if (k.backend == Backend::kCuda) return cuda_devices().ok();
  for (const std::string& isa : cpu_isas())
    if (k.name == "cpu_" + isa || k.name == "cpu_" + isa + "_backward") return true;
  return false;
}

int list_kernels(bool json) {
  if (json) {
    Json list = Json::array();
    for (const Kernel& k : kernels())
      list.push_back({{"name", k.name},
                      {"op", op_name(k.op)},
                      {"backend", backend_name(k.backend)},
                      {"here", runs_here(k)},
                      {"limits", limits_json(k.limits)},
                      {"note", k.note}});
    fmt::print("{}\n", Json{{"kernels", list}, {"cuda", cuda_text()}}.dump(1));
    return kDone;
  }
  fmt::print("{:<25}{:<10}{:<11}{:<6}{}\n", "kernel", "op", "backend", "here", "note");
  for (const Kernel& k : kernels())
    fmt::print("{:<25}{:<10}{:<11}{:<6}{}\n", k.name, op_name(k.op), backend_name(k.backend),
               runs_here(k) ? "yes" : "no", k.note);
  fmt::print("cuda: {}\n", cuda_text());
  return kDone;
}

std::string compiler() {
#if defined(__clang__)
  return __VERSION__;
#else
  return std::string("gcc ") + __VERSION__;
#endif
}

int print_version(bool json) {
  if (json) {
    fmt::print("{}\n", Json{{"version", TAMIS_VERSION},
                            {"compiler", compiler()},
                            {"built_with_cuda", built_with_cuda()},
                            {"cuda", cuda_text()}}
                           .dump(1));
  } else {
    fmt::print("tamis {} (compiled by {}; cuda {}: {})\n", TAMIS_VERSION, compiler(),
               built_with_cuda() ? "built in" : "not built in", cuda_text());
  }
  return kDone;
}

}  // namespace

void add_kernels(CLI::App& app, int* exit) {
  auto json = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("kernels", "List the kernels of this build and the devices it sees");
  command->add_flag("--json", *json, "One JSON object instead of a table");
  command->callback([json, exit] { *exit = list_kernels(*json); });
}

void add_version(CLI::App& app, int* exit) {
  auto json = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("version", "Version, compiler and CUDA state of this build");
  command->add_flag("--json", *json, "One JSON object instead of a line");
  command->callback([json, exit] { *exit = print_version(*json); });
}

}  // namespace tamis::cli
