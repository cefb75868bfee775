// tamis kernels: what this build can run, and on what. tamis version: which build it is.
#include "kernels/registry.h"

#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <string_view>

#include "cli.h"
#include "cuda_plan.h"
#include "kernels_model.h"
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
          {"head_dim_multiple_of", limits.head_dim_multiple_of},
          {"group", range(limits.group)},
          {"page_multiple_of", limits.page_multiple_of},
          {"contiguous", limits.contiguous},
          {"quantized", limits.quantized},
          {"dropout", limits.dropout}};
}

Json arch_json(const Range& arch) {
  if (arch.max == 0) return nullptr;
  return {{"min", arch.min}, {"max", arch.max == Range{}.max ? Json(nullptr) : Json(arch.max)}};
}

// What becomes of a kernel on one device; the processor is the device of the host kernels.
struct Standing {
  std::string device;
  const char* state;   // supported, falls_back: another kernel of the backend takes its place, refused
  std::string reason;  // empty where it is supported
};

Standing on_host(const Kernel& k) {
  if (k.backend == Backend::kReference) return {"host", "supported", ""};
  const std::vector<std::string> isas = cpu_isas();
  const std::string suffix = k.op == Op::kBackward ? "_backward" : "";
  for (const std::string& isa : isas)
    if (k.name == "cpu_" + isa + suffix) return {"host", "supported", ""};
  return {"host", "falls_back",
          fmt::format("build or processor lack its instructions; cpu_{}{} runs", isas.front(), suffix)};
}

std::vector<Standing> standings(const Kernel& k) {
  if (k.backend != Backend::kCuda) return {on_host(k)};
  const auto devices = cuda_devices();
  if (!devices.ok()) return {{"none", "refused", devices.status().message()}};
  std::vector<Standing> all;
  for (const CudaDevice& d : *devices) {
    const Status s = check_device(k.name, d);
    all.push_back({fmt::format("cuda:{}", d.ordinal), s.ok() ? "supported" : "refused", s.message()});
  }
  return all;
}

Json standings_json(const std::vector<Standing>& all) {
  Json list = Json::array();
  for (const Standing& s : all)
    list.push_back({{"device", s.device}, {"state", s.state}, {"reason", s.reason}});
  return list;
}

bool runs_here(const std::vector<Standing>& all) {
  return std::any_of(all.begin(), all.end(),
                     [](const Standing& s) { return std::string_view(s.state) == "supported"; });
}

int list_kernels(bool json) {
  if (json) {
    Json list = Json::array();
    for (const Kernel& k : kernels()) {
      const std::vector<Standing> on = standings(k);
      list.push_back({{"name", k.name},
                      {"op", op_name(k.op)},
                      {"backend", backend_name(k.backend)},
                      {"arch", arch_json(k.arch)},
                      {"here", runs_here(on)},
                      {"on", standings_json(on)},
                      {"limits", limits_json(k.limits)},
                      {"note", k.note}});
    }
    fmt::print("{}\n", Json{{"kernels", list}, {"cuda", cuda_text()}}.dump(1));
    return kDone;
  }
  fmt::print("{:<25}{:<10}{:<11}{:<8}{:<12}{}\n", "kernel", "op", "backend", "device", "state", "note");
  for (const Kernel& k : kernels())
    for (const Standing& s : standings(k))
      fmt::print("{:<25}{:<10}{:<11}{:<8}{:<12}{}{}\n", k.name, op_name(k.op), backend_name(k.backend),
                 s.device, s.state, k.note, s.reason.empty() ? "" : fmt::format(" ({})", s.reason));
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
  struct Options {
    std::string model;
    bool json = false;
  };
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("kernels", "List the kernels of this build and the devices it sees");
  CLI::Option* model = command->add_option(
      "--model", o->model, "A model's config.json: what each backend would run for a decode step of it");
  command->add_flag("--json", o->json, "One JSON object instead of a table");
  command->callback(
      [o, model, exit] { *exit = *model ? print_model(o->model, o->json) : list_kernels(o->json); });
}

void add_version(CLI::App& app, int* exit) {
  auto json = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("version", "Version, compiler and CUDA state of this build");
  command->add_flag("--json", *json, "One JSON object instead of a line");
  command->callback([json, exit] { *exit = print_version(*json); });
}

}  // namespace tamis::cli
