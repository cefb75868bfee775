// Two records of one machine, reading by reading: what changed beyond noise.
#pragma once

#include <string>
#include <vector>

#include "record.h"

namespace tamis::bench {

enum class Verdict { kSame, kFaster, kSlower, kOnlyOld, kOnlyNew, kOtherCase };
const char* verdict_name(Verdict verdict);

struct Change {
  std::string name, peer;
  Verdict verdict = Verdict::kSame;
  double old_us = 0, new_us = 0;
  double ratio = 0;         // new over old
  bool scaled = false;      // both have a ceiling:
  double scaled_ratio = 0;  // the same with the new time scaled by how the ceiling moved
};

// A reading changed when its (scaled) median moved by more than `threshold` and the middle halves of the
// samples (p25 to p75) do not touch. Memory speed drifts from run to run; a reading with a ceiling is judged
// beside it. Records of different gpu, cpu model or number of cores are refused: unsupported.
Result<std::vector<Change>> compare(const Json& old_record, const Json& new_record, double threshold);

}  // namespace tamis::bench
