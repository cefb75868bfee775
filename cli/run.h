// One run of a case: what was asked, what came out, and how it is told.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli.h"
#include "tamis/accuracy.h"
#include "tamis/attention.h"
#include "tamis/backward.h"
#include "tamis/device.h"
#include "tamis/explain.h"
#include "tamis/io.h"
#include "tamis/reference.h"

namespace tamis::cli {

struct RunOptions {
  std::string file, out, map, original;
  std::string backend = "auto", path = "auto", fallback = "allow", load = "auto", ring = "auto",
              engine = "auto", isa;
  int32_t block = 0, splits = 0, threads = 0, repeat = 1;  // 0: the plan chooses
  bool backward = false, dump_index = false, check = false, compare_full = false, json = false;
};

// The backend a run uses and why, when it is not simply the one that was named.
struct Choice {
  Backend backend = Backend::kReference;
  std::string reason;
};

// Section 10: a named backend is never left; `auto` takes the best there is for this problem, with a reason.
Result<Choice> choose_backend(const Problem& problem, const RunOptions& options);

struct Times {
  double normalize = 0, plan = 0, attention = 0, merge = 0, clear = 0, backward = 0,
         total = 0;  // us; backward includes clear
};

// Dense, axes as in q, k and v; the last extent is D, D and Dv also where k or v is int4.
struct GradientValues {
  std::vector<float> d_q, d_k, d_v;
};

// What a backend made of a problem.
struct Computed {
  std::vector<float> out{}, lse{};
  std::optional<GradientValues> gradients{};  // with --backward
  CandidateCounts candidates{};
  int64_t empty_rows = 0, stale_rows = 0;
  std::string path{}, reason{};
  std::string kernel{}, load{}, ring{};       // of the device
  int64_t block = 0, tiles = 0, columns = 0;  // columns: K/V rows brought in, over KV heads
  int64_t splits = 1, workspace_bytes = 0, tasks = 0;
  Percentiles task_blocks{};
  Times time{};
};

// `sets`, where given, receives the sets the backend worked on: the reference's own, those of the normalized
// index, or what the device made of the candidates.
Result<Computed> compute(const Problem& problem, Backend backend, const RunOptions& options,
                         reference::Sets* sets = nullptr);

// Why no device here computes the problem; ok where one does, and *reason then names it.
Status cuda_refusal(const Problem& problem, const RunOptions& options, std::string* reason);
// run_cuda.cpp
Result<Computed> compute_cuda(const Problem& problem, const Shape& shape, const RunOptions& options,
                              reference::Sets* sets);

// What the backends share: run_compute.cpp.
Path path_of(const std::string& name);
Times medians(const std::vector<Times>& all);  // of each stage
// Counted per index head, as the contract does.
int64_t count_empty_rows(const std::vector<float>& lse, const Shape& shape);
// Every set of an index.
reference::Sets expand_all(const Problem& problem, const IndexView& index, const CandidateCounts& counts);

// Largest difference, alone and relative to the largest reference magnitude.
struct Error {
  double absolute = 0, relative = 0;
};

struct GradientErrors {
  Error d_q, d_k, d_v;
};

// Against full attention over the same queries and cache.
struct FullComparison {
  Error error;
  KeptMass mass;
  double total_us = 0;
};

struct RunReport {
  Choice choice;
  Shape shape;
  int64_t kv_tokens = 0;  // sum of kv_len
  Computed computed;
  Accounting account;          // at tiles of 64
  int64_t blocks = 0;          // of computed.block tokens, over (row, KV head served)
  std::optional<Error> check;  // of out
  std::optional<GradientErrors> check_gradients;
  std::optional<FullComparison> full;
  std::optional<AccuracySplit> split;
};

inline constexpr int64_t kReportTile = 64;

// --original: the split of the error against the case that was quantized; run_original.cpp.
Result<AccuracySplit> compare_with_original(const std::string& file, const Problem& problem,
                                            const Shape& shape, const std::vector<float>& out);
void add_split(const AccuracySplit& split, Json* report);
std::string split_text(const AccuracySplit& split);

Json report_json(const RunReport& report);
std::string report_text(const RunReport& report, const RunOptions& options);

}  // namespace tamis::cli
