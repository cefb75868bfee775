// Running attention: a planned step, or everything at once.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tamis/bundle.h"
#include "tamis/index.h"
#include "tamis/plan.h"
#include "tamis/problem.h"
#include "tamis/status.h"
#include "tamis/tensor.h"

namespace tamis {

// The CPU threads of a caller. One call at a time may use a Context. Its threads start and end with the
// Context; no call starts any.
class Context {
 public:
  // 0: as many as the machine has. Where threads cannot be started, fewer; threads() tells.
  explicit Context(int threads = 0);
  ~Context();
  Context(Context&&) noexcept;
  Context& operator=(Context&&) noexcept;

  int threads() const;

  // The instruction set the CPU kernels use: one of cpu_isas(), the best this machine has unless told
  // otherwise. `unsupported` when the build or the machine lacks it.
  Status use_isa(const std::string& name);
  const std::string& isa() const { return isa_; }

  class Pool;  // private to src/core
  Pool& pool() { return *pool_; }

 private:
  std::unique_ptr<Pool> pool_;
  std::string isa_;
};

// What happens to a row of O between softmax and memory, in this order: O * scale * gate, then the cast to
// out's dtype or the code of it. Done once, in f32, on the finished row after all of its splits were merged;
// LSE stays what it is (docs/epilogues.md).
//
// A gate of 0 gives exactly 0, where O is NaN too; an empty row stays 0 whatever scale and gate are.
struct Epilogue {
  float scale = 1;    // finite
  TensorView gate{};  // [total_q, Hq] f32, optional
  // Quantized write-back, for out in i8 or fp8: out holds codes, and code * scale is the result. At most one:
  TensorView static_scale{};      // [] or [Hq] f32, finite and above 0: values beyond it saturate
  MutableTensorView out_scale{};  // [total_q, Hq] f32, written: the scale of each row, by its largest value
};

// Which slot each request's results belong to. All three or none.
//
// A row of out, lse and out_scale is written only if, read once right before its store, the live generation
// of its request's slot is the one the request was admitted with; else the row keeps the bytes it held and is
// counted in RunCounters::stale_rows. So a bump that happens before a run keeps all of its rows out, and one
// during a run all that are not being stored at that moment: at most one row a thread. Who reuses the rows of
// a slot bumps first and writes when the run that was going on has returned (docs/epilogues.md).
struct SlotView {
  TensorView slot{};             // [B] i32; -1: none, always written
  TensorView generation{};       // [B] u32: the slot's when the request was admitted
  TensorView live_generation{};  // [slots] u32; other threads may change it during the run, atomically
};

// Where results go. Dense or strided in any way; lse f32 or absent. Out f32, f16, bf16, or fp8, which
// saturates; with a scale of the epilogue's i8 or fp8 codes.
struct OutView {
  MutableTensorView out{};  // [total_q, Hq, Dv]
  MutableTensorView lse{};  // [total_q, Hq]
  Epilogue epilogue{};
  SlotView slots{};
};

// Counts of one run. The caller's; nothing is kept by the library.
struct RunCounters {
  int64_t tasks = 0, tiles = 0;
  int64_t tokens_loaded = 0;  // K/V rows brought in, per KV head
  // Times a query row was summed over its own tokens only, per tile, because another row's V was not finite.
  int64_t rows_redone = 0;
  int64_t empty_rows = 0;  // (query, query head) with an empty set
  int64_t stale_rows = 0;  // (query, query head) not written because their slot was reused
  int64_t saturated = 0;   // values of an i8 or fp8 out beyond its range, or NaN lost to i8
  double attention_us = 0, merge_us = 0;
};

// Runs one planned step on the host. `workspace` holds the partial states (partial_bytes) and is dead
// afterwards; it need not be initialized. Bitwise equal for any thread count and any order of tasks. Fails
// before anything is read: stale_plan when plan, schedule and bundles do not belong together,
// workspace_too_small with the bytes needed. Only running out of memory for a thread's scratch
// (capacity_exceeded) shows later, and leaves outputs undefined.
//
// Pages and stamps are judged by `normalize`; `run` uses the slots it found. After any change of page table
// or stamps, normalize again.
Status run(const Plan& plan, const Problem& problem, const BundleView& bundles, const Schedule& schedule,
           const OutView& out, std::span<std::byte> workspace, Context& context,
           RunCounters* counters = nullptr);

struct ForwardOptions {
  NormalizeOptions normalize{};
  BundleOptions bundle{};
  PlanOptions plan{};
};

// What a forward did, stage by stage.
struct ForwardReport {
  Path path = Path::kDirect;
  std::string reason;
  int32_t block = 0, tile = 0;
  IndexStats index;
  BundleStats bundles;
  ScheduleStats schedule;
  RunCounters counters;
  double normalize_us = 0, plan_us = 0, total_us = 0;  // attention and merge are in `counters`
};

// normalize, bundle, plan, schedule, run. Allocates what it needs. The CPU backend only. `index`, when given,
// receives the sets that were attended to: what a backward reads.
Status forward(const Problem& problem, const ForwardOptions& options, const OutView& out, Context& context,
               ForwardReport* report = nullptr, IndexSet* index = nullptr);

// The instruction sets the CPU kernels were built for and this machine has, widest first: "avx512bf16",
// "avx512", "avx2", "plain".
std::vector<std::string> cpu_isas();

}  // namespace tamis
