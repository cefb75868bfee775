#include "cases.h"

#include <fnmatch.h>

#include <algorithm>

#include "backward.h"
#include "device_cases.h"
#include "environment.h"
#include "index_work.h"
#include "prefill.h"
#include "problem64k.h"

namespace tamis::bench {
namespace {

constexpr int64_t kIndexTurns = 64;  // lists of an index case: more than a branch predictor learns

Case decode(std::string name, std::string what, const Decode& d) {
  const auto run = [d](Session& session, const std::string& n) -> Result<Readings> {
    Decode with_trace = d;
    with_trace.trace = session.trace;
    session.say(n + ": making the pools");
    const Result<Work> work = decode_work(with_trace, session.context);
    if (!work.ok()) return work.status();
    return attention_readings(session, n, *work, Path::kDirect);
  };
  return {std::move(name), std::move(what), run, d.spread == Spread::kRecorded};
}

Case dense(std::string name, DType dtype) {
  const auto run = [dtype](Session& session, const std::string& n) -> Result<Readings> {
    session.say(n + ": making K and V");
    const Result<Work> work = dense_work({.dtype = dtype}, session.context);
    if (!work.ok()) return work.status();
    return attention_readings(session, n, *work, Path::kDense);
  };
  return {std::move(name), "dense decode over 65536 contiguous tokens", run};
}

Case prefill(std::string name, const Prefill& p) {
  const auto run = [p](Session& session, const std::string& n) -> Result<Readings> {
    const Result<Work> work = prefill_work(p, session.context);
    if (!work.ok()) return work.status();
    return attention_readings(session, n, *work, Path::kDirect);
  };
  return {std::move(name),
          std::string("blocks of 128, one in eight, L 4096, 8/2 heads") + (p.causal ? ", causal" : ""), run};
}

Case backward(std::string name, DType dtype) {
  const auto run = [dtype](Session& session, const std::string& n) -> Result<Readings> {
    const Result<Work> work = prefill_work({.dtype = dtype, .gradients = true}, session.context);
    if (!work.ok()) return work.status();
    return backward_readings(session, n, *work);
  };
  return {std::move(name), "gradients over blocks of 128, one in eight, L 4096, 8/2 heads", run};
}

template <class Read>
Case index(std::string name, std::string what, Work (*make)(int64_t, uint64_t), Read read) {
  return {std::move(name), std::move(what), [make, read](Session& session, const std::string& n) {
            const Work work = make(kIndexTurns, 8);
            return read(session, n, work);
          }};
}

Case reuse(int64_t layers) {
  return index("cpu.plan.reuse" + std::to_string(layers),
               "one plan and its use by " + std::to_string(layers) + " layers that share lists",
               page_lists_work, [layers](Session& session, const std::string& n, const Work& work) {
                 return reuse_reading(session, n, work, layers);
               });
}

std::vector<Case> make_cases() {
  using enum DType;
  const std::string b1 = "64K selected decode, one request", b8 = "64K selected decode, eight requests";
  return {
      decode("cpu.decode64k.b1.bf16", b1, {.dtype = kBF16}),
      decode("cpu.decode64k.b1.f16", b1, {.dtype = kF16}),
      decode("cpu.decode64k.b1.f32", b1, {.dtype = kF32}),
      decode("cpu.decode64k.b8.bf16", b8, {.requests = 8, .dtype = kBF16}),
      decode("cpu.decode64k.hnd.b1.bf16", b1 + ", HND", {.dtype = kBF16, .layout = Layout::kHND}),
      decode("cpu.decode64k.hnd.b1.f32", b1 + ", HND", {.dtype = kF32, .layout = Layout::kHND}),
      decode("cpu.decode64k.clustered.b1.bf16", b1 + ", pages in runs of 31",
             {.dtype = kBF16, .spread = Spread::kClustered}),
      decode("cpu.decode64k.recorded.b1.bf16", b1 + ", pages a model selected (--trace)",
             {.dtype = kBF16, .spread = Spread::kRecorded}),
      dense("cpu.dense64k.b1.bf16", kBF16),
      dense("cpu.dense64k.b1.f32", kF32),
      prefill("cpu.prefill.block128.L4k.d12.bf16", {.dtype = kBF16}),
      prefill("cpu.prefill.block128.L4k.d12.f32", {.dtype = kF32}),
      prefill("cpu.prefill.block128.L4k.d12.causal.bf16", {.dtype = kBF16, .causal = true}),
      prefill("cpu.prefill.block128.L4k.d12.causal.f32", {.dtype = kF32, .causal = true}),
      backward("cpu.backward.block128.L4k.d12.bf16", kBF16),
      backward("cpu.backward.block128.L4k.d12.f32", kF32),
      index("cpu.normalize.pages.8x264.64k", "8 lists of 264 pages to an index set", page_lists_work,
            normalize_reading),
      index("cpu.normalize.tokens.8x2048.64k", "8 lists of 2048 tokens to an index set", token_lists_work,
            normalize_reading),
      index("cpu.plan.8", "bundle, plan and schedule of 8 rows of 264 pages", page_lists_work, plan_reading),
      reuse(1),
      reuse(32),
      reuse(64),
  };
}

Json to_json(const Ceilings& c) {
  return {{"copy_tb_s", c.copy_tb_s},
          {"read_tb_s", c.read_tb_s},
          {"gemm_f32_tflop_s", c.gemm_f32_tflop_s},
          {"gemm_bf16_tflop_s", nullptr},  // no product of ours in that type to be a ceiling
          {"scattered_read_tb_s", Json::object()}};
}

// Ceilings and environment of a record are of one machine: the device or the CPU.
Result<bool> all_on_device(const std::vector<const Case*>& chosen) {
  const bool device = chosen[0]->device;
  for (const Case* c : chosen)
    if (c->device != device)
      return Status(
          Code::kInvalidArgument,
          "NAME: benches of the CPU and of the device do not go into one record; name 'cpu.*' or 'cuda.*'");
  return device;
}

// The reader of each case is its scattered-read ceiling.
void add_scattered(const Readings& readings, Json* ceilings) {
  const std::string ending = ".reader";
  for (const Reading& r : readings)
    if (r.name.size() > ending.size() && r.name.ends_with(ending))
      (*ceilings)["scattered_read_tb_s"][r.name] = static_cast<double>(r.bytes) / r.time.median * 1e-6;
}

}  // namespace

const std::vector<Case>& cases() {
  static const std::vector<Case> table = [] {
    std::vector<Case> all = make_cases(), device = device_cases();
    std::move(device.begin(), device.end(), std::back_inserter(all));
    return all;
  }();
  return table;
}

Result<std::vector<const Case*>> find_cases(const std::vector<std::string>& patterns) {
  std::vector<const Case*> found;
  std::vector<bool> used(patterns.size());
  for (const Case& c : cases()) {
    bool wanted = false;
    for (size_t i = 0; i < patterns.size(); ++i)
      if (fnmatch(patterns[i].c_str(), c.name.c_str(), 0) == 0) used[i] = wanted = true;
    if (wanted) found.push_back(&c);
  }
  for (size_t i = 0; i < patterns.size(); ++i)
    if (!used[i])
      return Status(Code::kInvalidArgument, "NAME: no bench is called '" + patterns[i] + "'; see --list");
  return found;
}

Result<Record> run_benches(const BenchOptions& options, std::function<void(const std::string&)> progress) {
  const Result<std::vector<const Case*>> chosen = find_cases(options.patterns);
  if (!chosen.ok()) return chosen.status();
  const Result<bool> on_device = all_on_device(*chosen);
  if (!on_device.ok()) return on_device.status();
  Session session{.context = Context(options.threads),
                  .protocol = {},
                  .ceilings = {},
                  .trace = options.trace,
                  .progress = std::move(progress)};
  if (options.samples > 0) session.protocol.samples = options.samples;
  if (!options.isa.empty())
    if (Status s = session.context.use_isa(options.isa); !s.ok()) return s;

  Record record{.environment = environment(session.context.isa(), session.context.threads()),
                .readings = {},
                .skipped = {}};
  std::unique_ptr<DeviceLab> lab;
  if (*on_device) {
    Result<std::unique_ptr<DeviceLab>> started = start_device(&session, &record);
    if (!started.ok()) return started.status();
    lab = std::move(*started);
  } else {
    session.say("ceilings");
    const Result<Ceilings> ceilings = measure_ceilings(session.context);
    if (!ceilings.ok()) return ceilings.status();
    session.ceilings = *ceilings;
    record.ceilings = to_json(*ceilings);
  }
  for (const Case* c : *chosen) {
    Result<Readings> readings =
        c->needs_trace && session.trace.empty()
            ? Status(Code::kInvalidArgument, c->name + ": --trace names no file of recorded selections")
            : c->run(session, c->name);
    if (!readings.ok()) {
      if (chosen->size() == 1) return readings.status();
      record.skipped.push_back({c->name, readings.status().message()});
      session.say(c->name + ": skipped: " + readings.status().message());
      continue;
    }
    add_scattered(*readings, &record.ceilings);
    std::move(readings->begin(), readings->end(), std::back_inserter(record.readings));
  }
  if (lab != nullptr) finish_device(*lab, &record);
  record.environment["other_processes"]["load_average_after"] = load_average();
  return record;
}

}  // namespace tamis::bench
