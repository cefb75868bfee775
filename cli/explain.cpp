// tamis explain: the accounting of a case, without running it (docs/explain.md).
#include "tamis/explain.h"

#include <fmt/core.h>

#include <memory>

#include "cli.h"
#include "format.h"
#include "tamis/io.h"

namespace tamis::cli {
namespace {

struct Options {
  std::string file;
  AccountingOptions accounting;
  double terabytes = 0;
  bool json = false;
};

Json to_json(const Accounting& a, bool floor) {
  const auto& [tiles, bytes, flops, flops_aligned, workspace, floor_us] = a;
  Json out{{"rows", tiles.rows},
           {"kv_heads", tiles.kv_heads},
           {"selected_tokens", tiles.selected_tokens},
           {"touched_pages", tiles.touched_pages},
           {"tiles_aligned", tiles.aligned},
           {"tiles_packed", tiles.packed},
           {"tile_efficiency_aligned", tiles.efficiency_aligned},
           {"tile_efficiency_packed", tiles.efficiency_packed},
           {"block_utilization", tiles.block_utilization},
           {"bytes_logical", bytes.logical},
           {"bytes_pages", bytes.pages},
           {"bytes_aligned", bytes.aligned},
           {"bytes_dense", bytes.dense},
           {"compression_logical", bytes.compression_logical},
           {"compression_aligned", bytes.compression_aligned},
           {"flops_logical", flops},
           {"flops_aligned", flops_aligned},
           {"index_bytes", bytes.index},
           {"index_bytes_normalized", bytes.index_normalized},
           {"scale_bytes", bytes.scales},
           {"transaction_bytes", bytes.transactions},
           {"transaction_efficiency", bytes.transaction_efficiency},
           {"workspace_bytes",
            {{"splits", workspace.splits},
             {"partial_o", workspace.partial_o},
             {"partial_ml", workspace.partial_ml},
             {"total", workspace.total}}}};
  if (floor) out["floor_us"] = floor_us;
  return out;
}

std::string flops_text(int64_t flops) {
  const double f = static_cast<double>(flops);
  if (f >= 1e12) return fmt::format("{:.2f} TFLOP", f / 1e12);
  if (f >= 1e9) return fmt::format("{:.2f} GFLOP", f / 1e9);
  return fmt::format("{:.1f} MFLOP", f / 1e6);
}

std::string to_text(const Accounting& a, const AccountingOptions& o) {
  const TileAccount& t = a.tiles;
  const ByteAccount& b = a.bytes;
  const int64_t heads = std::max<int64_t>(1, t.kv_heads);
  std::string out;
  out += line("rows", fmt::format("{} candidate rows, {} KV heads", t.rows, t.kv_heads));
  out += line("selected", fmt::format("{} tokens on {} pages, {} of their tokens used", t.selected_tokens,
                                      t.touched_pages, percent_text(t.block_utilization)));
  out += line("aligned", fmt::format("{} tiles of {} ({} a KV head), {} used", t.aligned, o.tile,
                                     t.aligned / heads, percent_text(t.efficiency_aligned)));
  out += line("packed", fmt::format("{} tiles of {} ({} a KV head), {} used", t.packed, o.tile,
                                    t.packed / heads, percent_text(t.efficiency_packed)));
  out += line("K+V bytes",
              fmt::format("{} selected, {} in pages, {} in aligned tiles, {} dense", bytes_text(b.logical),
                          bytes_text(b.pages), bytes_text(b.aligned), bytes_text(b.dense)));
  out += line("", fmt::format("{:.2f} x fewer than dense selected, {:.2f} x aligned", b.compression_logical,
                              b.compression_aligned));
  out += line("lines", fmt::format("{} in 128-byte lines, {} used", bytes_text(b.transactions),
                                   percent_text(b.transaction_efficiency)));
  if (b.scales > 0) out += line("scales", bytes_text(b.scales));
  out += line("work", fmt::format("{} selected, {} in aligned tiles", flops_text(a.flops_logical),
                                  flops_text(a.flops_aligned)));
  out += line("index", fmt::format("{} B as given, {} B normalized", b.index, b.index_normalized));
  out += line("workspace", fmt::format("{} B of O and {} B of (m, l) for {} splits", a.workspace.partial_o,
                                       a.workspace.partial_ml, a.workspace.splits));
  if (o.bandwidth > 0)
    out += line("floor", fmt::format("{} at {:.2f} TB/s", time_text(a.floor_us), o.bandwidth / 1e12));
  return out;
}

int explain_case(const Options& options) {
  const Result<io::Case> found = io::read_case(options.file);
  if (!found.ok()) return fail(found.status());
  const Result<Accounting> account = explain(found->problem, options.accounting);
  if (!account.ok()) return fail(account.status());
  if (options.json) {
    fmt::print("{}\n", to_json(*account, options.accounting.bandwidth > 0).dump(1));
  } else {
    fmt::print("{}\n{}", options.file, to_text(*account, options.accounting));
  }
  return kDone;
}

}  // namespace

void add_explain(CLI::App& app, int* exit) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("explain", "What a case costs to load and compute; runs nothing");
  command->add_option("CASE", options->file, "Case file (docs/case-format.md)")->required();
  command->add_option("--tile", options->accounting.tile, "Tokens of a KV tile")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--splits", options->accounting.splits, "KV splits the workspace is counted for")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--bandwidth", options->terabytes, "Memory bandwidth in TB/s: adds the time floor")
      ->check(CLI::PositiveNumber);
  command->add_flag("--json", options->json, "One JSON object instead of a table");
  command->callback([options, exit] {
    options->accounting.bandwidth = options->terabytes * 1e12;
    *exit = explain_case(*options);
  });
}

}  // namespace tamis::cli
