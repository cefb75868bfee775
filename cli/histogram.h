// Row lengths out of files: case files, or a histogram as text or JSON.
#pragma once

#include <string>
#include <vector>

#include "cli.h"
#include "tamis/explain.h"
#include "tamis/tiers.h"

namespace tamis::cli {

// Appends what one file records. A file whose first bytes hold a zero is a case file, whose rows are measured
// as `of` says; any other is a histogram: lines `length count` (# begins a comment), or one JSON object
// {"length": count, ...}.
Status add_lengths(const std::string& path, LengthOf of, std::vector<LengthWeight>* lengths);

}  // namespace tamis::cli
