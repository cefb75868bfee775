#include "run_files.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

#include "io/output.h"

namespace tamis::cli {
namespace {

namespace fs = std::filesystem;

// Names of files that need not exist yet.
bool same_name(const std::string& a, const std::string& b) {
  std::error_code none;
  const fs::path x = fs::weakly_canonical(a, none), y = fs::weakly_canonical(b, none);
  return same_file(a, b) || (x == y && !fs::exists(x, none));
}

Status write_result(const RunOptions& options, const Problem& p, const Shape& s, const Computed& values,
                    const reference::Sets& sets) {
  const int64_t count = static_cast<int64_t>(sets.tokens.size());
  io::NamedTensors tensors{
      {"out", dense_view(values.out.data(), DType::kF32, {s.total_q, s.q_heads, s.v_head_dim})},
      {"lse", dense_view(values.lse.data(), DType::kF32, {s.total_q, s.q_heads})}};
  if (values.gradients) {
    const GradientValues& g = *values.gradients;
    // Axes as in the inputs; an int4 input counts bytes along its last one, a gradient numbers.
    const auto add = [&](const char* name, const std::vector<float>& numbers, const TensorView& input,
                         int64_t dim) {
      tensors.push_back({name, dense_like(input, dim, numbers.data(), DType::kF32)});
    };
    add("d_q", g.d_q, p.query.q, s.head_dim);
    add("d_k", g.d_k, p.cache.k, s.head_dim);
    add("d_v", g.d_v, p.cache.v, s.v_head_dim);
  }
  std::vector<int64_t> slots;
  if (options.dump_index) {
    slots = reference::physical_slots(p, sets);
    const int64_t offsets = static_cast<int64_t>(sets.indptr.size());
    tensors.push_back({"set_indptr", dense_view(sets.indptr.data(), DType::kI64, {offsets})});
    tensors.push_back({"set_tokens", dense_view(sets.tokens.data(), DType::kI32, {count})});
    tensors.push_back({"set_slots", dense_view(slots.data(), DType::kI64, {count})});
  }
  return io::write_tensors(options.out, tensors);
}

}  // namespace

// Devices may be named twice.
bool same_file(const std::string& a, const std::string& b) {
  std::error_code none;
  return fs::is_regular_file(a, none) && fs::equivalent(a, b, none);
}

Status check_targets(const RunOptions& o) {
  for (const auto& [argument, path] : {std::pair{"out", &o.out}, {"map", &o.map}}) {
    if (!path->empty() && same_file(*path, o.file))
      return {Code::kInvalidArgument, fmt::format("{}: {} is the case itself", argument, *path)};
    if (!path->empty() && !o.original.empty() && same_file(*path, o.original))
      return {Code::kInvalidArgument, fmt::format("{}: {} is the original case", argument, *path)};
  }
  if (!o.out.empty() && !o.map.empty() && same_name(o.out, o.map))
    return {Code::kInvalidArgument, fmt::format("map: {} is also the result file (out)", o.map)};
  return {};
}

Status write_files(const RunOptions& options, const Problem& problem, const RunReport& report,
                   const reference::Sets& sets) {
  io::Output map;
  std::string svg;
  const auto of_map = [](const Status& s) {
    return s.ok() ? s : Status(s.code(), "map: " + s.message(), s.where());
  };
  const auto put_map = [&] {
    Status s = map.put(svg.data(), static_cast<int64_t>(svg.size()));
    return of_map(s.ok() ? map.flush() : s);
  };
  if (!options.map.empty()) {
    const Shape& shape = report.shape;
    Result<std::string> drawn =
        draw_map(problem, sets, shape.page_size > 0 ? shape.page_size : report.computed.block);
    if (!drawn.ok()) return drawn.status();
    svg = std::move(*drawn);
    if (Status s = of_map(map.open(options.map)); !s.ok()) return s;
    if (!map.in_place())
      if (Status s = put_map(); !s.ok()) return s;
  }
  if (!options.out.empty())
    if (Status s = write_result(options, problem, report.shape, report.computed, sets); !s.ok()) return s;
  if (options.map.empty()) return {};
  if (map.in_place())
    if (Status s = put_map(); !s.ok()) return s;
  return of_map(map.commit());
}

}  // namespace tamis::cli
