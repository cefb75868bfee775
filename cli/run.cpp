// tamis run: one case from file to result.
#include <fmt/core.h>
#include <unistd.h>

#include <cmath>
#include <memory>

#include "run_files.h"

namespace tamis::cli {
namespace {

// Long work says so, where somebody is watching.
void progress(const char* text) {
  if (isatty(STDERR_FILENO)) fmt::print(stderr, "{} ...\n", text);
}

template <class T>
Error largest_error(const std::vector<float>& got, const std::vector<T>& want) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double g = static_cast<double>(got[i]), w = static_cast<double>(want[i]);
    if (g == w || (std::isnan(g) && std::isnan(w))) continue;  // also equal infinities
    difference = std::isnan(g - w) ? INFINITY : std::fmax(difference, std::fabs(g - w));
    if (std::isfinite(w)) size = std::fmax(size, std::fabs(w));
  }
  return {difference, size > 0 ? difference / size : 0};
}

GradientErrors gradient_errors(const GradientValues& got, const reference::Gradients& want) {
  return {largest_error(got.d_q, want.d_q), largest_error(got.d_k, want.d_k),
          largest_error(got.d_v, want.d_v)};
}

Status check_by_reference(const Problem& p, RunReport* report) {
  progress("float64 reference");
  const Result<reference::Answer> answer = reference::forward(p);
  if (!answer.ok()) return answer.status();
  report->check = largest_error(report->computed.out, answer->output.out);
  if (!report->computed.gradients) return {};
  const Result<reference::Gradients> want = reference::backward(p, answer->sets, answer->output);
  if (!want.ok()) return want.status();
  report->check_gradients = gradient_errors(*report->computed.gradients, *want);
  return {};
}

Result<FullComparison> compare_with_full(const Problem& p, Backend backend, const RunOptions& options,
                                         const Computed& sparse, int64_t q_heads) {
  progress("full attention");
  Problem full = p;
  full.candidates = CandidateView::all();
  RunOptions full_options = options;
  full_options.path = full_options.load = "auto";
  full_options.backward = false;
  const Result<Computed> answer = compute(full, backend, full_options);
  if (!answer.ok()) return answer.status();
  return FullComparison{.error = largest_error(sparse.out, answer->out),
                        .mass = kept_mass({sparse.lse.begin(), sparse.lse.end()},
                                          {answer->lse.begin(), answer->lse.end()}, q_heads),
                        .total_us = answer->time.total};
}

Status account(const Problem& p, const reference::Sets& sets, RunReport* report) {
  const Result<Accounting> tiles = explain(p, sets, {.tile = kReportTile});
  if (!tiles.ok()) return tiles.status();
  const Result<Accounting> blocks = explain(p, sets, {.tile = report->computed.block});
  if (!blocks.ok()) return blocks.status();
  report->account = *tiles;
  report->blocks = blocks->tiles.aligned;
  if (report->choice.backend == Backend::kReference) {
    report->computed.tiles = tiles->tiles.packed;
    report->computed.columns = tiles->tiles.selected_tokens;
  }
  return {};
}

Status run_case(const RunOptions& options, RunReport* report) {
  if (Status s = check_targets(options); !s.ok()) return s;
  const Result<io::Case> found = io::read_case(options.file);
  if (!found.ok()) return found.status();
  const Problem& p = found->problem;
  const Result<Shape> shape = describe(p);
  if (!shape.ok()) return shape.status();
  const Result<Choice> choice = choose_backend(p, options);
  if (!choice.ok()) return choice.status();
  report->choice = *choice;
  report->shape = *shape;
  for (int64_t b = 0; b < shape->requests; ++b) report->kv_tokens += p.cache.kv_len.at<int32_t>({b});

  progress("attention");
  reference::Sets sets;
  Result<Computed> computed = compute(p, choice->backend, options, &sets);
  if (!computed.ok()) return computed.status();
  report->computed = std::move(*computed);
  if (Status s = account(p, sets, report); !s.ok()) return s;
  if (options.check)
    if (Status s = check_by_reference(p, report); !s.ok()) return s;
  if (options.compare_full) {
    Result<FullComparison> full =
        compare_with_full(p, choice->backend, options, report->computed, shape->q_heads);
    if (!full.ok()) return full.status();
    report->full = std::move(*full);
  }
  if (!options.original.empty()) {
    progress("float64 reference, twice");
    Result<AccuracySplit> split = compare_with_original(options.original, p, *shape, report->computed.out);
    if (!split.ok()) return split.status();
    report->split = *split;
  }
  return write_files(options, p, *report, sets);
}

