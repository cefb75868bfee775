// The files a run writes: a refused case leaves what was there as it was, and no scratch files.
#pragma once

#include <string>

#include "run.h"

namespace tamis::cli {

// One regular file under two names.
bool same_file(const std::string& a, const std::string& b);

// invalid_argument where a file that is to be written is one that is read, or two of them are one.
Status check_targets(const RunOptions& options);

// Writes what --out and --map ask for. Both files are complete before either takes its name.
Status write_files(const RunOptions& options, const Problem& problem, const RunReport& report,
                   const reference::Sets& sets);

}  // namespace tamis::cli
