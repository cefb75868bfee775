// tamis bench: readings of the benches, as a table and as a record (docs/benchmarks.md).
#include <fmt/core.h>
#include <unistd.h>

#include <memory>

#include "bench/cases.h"
#include "cli.h"
#include "format.h"

namespace tamis::cli {
namespace {

struct Options {
  bench::BenchOptions bench;
  std::string out;
  bool list = false, json = false;
};

int list_cases() {
  for (const bench::Case& c : bench::cases()) fmt::print("{:<46} {}\n", c.name, c.what);
  return kDone;
}

std::string optional_text(const Json& value, double scale, int digits, const char* unit) {
  return value.is_number() ? fmt::format("{:.{}f}{}", value.get<double>() * scale, digits, unit) : "-";
}

std::string error_text(const Json& value) {
  return value.is_number() ? fmt::format("{:.1e}", value.get<double>()) : "-";
}

void print_table(const Json& record) {
  fmt::print("{:<52}{:>12}{:>12}{:>8}{:>10}{:>9}{:>10}\n", "reading", "median", "P95", "GB/s", "GFLOP/s",
             "ceiling", "error");
  bool fewer = false;
  for (const Json& r : record["readings"]) {
    fewer = fewer || !r["note"].get<std::string>().empty();
    fmt::print("{:<52}{:>12}{:>12}{:>8}{:>10}{:>9}{:>10}\n", r["name"].get<std::string>(),
               time_text(r["median_us"].get<double>()), time_text(r["p95_us"].get<double>()),
               optional_text(r["tb_s"], 1000, 1, ""), optional_text(r["tflop_s"], 1000, 0, ""),
               optional_text(r["fraction_of_ceiling"], 100, 1, " %"), error_text(r["max_error"]));
  }
  const Json& c = record["ceilings"];
  fmt::print("ceilings: copy {} GB/s, read {} GB/s, f32 product {} GFLOP/s\n",
             optional_text(c["copy_tb_s"], 1000, 1, ""), optional_text(c["read_tb_s"], 1000, 1, ""),
             optional_text(c["gemm_f32_tflop_s"], 1000, 0, ""));
  for (const Json& s : record["skipped"])
    fmt::print("skipped: {}: {}\n", s["name"].get<std::string>(), s["why"].get<std::string>());
  if (fewer) fmt::print("some readings took fewer samples than the protocol asks for; their notes say why\n");
}

int run_named(const Options& options) {
  if (options.list) return list_cases();
  std::function<void(const std::string&)> progress;
  if (isatty(STDERR_FILENO)) progress = [](const std::string& text) { fmt::print(stderr, "{} ...\n", text); };
  const Result<bench::Record> record = bench::run_benches(options.bench, progress);
  if (!record.ok()) return fail(record.status());
  const Json json = bench::to_json(*record);
  if (!options.out.empty())
    if (const Status s = bench::write_record(options.out, json); !s.ok()) return fail(s);
  if (options.json)
    fmt::print("{}\n", json.dump(1));
  else
    print_table(json);
  return kDone;
}

}  // namespace

void add_bench(CLI::App& app, int* exit) {
  auto o = std::make_shared<Options>();
  CLI::App* c = app.add_subcommand("bench", "Measure: readings by name, beside the machine's ceilings");
  CLI::Option* names =
      c->add_option("NAME", o->bench.patterns, "Benches, as shell globs: 'cpu.decode64k.*', 'cuda.*'");
  CLI::Option* list = c->add_flag("--list", o->list, "List the benches and measure nothing");
  c->add_option("--out", o->out, "Write the record to this JSON file");
  c->add_option("--samples", o->bench.samples, "Timed events of each reading (1000; fewer of long ones)")
      ->check(CLI::PositiveNumber);
  c->add_option("--threads", o->bench.threads, "CPU threads (all of the machine)")
      ->check(CLI::PositiveNumber);
  c->add_option("--isa", o->bench.isa, "Instruction set of the kernels; ceilings always use the best");
  c->add_option("--trace", o->bench.trace, "File of recorded page selections, for *.recorded.*");
  c->add_flag("--json", o->json, "Print the record instead of a table");
  c->callback([o, names, list, exit] {
    if (names->empty() && list->empty()) throw CLI::RequiredError("NAME or --list");
    *exit = run_named(*o);
  });
}

}  // namespace tamis::cli
