// tamis run --original: what the kernel is off by, and what the format cost.
#include <fmt/format.h>

#include "format.h"
#include "run.h"
#include "tamis/io.h"

namespace tamis::cli {

Result<AccuracySplit> compare_with_original(const std::string& file, const Problem& p, const Shape& s,
                                            const std::vector<float>& out) {
  const Result<io::Case> original = io::read_case(file);
  if (!original.ok()) return original.status();
  return accuracy_split(original->problem, p,
                        dense_view(out.data(), DType::kF32, {s.total_q, s.q_heads, s.v_head_dim}));
}

void add_split(const AccuracySplit& split, Json* report) {
  for (const auto& [name, e] :
       {std::pair{"kernel_error", &split.kernel}, {"quantization_error", &split.quantization}})
    (*report)[name] = {{"max_abs", e->max_abs}, {"rel_rms", e->relative_rms}};
}

std::string split_text(const AccuracySplit& split) {
  std::string out;
  for (const auto& [name, e] : {std::pair{"kernel", &split.kernel}, {"format", &split.quantization}})
    out += line(name, fmt::format("off by {:.3e} at most, {:.3e} relative RMS", e->max_abs, e->relative_rms));
  return out;
}

}  // namespace tamis::cli
