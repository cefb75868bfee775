// A decode step on a CUDA device: normalize, schedule and attend as kernels on a stream of the caller.
//
// Everything the kernels read lies in device memory of the caller: the views of a Problem point there, and so
// do the three buffers of a step. normalize, schedule and run never allocate, never wait for the device and
// never look into device memory, so they may be captured into a CUDA graph. Contents, lengths, page tables,
// counts and cu_q may change between replays within what the plan holds; a graph keeps the pointers and
// extents it was captured with. From normalize to the last run of its index set lists, lengths, cu_q, the
// page table and, where there is a mask, q_pos stay as they are: q_pos that changed is not noticed. One
// buffer set has one user at a time; two sets run side by side on two streams.
//
// What only the device can know is judged there. An offence refuses the whole batch: no byte of K or V is
// read, the rows of out and lse become NaN (but for those whose slot was reused), and `poll` reports the
// first in the order of docs/semantics.md section 10; docs/device_step.md has the fine print. Only `poll` and
// `fetch` wait, and they refuse while the stream is being captured.
//
// On the device cu_q may end below total_q and there may be fewer candidate rows than the tensors hold: a
// graph of fixed extents serves a batch that shrinks. What lies beyond is neither read nor written.
//
// In a build without CUDA every function here answers device_error.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tamis/attention.h"
#include "tamis/device.h"
#include "tamis/plan.h"
#include "tamis/problem.h"
#include "tamis/status.h"

