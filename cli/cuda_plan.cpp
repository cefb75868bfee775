// The plan of a run on a device, and why there may be none.
#include "cuda_plan.h"

#include <fmt/format.h>

#include "kernels/registry.h"

namespace tamis::cli {
namespace {

Status unsupported(std::string message) { return {Code::kUnsupported, std::move(message)}; }

void append(std::string* text, const std::string& more) {
  if (!more.empty()) *text += (text->empty() ? "" : "; ") + more;
}

// Options that speak of CPU threads and their instructions; empty where none was given.
std::string cpu_options(const RunOptions& options) {
  std::string found;
  if (!options.isa.empty()) append(&found, "instruction set " + options.isa + " is the cpu's");
  if (options.threads > 0) append(&found, fmt::format("{} threads are the cpu's", options.threads));
  return found;
}

// A plan is for copies in device memory: where the values happen to lie on the host says nothing.
Problem without_addresses(Problem p) {
  for (TensorView* t : {&p.query.q, &p.cache.k, &p.cache.v}) t->data = nullptr;
  return p;
}

cuda::Load load_of(const std::string& name) {
  return name == "blocks" ? cuda::Load::kBlocks : name == "tokens" ? cuda::Load::kTokens : cuda::Load::kAuto;
}

cuda::Ring ring_of(const std::string& name) {
  return name == "full" ? cuda::Ring::kFull : name == "short" ? cuda::Ring::kShort : cuda::Ring::kAuto;
}

cuda::Engine engine_of(const std::string& name) {
  return name == "decode"    ? cuda::Engine::kDecode
         : name == "prefill" ? cuda::Engine::kPrefill
                             : cuda::Engine::kAuto;
}

}  // namespace

Status check_device(const std::string& kernel, const CudaDevice& device) {
  const int64_t arch = device.major * 10 + device.minor;
  for (const Kernel& k : cuda_kernels())
    if (k.name == kernel && k.arch.max > 0 && !k.arch.holds(arch))
      return unsupported(fmt::format(
          "device: {} is sm_{}, {} is for sm_{} {}", device.name, arch, k.name, k.arch.min,
          k.arch.max == Range{}.max ? std::string("and later") : fmt::format("to sm_{}", k.arch.max)));
  return {};
}

Result<CudaPlan> plan_cuda(const Problem& problem, const RunOptions& options, double density) {
  if (options.backward) return unsupported("backward: the device has no kernel for gradients; nearest: cpu");
  const bool refuse = options.fallback == "refuse";
  CudaPlan made;
  append(&made.reason, cpu_options(options));
  if (refuse && !made.reason.empty()) return unsupported("fallback: " + made.reason);
  Result<cuda::StepPlan> step = cuda::plan_step(
      without_addresses(problem), {.plan = {.backend = Backend::kCuda,
                                            .path = path_of(options.path),
                                            .fallback = refuse ? Fallback::kRefuse : Fallback::kAllow,
                                            .splits = options.splits,
                                            .min_tiles = 0},
                                   .block = options.block,
                                   .load = load_of(options.load),
                                   .engine = engine_of(options.engine),
                                   .density = density,
                                   .ring = ring_of(options.ring)});
  if (!step.ok()) return step.status();
  append(&made.reason, step->plan.reason);
  made.step = std::move(*step);
  return made;
}

Status cuda_refusal(const Problem& problem, const RunOptions& options, std::string* reason) {
  const auto devices = cuda_devices();
  if (!devices.ok() || devices->empty()) return {Code::kDeviceError, "no CUDA device"};
  // Who names threads or instructions means the CPU.
  if (const std::string found = cpu_options(options); !found.empty()) return unsupported(found);
  const Result<CudaPlan> plan = plan_cuda(problem, options);
  if (!plan.ok()) return plan.status();
  const CudaDevice& device = devices->front();
  if (Status s = check_device(plan->step.kernel, device); !s.ok()) return s;
  *reason = device.name;
  return {};
}

}  // namespace tamis::cli
