// The benches by name.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "run.h"

namespace tamis::bench {

struct Case {
  std::string name, what;
  std::function<Result<Readings>(Session&, const std::string& name)> run;
  bool needs_trace = false;
  bool device = false;  // measures the CUDA device; a run measures either it or the CPU
};

const std::vector<Case>& cases();

// Those whose name one of the patterns (shell globs) matches, each once, in the table's order. A pattern that
// matches none is invalid_argument.
Result<std::vector<const Case*>> find_cases(const std::vector<std::string>& patterns);

struct BenchOptions {
  std::vector<std::string> patterns;
  int threads = 0;      // 0: as many as the machine has
  std::string isa{};    // of the kernels; empty: the best. The ceilings always use the best
  int64_t samples = 0;  // 0: the protocol's
  std::string trace{};
};

// The whole of `tamis bench`: ceilings first, then the cases. A case that cannot run here is in `skipped`
// with the reason, unless it is the only one asked for: then that is the error.
Result<Record> run_benches(const BenchOptions& options, std::function<void(const std::string&)> progress);

}  // namespace tamis::bench