namespace tamis::cuda {

using Stream = void*;  // a cudaStream_t; null: the default stream

// How K and V come in. Prefill: boxes of blocks, or token by token; the same bits.
enum class Load : uint8_t {
  kAuto,
  kBlocks,  // 16 neighbouring tokens of a block at a time; tokens that nobody selects are skipped
  kTokens,  // 16 selected tokens at a time, from wherever they are: for sparse lists and odd page sizes
};
const char* load_name(Load load);

// Which kernel computes.
enum class Engine : uint8_t {
  kAuto,     // kDecode
  kDecode,   // 8 or 16 query rows a CTA: every problem, compute capability 8.0 and later
  kPrefill,  // 128 query rows a CTA, for many queries: compute capability 9.0
};
const char* engine_name(Engine engine);

// How much of K and V a CTA has under way, in rings in shared memory.
enum class Ring : uint8_t {
  kAuto,   // kFull where the device has shared memory for it: known where `run` launches, so ask ring_on
  kFull,   // 111 KB a CTA in all, 142 KB for head sizes above 128; `run` is unsupported where there is less
  kShort,  // at most 79 KB; one kernel for every kind of list, which may be slower
};
const char* ring_name(Ring ring);

struct StepOptions {
  // backend is taken as kCuda. min_tiles and shares 0: the policy of the device backend. workspace_budget is
  // of scratch; tasks and counters, a little of it, are needed however few the splits.
  PlanOptions plan{};
  int32_t block = 0;  // 16, 32 or 64 tokens; 0: default_block
  Load load = Load::kAuto;
  Engine engine = Engine::kAuto;
  // Selected tokens per token of the listed blocks, from the statistics of earlier steps: what `kAuto` goes
  // by. At most 1; below 0: not known, the unit of the candidates decides.
  double density = -1;
  // Blocks that one bundle may hold: a capacity tier. 0: as many as candidates and mask can bring; for CSR
  // that is all entries in one row, and the index set then takes memory for all rows together, not for each.
  int64_t row_entries = 0;
  int64_t max_kv_len = 0;  // tokens of a request; 0: what the page table or the cache holds
  Ring ring = Ring::kAuto;
  // kPrefill: CTAs two by two, of two row tiles with the same blocks, of which each brings in half for both.
  // Where row tiles do not come in twos, or have more than one list, the plan says so and does without.
  bool pairs = false;
};

struct StepSizes {
  int64_t control = 0;  // epoch, verdict, statistics: outside the other two, so that nothing can fake them
  int64_t index = 0;    // the index set: shared by layers that share lists
  int64_t scratch = 0;  // schedule and partial states: one a stream
};

// How CSR rows share the index set when no tier is named. The entries of a bundle begin at indptr[its first
// row] * an_entry + bundle * extra. Otherwise every bundle has row_entries of them.
struct StepPlaces {
  int64_t an_entry = 0;  // blocks that one raw entry can touch; 0: every bundle has row_entries
  int64_t extra = 0;     // blocks that window and sink can bring into a bundle
  int64_t listed = 0;    // raw entries of a step, at most
};

// An immutable value, made from extents and dtypes alone.
struct StepPlan {
  Plan plan;
  Load load = Load::kBlocks;
  Engine engine = Engine::kDecode;
  Ring ring = Ring::kAuto;   // as asked for: a plan knows no device
  std::string kernel{};      // row of the kernel table
  bool every_token = false;  // Candidates::all: rows need no list
  int64_t max_kv_len = 0, query_block = 1;
  int32_t lists = 1;            // candidate rows of a bundle
  int32_t bundles_a_block = 1;  // bundles of a query block; bundle = query block * bundles_a_block + KV head
  int32_t kv_heads_served = 1;  // KV heads of a bundle
  int64_t bundles = 0, groups = 0, tasks = 0, parts = 0;  // most of each
  int32_t columns = 8;                                    // query rows a CTA computes at a time
  int64_t column_tiles = 1;  // CTAs a task, so that all query rows of a group are served
  bool pairs = false;
  StepPlaces places{};
  StepSizes bytes{};
};

// Chooses kernel, block, load policy and sizes. Reads no array. Fails like make_plan, and with `unsupported`,
// naming the property, where no kernel computes the problem.
Result<StepPlan> plan_step(const Problem& problem, const StepOptions& options = {});

// The rings that a run of the plan takes on a device: what was asked for, else what its shared memory allows.
Ring ring_on(const StepPlan& plan, const CudaDevice& device);

// Device memory, each on a 256-byte line and of at least the plan's bytes, which do not overlap.
struct StepBuffers {
  void *control = nullptr, *index = nullptr, *scratch = nullptr;
  StepSizes bytes{};
};

// Once for each new control buffer, before its first step. Capturable. A control counts anew from here, also
// one that was used before: an index set and scratch that went with it are not told from new ones, so they
// are normalized and scheduled again before they run.
Status clear(const StepPlan& plan, const StepBuffers& buffers, Stream stream);

// Candidates to index set. The set may not run before `schedule` has followed.
Status normalize(const StepPlan& plan, const Problem& problem, const StepBuffers& buffers, Stream stream);

// Index set to tasks; judges the batch.
Status schedule(const StepPlan& plan, const StepBuffers& buffers, Stream stream);

// Counts of runs, in device memory of the caller; each run adds to them.
struct StepCounters {
  unsigned long long tasks, tiles;   // tiles of 64 columns begun
  unsigned long long tokens_loaded;  // per KV head
  unsigned long long rows_redone;  // query rows summed again, alone, because a V beside theirs was not finite
  unsigned long long empty_rows, stale_rows;  // (query, query head)
};

// Attention and merge. out: f32, f16 or bf16, lse f32 (a natural logarithm) or absent; slots are honoured, an
// epilogue is refused. May follow one schedule any number of times (layers that share lists). A step that was
// not scheduled, or scratch that another plan has used since, gives verdict stale_plan and NaN.
Status run(const StepPlan& plan, const Problem& problem, const OutView& out, const StepBuffers& buffers,
           Stream stream, StepCounters* counters = nullptr);

// normalize, schedule, run. What the host can see is judged before the first launch; what only a launch can
// refuse (the device's shared memory or compute capability, an error of the runtime) comes after stages that
// are launched or captured already.
Status step(const StepPlan& plan, const Problem& problem, const OutView& out, const StepBuffers& buffers,
            Stream stream, StepCounters* counters = nullptr);

// Sums over the bundles of the last step that was scheduled. A bundle whose lists hold 2^31 entries or more
// adds 2^31 - 1 to each class of entries, and what there are to `raw`.
struct StepStats {
  int64_t raw = 0, padding = 0, invalid = 0, duplicates = 0, unique = 0, future = 0;
  int64_t bundles = 0, empty_bundles = 0, blocks = 0, gaps = 0;
  int64_t touched_pages = 0;  // over bundles: a page that two bundles touch counts twice
  int64_t selected = 0;       // tokens of bundles that some query sees, and ...
  int64_t tasks = 0, parts = 0, most_parts = 0;
  uint64_t epoch = 0;  // steps scheduled with this control buffer

  // Selected tokens per token of the blocks; 1 where there are no blocks.
  double density(int32_t block) const {
    return blocks > 0 ? static_cast<double>(selected) / static_cast<double>(blocks * block) : 1;
  }
};

// Waits for the stream, then reports (with `stats` it also reads three arrays over the bundles): the verdict
// of the last step as a Status with request, row, page and value, and its statistics where `stats` is given.
// not_capturable while capturing.
Status poll(const StepPlan& plan, const StepBuffers& buffers, Stream stream, StepStats* stats = nullptr);

// The index set and the schedule of the last step, brought to the host: for tests and for explaining.
struct FetchedBundle {
  int32_t request = -1;  // -1: no such row in this step
  int32_t first_query = 0, last_query = 0;
  std::vector<int32_t> blocks{};
  std::vector<int64_t>
      slots{};  // first slot of each block; -1: nobody sees it, it lies in pieces, or every_token
  std::vector<uint64_t> members{};  // [blocks * lists]
};
struct FetchedStep {
  std::vector<FetchedBundle> bundles;
  std::vector<Task> tasks;
  std::vector<MergeItem> merges;
};
// stale_plan where no step of this plan and control lies in the buffers.
Result<FetchedStep> fetch(const StepPlan& plan, const StepBuffers& buffers, Stream stream);

}  // namespace tamis::cuda
