// tamis compare: what changed between two records of one machine.
#include "bench/compare.h"

#include <fmt/core.h>

#include <algorithm>
#include <memory>

#include "cli.h"
#include "format.h"

namespace tamis::cli {
namespace {

struct Options {
  std::string before, after;
  double threshold = 0.05;
  bool json = false;
};

std::string ratio_text(double ratio) { return ratio > 0 ? fmt::format("{:.3f}", ratio) : "-"; }
std::string us_text(double us) { return us > 0 ? time_text(us) : "-"; }

// A change is the point of the table; the rest is there to be looked up.
std::string mark(bench::Verdict verdict) {
  return verdict == bench::Verdict::kSame ? "" : bench::verdict_name(verdict);
}

Json to_json(const bench::Change& c) {
  return {{"name", c.name},
          {"peer", c.peer},
          {"verdict", bench::verdict_name(c.verdict)},
          {"old_us", c.old_us},
          {"new_us", c.new_us},
          {"ratio", c.ratio},
          {"scaled_ratio", c.scaled ? Json(c.scaled_ratio) : Json(nullptr)}};
}

void print_table(const std::vector<bench::Change>& changes) {
  fmt::print("{:<60}{:>12}{:>12}{:>9}{:>9}  {}\n", "reading", "old", "new", "ratio", "scaled", "");
  for (const bench::Change& c : changes)
    fmt::print("{:<60}{:>12}{:>12}{:>9}{:>9}  {}\n", c.peer.empty() ? c.name : c.name + " [" + c.peer + "]",
               us_text(c.old_us), us_text(c.new_us), ratio_text(c.ratio),
               c.scaled ? ratio_text(c.scaled_ratio) : "-", mark(c.verdict));
  const auto count = [&](bench::Verdict v) {
    return std::count_if(changes.begin(), changes.end(),
                         [v](const bench::Change& c) { return c.verdict == v; });
  };
  fmt::print(
      "{} slower, {} faster, {} the same; ratio: new over old; scaled: beside the ceiling of each run\n",
      count(bench::Verdict::kSlower), count(bench::Verdict::kFaster), count(bench::Verdict::kSame));
}

int compare_files(const Options& options) {
  const Result<Json> before = bench::read_record(options.before), after = bench::read_record(options.after);
  for (const Result<Json>* read : {&before, &after})
    if (!read->ok()) return fail(read->status());
  const auto changes = bench::compare(*before, *after, options.threshold);
  if (!changes.ok()) return fail(changes.status());
  if (options.json) {
    Json list = Json::array();
    for (const bench::Change& c : *changes) list.push_back(to_json(c));
    fmt::print("{}\n", Json{{"threshold", options.threshold}, {"changes", list}}.dump(1));
  } else {
    print_table(*changes);
  }
  return kDone;
}

}  // namespace

void add_compare(CLI::App& app, int* exit) {
  auto o = std::make_shared<Options>();
  CLI::App* c = app.add_subcommand("compare", "Compare two bench records of one machine");
  c->add_option("OLD", o->before, "The earlier record")->required();
  c->add_option("NEW", o->after, "The later record")->required();
  c->add_option("--threshold", o->threshold, "Relative change that counts")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  c->add_flag("--json", o->json, "One JSON object instead of a table");
  c->callback([o, exit] { *exit = compare_files(*o); });
}

}  // namespace tamis::cli
