// tamis tiers: widths to keep ready for the row lengths that files record (docs/tiers.md).
#include "tamis/tiers.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <memory>

#include "cli.h"
#include "format.h"
#include "histogram.h"

namespace tamis::cli {
namespace {

struct Options {
  std::vector<std::string> files;
  std::string of = "entries";
  TierCost cost;
  TierOptions tiers;
  std::vector<int64_t> edges;  // given ones; empty: chosen
  bool json = false;
};

const std::map<std::string, LengthOf> kKinds{
    {"entries", LengthOf::kEntries}, {"tokens", LengthOf::kTokens}, {"pages", LengthOf::kPages}};

Json to_json(const TierUse& t) {
  return {{"edge", t.edge},
          {"rows", t.rows},
          {"used", t.used},
          {"allocated", t.allocated},
          {"utilization", t.utilization}};
}

Json to_json(const TierReport& r, const Options& o) {
  Json edges = Json::array(), tiers = Json::array();
  for (const TierUse& t : r.tiers) {
    edges.push_back(t.edge);
    tiers.push_back(to_json(t));
  }
  Json fixed = to_json(r.fixed);
  fixed["expected_cost"] = r.fixed_expected_cost;
  fixed["total_cost"] = r.fixed_total_cost;
  return {{"of", o.of},
          {"rows", r.rows},
          {"edges", edges},
          {"given", !o.edges.empty()},
          {"tiers", tiers},
          {"expected_cost", r.expected_cost},
          {"total_cost", r.total_cost},
          {"utilization", r.utilization},
          {"fixed", fixed}};
}

std::string cost_text(double expected, double total, double utilization) {
  return fmt::format("{:.4f} a row, {:.4f} with the price; {} used", expected, total,
                     percent_text(utilization));
}

std::string to_text(const TierReport& r, const Options& o) {
  std::string edges;
  for (const TierUse& t : r.tiers) edges += fmt::format("{}{}", edges.empty() ? "" : ",", t.edge);
  std::string out = line("rows", fmt::format("{}, lengths in {}", r.rows, o.of));
  out += line("edges", edges.empty() ? "none" : edges + (o.edges.empty() ? "" : " (given)"));
  for (const TierUse& t : r.tiers)
    out += line("", fmt::format("{:>8}: {} rows, {} of {} {} used, {}", t.edge, t.rows, t.used, t.allocated,
                                o.of, percent_text(t.utilization)));
  out += line("tiers", cost_text(r.expected_cost, r.total_cost, r.utilization));
  out +=
      line("fixed", fmt::format("{} for all: {}", r.fixed.edge,
                                cost_text(r.fixed_expected_cost, r.fixed_total_cost, r.fixed.utilization)));
  return out;
}

int find_tiers(const Options& o) {
  std::vector<LengthWeight> lengths;
  for (const std::string& file : o.files)
    if (const Status status = add_lengths(file, kKinds.at(o.of), &lengths); !status.ok()) return fail(status);
  std::vector<int64_t> edges = o.edges;
  if (edges.empty()) {
    Result<std::vector<int64_t>> chosen = choose_tiers(lengths, o.cost, o.tiers);
    if (!chosen.ok()) return fail(chosen.status());
    edges = std::move(*chosen);
  }
  const Result<TierReport> report = evaluate_tiers(lengths, edges, o.cost);
  if (!report.ok()) return fail(report.status());
  if (o.json)
    fmt::print("{}\n", to_json(*report, o).dump(1));
  else
    fmt::print("{}", to_text(*report, o));
  return kDone;
}

}  // namespace

void add_tiers(CLI::App& app, int* exit) {
  auto o = std::make_shared<Options>();
  CLI::App* c =
      app.add_subcommand("tiers", "Choose the widths that serve recorded row lengths at least cost");
  c->add_option("FILE", o->files,
                "Case files, or histograms: lines `length count`, or a JSON object {\"length\": count}")
      ->required();
  c->add_option("--of", o->of, "What the rows of a case are measured in")
      ->check(CLI::IsMember({"entries", "tokens", "pages"}))
      ->capture_default_str();
  c->add_option("--price", o->cost.price, "Cost of a tier, in the unit of the cost of a row")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  c->add_option("--row-cost", o->cost.per_row, "Cost of a row, whatever its tier")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  c->add_option("--entry-cost", o->cost.per_entry, "Cost of each entry of a row's tier, used or padded")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  CLI::Option* step = c->add_option("--multiple-of", o->tiers.multiple_of, "Edges are multiples of this")
                          ->check(CLI::PositiveNumber)
                          ->capture_default_str();
  CLI::Option* most = c->add_option("--most", o->tiers.most, "Most tiers (default: as many as pay)")
                          ->check(CLI::PositiveNumber);
  c->add_option("--edges", o->edges, "Evaluate these edges, ascending, instead of choosing: a,b,c")
      ->delimiter(',')
      ->excludes(step)
      ->excludes(most);
  c->add_flag("--json", o->json, "One JSON object instead of a table");
  c->callback([o, exit] { *exit = find_tiers(*o); });
}

}  // namespace tamis::cli
