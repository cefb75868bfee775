// The report of a run, as JSON (docs/cli.md) and as a table.
#include <fmt/format.h>

#include "format.h"
#include "run.h"

namespace tamis::cli {
namespace {

std::string means_text(const KeptMass& mass) {
  std::string out;
  for (size_t h = 0; h < mass.mean.size(); ++h) out += fmt::format("{}{:.3f}", h ? " " : "", mass.mean[h]);
  return out;
}

std::string error_text(const Error& e) {
  return fmt::format("{:.3e} at most, {:.3e} of the largest value", e.absolute, e.relative);
}

Json error_json(const Error& e) { return {{"max_abs_error", e.absolute}, {"max_rel_error", e.relative}}; }

std::string sizes_text(const Shape& s, int64_t kv_tokens) {
  std::string out = fmt::format("{} request{}, {} queries, {} query and {} KV heads, D {}", s.requests,
                                s.requests == 1 ? "" : "s", s.total_q, s.q_heads, s.kv_heads, s.head_dim);
  if (s.v_head_dim != s.head_dim) out += fmt::format(", Dv {}", s.v_head_dim);
  out += fmt::format(", {} cached tokens", kv_tokens);
  return out + (s.page_size > 0 ? fmt::format(" in pages of {}", s.page_size) : ", contiguous");
}

std::string candidates_text(const CandidateCounts& c) {
  return fmt::format("{} entries: {} kept, {} duplicates merged, {} invalid dropped, {} padding", c.raw,
                     c.unique, c.duplicates, c.invalid, c.padding);
}

std::string reason_of(const RunReport& r) {
  if (r.choice.reason.empty() || r.computed.reason.empty()) return r.choice.reason + r.computed.reason;
  return r.choice.reason + "; " + r.computed.reason;
}

// Columns brought in over the columns of all tiles.
double tile_efficiency(const RunReport& r) {
  const int64_t columns = r.computed.tiles * kReportTile;
  return columns == 0 ? 0 : static_cast<double>(r.computed.columns) / static_cast<double>(columns);
}

int64_t loaded_bytes(const RunReport& r) {
  const Shape& s = r.shape;
  return r.computed.columns * (s.k_bits * s.head_dim + s.v_bits * s.v_head_dim) / 8;
}

}  // namespace

Json report_json(const RunReport& r) {
  const Computed& c = r.computed;
  const ByteAccount& b = r.account.bytes;
  Json out{
      {"backend", backend_name(r.choice.backend)},
      {"path", c.path},
      {"reason", reason_of(r)},
      {"rows", r.account.tiles.rows},
      {"candidates",
       {{"raw", c.candidates.raw},
        {"padding", c.candidates.padding},
        {"invalid", c.candidates.invalid},
        {"duplicates", c.candidates.duplicates},
        {"unique", c.candidates.unique}}},
      {"empty_rows", c.empty_rows},
      {"selected_tokens", r.account.tiles.selected_tokens},
      {"block", c.block},
      {"blocks", r.blocks},
      {"tiles", c.tiles},
      {"tile_efficiency", tile_efficiency(r)},
      {"bytes", {{"logical", b.logical}, {"loaded", loaded_bytes(r)}, {"dense", b.dense}}},
      {"splits", c.splits},
      {"workspace_bytes", c.workspace_bytes},
      {"stale_rows", c.stale_rows},
      {"tasks", c.tasks},
      {"task_blocks", {{"p50", c.task_blocks.p50}, {"p95", c.task_blocks.p95}, {"max", c.task_blocks.max}}},
      {"time_us",
       {{"normalize", c.time.normalize},
        {"plan", c.time.plan},
        {"attention", c.time.attention},
        {"merge", c.time.merge},
        {"clear", c.time.clear},
        {"total", c.time.total}}}};
  if (c.gradients) out["time_us"]["backward"] = c.time.backward;
  if (!c.kernel.empty()) {
    out["kernel"] = c.kernel;
    out["load"] = c.load;
    out["ring"] = c.ring;
  }
  if (r.check) {
    out["max_abs_error"] = r.check->absolute;
    out["max_rel_error"] = r.check->relative;
  }
  if (r.check_gradients)
    out["gradients"] = {{"d_q", error_json(r.check_gradients->d_q)},
                        {"d_k", error_json(r.check_gradients->d_k)},
                        {"d_v", error_json(r.check_gradients->d_v)}};
  if (r.full)
    out["full"] = {{"max_abs_error", r.full->error.absolute},
                   {"max_rel_error", r.full->error.relative},
                   {"total_us", r.full->total_us},
                   {"kept_mass", {{"mean", r.full->mass.mean}, {"min", r.full->mass.min}}}};
  if (r.split) add_split(*r.split, &out);
  return out;
}

std::string report_text(const RunReport& r, const RunOptions& options) {
  const Computed& c = r.computed;
  const TileAccount& t = r.account.tiles;
  const ByteAccount& b = r.account.bytes;
  const std::string reason = reason_of(r);
  std::string out = fmt::format("{}\n", options.file);
  out += line("problem", sizes_text(r.shape, r.kv_tokens));
  out += line("backend", fmt::format("{}, path {}{}", backend_name(r.choice.backend), c.path,
                                     reason.empty() ? "" : fmt::format(" ({})", reason)));
  if (!c.kernel.empty())
    out += line("kernel", fmt::format("{}, loads {}, {} rings", c.kernel, c.load, c.ring));
  out += line("candidates", candidates_text(c.candidates));
  out += line("selected", fmt::format("{} tokens over {} rows and their KV heads; {} empty",
                                      t.selected_tokens, t.rows, c.empty_rows));
  out += line("blocks", fmt::format("{} of {} tokens, {} used", r.blocks, c.block,
                                    percent_text(r.blocks ? static_cast<double>(t.selected_tokens) /
                                                                static_cast<double>(r.blocks * c.block)
                                                          : 0)));
  out += line("tiles", fmt::format("{} packed tiles of {}, {} filled (row by row, aligned: {}, {})", c.tiles,
                                   kReportTile, percent_text(tile_efficiency(r)), t.aligned,
                                   percent_text(t.efficiency_aligned)));
  if (c.tasks > 0)
    out +=
        line("tasks",
             fmt::format("{} of {} / {} / {} blocks (P50 / P95 / max), at most {} splits a row, {} workspace",
                         c.tasks, c.task_blocks.p50, c.task_blocks.p95, c.task_blocks.max, c.splits,
                         bytes_text(c.workspace_bytes)));
  out += line("K+V bytes",
              fmt::format("selected {} of {} dense, row by row: {:.1f} x fewer; {} loaded, shared once",
                          bytes_text(b.logical), bytes_text(b.dense), b.compression_logical,
                          bytes_text(loaded_bytes(r))));
  out += line(
      "time",
      fmt::format("normalize {}, plan {}, attention {}, merge {}{}: total {}", time_text(c.time.normalize),
                  time_text(c.time.plan), time_text(c.time.attention), time_text(c.time.merge),
                  c.gradients ? ", backward " + time_text(c.time.backward) : "", time_text(c.time.total)));
  if (r.full) {
    out += line(
        "", fmt::format("full attention on this machine: {}, {:.1f} x as long", time_text(r.full->total_us),
                        r.full->total_us / (c.time.total - c.time.backward)));
    out += line("kept mass",
                fmt::format("of the full softmax, mean per query head: {}", means_text(r.full->mass)));
    out += line("vs full", fmt::format("sparse against full attention: {}", error_text(r.full->error)));
  }
  if (r.check) out += line("vs float64", fmt::format("this computation: {}", error_text(*r.check)));
  if (r.check_gradients)
    for (const auto& [name, e] : {std::pair{"d_q", &r.check_gradients->d_q},
                                  {"d_k", &r.check_gradients->d_k},
                                  {"d_v", &r.check_gradients->d_v}})
      out += line("", fmt::format("{}: {}", name, error_text(*e)));
  if (r.split) out += split_text(*r.split);
  if (!options.out.empty()) out += line("result", options.out);
  if (!options.map.empty()) out += line("map", options.map);
  return out;
}

}  // namespace tamis::cli