int run(const RunOptions& options) {
  RunReport report;
  if (Status s = run_case(options, &report); !s.ok()) return fail(s);
  if (options.json) {
    fmt::print("{}\n", report_json(report).dump(1));
  } else {
    fmt::print("{}", report_text(report, options));
  }
  return kDone;
}

}  // namespace

void add_run(CLI::App& app, int* exit) {
  auto o = std::make_shared<RunOptions>();
  CLI::App* c = app.add_subcommand("run", "Run a case: attention over its candidates");
  c->add_option("CASE", o->file, "Case file (docs/case-format.md)")->required();
  CLI::Option* out =
      c->add_option("--out", o->out, "Write out, lse (gradients, sets) to this safetensors file");
  c->add_option("--map", o->map, "Write an SVG map of rows x blocks to this file");
  c->add_option("--backend", o->backend, "Who computes; a named backend is never left")
      ->check(CLI::IsMember({"auto", "reference", "cpu", "cuda"}))
      ->capture_default_str();
  c->add_option("--path", o->path, "How K and V are reached")
      ->check(CLI::IsMember({"auto", "direct", "gather", "dense"}))
      ->capture_default_str();
  c->add_option("--fallback", o->fallback, "Whether another path may stand in for one that is missing")
      ->check(CLI::IsMember({"allow", "refuse"}))
      ->capture_default_str();
  c->add_option("--block", o->block, "Tokens of a logical block: 16, 32, 64 or 128")
      ->check(CLI::PositiveNumber);
  c->add_option("--load", o->load,
                "How K and V come in on a device: blocks skips neighbours, tokens gathers (cuda)")
      ->check(CLI::IsMember({"auto", "blocks", "tokens"}))
      ->capture_default_str();
  c->add_option(
       "--engine", o->engine,
       "Which kernel computes on a device: prefill is for many queries, on compute capability 9.0 (cuda)")
      ->check(CLI::IsMember({"auto", "decode", "prefill"}))
      ->capture_default_str();
  c->add_option("--ring", o->ring,
                "How much of K and V is under way in shared memory of a device: short fits any (cuda)")
      ->check(CLI::IsMember({"auto", "full", "short"}))
      ->capture_default_str();
  c->add_option("--splits", o->splits, "KV splits of each row")->check(CLI::Range(1, 1 << 20));
  c->add_option("--threads", o->threads, "CPU threads (default: all; the reference uses one)")
      ->check(CLI::Range(1, 1024));
  c->add_option("--isa", o->isa,
                "CPU instruction set: avx512bf16, avx512, avx2 or plain (default: the best here)");
  c->add_option("--repeat", o->repeat, "Compute this many times and report median times (cpu, cuda)")
      ->check(CLI::Range(1, 100000));
  c->add_flag("--backward", o->backward, "Also compute gradients of the case's d_out and d_lse");
  c->add_flag("--dump-index", o->dump_index, "Also write the sets: set_indptr, set_tokens, set_slots")
      ->needs(out);
  c->add_flag("--check", o->check, "Compare with the float64 reference");
  c->add_flag("--compare-full", o->compare_full, "Compare with full attention: error and kept softmax mass");
  c->add_option("--original", o->original,
                "The case before quantization: tell kernel and format error apart");
  c->add_flag("--json", o->json, "One JSON object instead of a table");
  c->callback([o, exit] { *exit = run(*o); });
}

}  // namespace tamis::cli
