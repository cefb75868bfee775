// How each backend computes a problem for `tamis run`.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "run.h"

namespace tamis::cli {
namespace {

using Clock = std::chrono::steady_clock;

double microseconds(Clock::duration d) { return std::chrono::duration<double, std::micro>(d).count(); }

Status unsupported(std::string message) { return {Code::kUnsupported, std::move(message)}; }

// Options that are another backend's. With --fallback allow they are left aside, and the reason says so.
Status foreign_options(const RunOptions& options, Backend backend, std::string* reason) {
  if (backend == Backend::kCuda) return {};
  const char* option = nullptr;
  if (options.load != "auto") {
    option = "load";
    *reason = fmt::format("{} has one way to load, not by {}", backend_name(backend), options.load);
  }
  if (options.ring != "auto") {
    if (option == nullptr) option = "ring";
    *reason += fmt::format("{}{} has no rings, {} or other", reason->empty() ? "" : "; ",
                           backend_name(backend), options.ring);
  }
  if (options.engine != "auto") {
    if (option == nullptr) option = "engine";
    *reason += fmt::format("{}{} has one kernel for all sizes, not engine {}", reason->empty() ? "" : "; ",
                           backend_name(backend), options.engine);
  }
  if (option == nullptr || options.fallback != "refuse") return {};
  return unsupported(fmt::format("{}: {}", option, *reason));
}

// The reference has one way of computing. With --fallback allow it stands in for what was asked, and the
// reason says so.
Status reference_reason(const RunOptions& options, std::string* reason) {
  std::string missing;
  const auto miss = [&](const std::string& what) { missing += (missing.empty() ? "" : ", ") + what; };
  if (options.path == "dense") miss("path dense");
  if (options.splits > 1) miss(fmt::format("{} splits", options.splits));
  if (!options.isa.empty()) miss("instruction set " + options.isa);
  if (options.threads > 1) miss(fmt::format("{} threads", options.threads));
  if (options.repeat > 1) miss(fmt::format("{} repeats", options.repeat));
  if (missing.empty()) return {};
  *reason = fmt::format("the reference computes each row once, whole and directly, not with {}", missing);
  return options.fallback == "refuse" ? unsupported("fallback: " + *reason) : Status();
}

// What is wrong whoever computes.
Status check_common(const RunOptions& options, const Problem& problem, const Shape& shape) {
  if (options.backward && !problem.gradients.d_out.present())
    return {Code::kInvalidArgument, "d_out: tensor is missing, --backward needs it"};
  // As the reference does: a small file must not ask for all memory.
  constexpr int64_t most_outputs = int64_t{1} << 30;
  if (shape.total_q * shape.q_heads > most_outputs / shape.v_head_dim)
    return {Code::kCapacityExceeded,
            fmt::format("q: more than {} outputs", most_outputs),
            {.limit = most_outputs}};
  if (options.path == "gather") return unsupported("path: gather is not built; nearest: direct, dense");
  if (const int32_t b = options.block; b != 0 && b != 16 && b != 32 && b != 64 && b != 128)
    return unsupported(fmt::format("block: {} tokens; nearest: 16, 32, 64, 128", b));
  const std::vector<std::string> known = {"", "avx512bf16", "avx512", "avx2", "plain"};
  if (std::find(known.begin(), known.end(), options.isa) == known.end())
    return unsupported(fmt::format("isa: '{}' is not one of avx512bf16, avx512, avx2, plain", options.isa));
  return {};
}

std::vector<float> floats(const std::vector<double>& numbers) { return {numbers.begin(), numbers.end()}; }

Result<Computed> compute_reference(const Problem& p, const RunOptions& options) {
  Computed c{.path = "direct", .block = options.block ? options.block : kReportTile};
  if (Status s = reference_reason(options, &c.reason); !s.ok()) return s;
  const auto start = Clock::now();
  const Result<reference::Sets> sets = reference::build_sets(p);
  if (!sets.ok()) return sets.status();
  const auto normalized = Clock::now();
  const Result<reference::Output> output = reference::attend(p, *sets);
  if (!output.ok()) return output.status();
  const auto attended = Clock::now();
  if (options.backward) {
    const Result<reference::Gradients> g = reference::backward(p, *sets, *output);
    if (!g.ok()) return g.status();
    c.gradients = {floats(g->d_q), floats(g->d_k), floats(g->d_v)};
  }
  const auto end = Clock::now();
  c.out = floats(output->out);
  c.lse = floats(output->lse);
  c.candidates = sets->counts;
  c.empty_rows = sets->empty_rows;
  c.time = {.normalize = microseconds(normalized - start),
            .attention = microseconds(attended - normalized),
            .backward = microseconds(end - attended),
            .total = microseconds(end - start)};
  return c;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// Arrays for the gradients of a problem.
GradientValues gradients_for(const Problem& p, const Shape& s) {
  const auto size = [](const TensorView& t, int64_t dim) { return t.elements() / t.shape[t.rank - 1] * dim; };
  GradientValues g;
  g.d_q.resize(p.query.q.elements());
  g.d_k.resize(size(p.cache.k, s.head_dim));
  g.d_v.resize(size(p.cache.v, s.v_head_dim));
  return g;
}

// From the index set and the output of a forward.
Status backward_cpu(const Problem& p, const Shape& s, const IndexSet& index, Context& context, Computed* c,
                    BackwardReport* report) {
  const auto like = [](const TensorView& t, int64_t dim, std::vector<float>& numbers) {
    return mutable_like(t, dim, numbers.data(), DType::kF32);
  };
  const SavedForward saved{
      .lse = dense_view(c->lse.data(), DType::kF32, {s.total_q, s.q_heads}),
      .out = dense_view(c->out.data(), DType::kF32, {s.total_q, s.q_heads, s.v_head_dim})};
  const GradientView gradients{.d_q = like(p.query.q, s.head_dim, c->gradients->d_q),
                               .d_k = like(p.cache.k, s.head_dim, c->gradients->d_k),
                               .d_v = like(p.cache.v, s.v_head_dim, c->gradients->d_v)};
  return backward(p, index, saved, {}, gradients, context, report);
}

Result<Computed> compute_cpu(const Problem& p, const Shape& s, const RunOptions& options) {
  Context context(options.threads);
  if (!options.isa.empty())
    if (Status status = context.use_isa(options.isa); !status.ok()) return status;
  Computed c;
  c.out.resize(s.total_q * s.q_heads * s.v_head_dim);
  c.lse.resize(s.total_q * s.q_heads);
  const OutView out{.out = mutable_view(c.out.data(), DType::kF32, {s.total_q, s.q_heads, s.v_head_dim}),
                    .lse = mutable_view(c.lse.data(), DType::kF32, {s.total_q, s.q_heads})};
  const ForwardOptions forward_options{
      .normalize = {.block = options.block},
      .plan = {.path = path_of(options.path),
               .fallback = options.fallback == "refuse" ? Fallback::kRefuse : Fallback::kAllow,
               .splits = options.splits}};
  ForwardReport r;
  std::vector<Times> times;
  if (options.backward) c.gradients = gradients_for(p, s);
  for (int i = 0; i < options.repeat; ++i) {
    IndexSet index;
    BackwardReport b;
    if (Status status = forward(p, forward_options, out, context, &r, &index); !status.ok()) return status;
    if (options.backward)
      if (Status status = backward_cpu(p, s, index, context, &c, &b); !status.ok()) return status;
    times.push_back({.normalize = r.normalize_us,
                     .plan = r.plan_us,
                     .attention = r.counters.attention_us,
                     .merge = r.counters.merge_us,
                     .clear = b.counters.clear_us,
                     .backward = b.total_us,
                     .total = r.total_us + b.total_us});
  }
  c.candidates = r.index.counts;
  c.empty_rows = count_empty_rows(c.lse, s);
  c.stale_rows = r.counters.stale_rows;
  c.path = path_name(r.path);
  c.reason = r.reason;
  c.block = r.block;
  c.tiles = r.counters.tiles;
  c.columns = r.counters.tokens_loaded;
  c.splits = r.schedule.most_parts;
  c.workspace_bytes = r.schedule.workspace_bytes;
  c.tasks = r.schedule.tasks;
  c.task_blocks = r.schedule.task_blocks;
  c.time = medians(times);
  return c;
}

// The index a run makes is gone when it ends; it is made once more, from the same arguments.
Result<reference::Sets> sets_of(const Problem& problem, Backend backend, int32_t block) {
  if (backend == Backend::kReference) return reference::build_sets(problem);
  const Result<IndexSet> index = normalize(problem, {.block = block});
  if (!index.ok()) return index.status();
  return expand_all(problem, index->view(), index->stats().counts);
}

}  // namespace

Path path_of(const std::string& name) {
  return name == "direct" ? Path::kDirect : name == "dense" ? Path::kDense : Path::kAuto;
}

Times medians(const std::vector<Times>& all) {
  Times result;
  for (double Times::*stage : {&Times::normalize, &Times::plan, &Times::attention, &Times::merge,
                               &Times::clear, &Times::backward, &Times::total}) {
    std::vector<double> values;
    for (const Times& t : all) values.push_back(t.*stage);
    result.*stage = median(std::move(values));
  }
  return result;
}

int64_t count_empty_rows(const std::vector<float>& lse, const Shape& s) {
  int64_t empty = 0;
  for (int64_t i = 0; i < s.total_q; ++i)
    for (int64_t g = 0; g < s.index_heads; ++g)
      empty += lse[i * s.q_heads + g * (s.q_heads / s.index_heads)] == -INFINITY;
  return empty;
}

reference::Sets expand_all(const Problem& problem, const IndexView& index, const CandidateCounts& counts) {
  reference::Sets sets;
  sets.indptr = {0};
  sets.counts = counts;
  const int64_t queries = problem.query.q.shape[0];
  for (int64_t i = 0; i < queries; ++i)
    for (int64_t g = 0; g < problem.candidates.index_heads; ++g) {
      const std::vector<int32_t> set = expand_set(problem, index, i, g);
      sets.empty_rows += set.empty();
      sets.tokens.insert(sets.tokens.end(), set.begin(), set.end());
      sets.indptr.push_back(static_cast<int64_t>(sets.tokens.size()));
    }
  return sets;
}

Result<Choice> choose_backend(const Problem& problem, const RunOptions& options) {
  if (options.backend == "reference") return Choice{Backend::kReference, ""};
  if (options.backend == "cpu") return Choice{Backend::kCpu, ""};
  if (options.backend == "cuda") {
    const auto devices = cuda_devices();
    return devices.ok() ? Result<Choice>(Choice{Backend::kCuda, ""}) : devices.status();
  }
  std::string reason;
  if (const Status s = cuda_refusal(problem, options, &reason); !s.ok())
    return Choice{Backend::kCpu, "auto: " + s.message()};
  return Choice{Backend::kCuda, "auto: " + reason};
}

Result<Computed> compute(const Problem& problem, Backend backend, const RunOptions& options,
                         reference::Sets* sets) {
  const Result<Shape> shape = describe(problem);
  if (!shape.ok()) return shape.status();
  if (shape->index_only)
    return Status(Code::kInvalidArgument, "q: tensor is missing, an index-only case can only be explained");
  if (Status s = check_common(options, problem, *shape); !s.ok()) return s;
  if (backend == Backend::kCuda) return compute_cuda(problem, *shape, options, sets);
  std::string left_aside;
  if (Status s = foreign_options(options, backend, &left_aside); !s.ok()) return s;
  Result<Computed> computed =
      backend == Backend::kCpu ? compute_cpu(problem, *shape, options) : compute_reference(problem, options);
  if (!computed.ok()) return computed;
  if (!left_aside.empty()) computed->reason += (computed->reason.empty() ? "" : "; ") + left_aside;
  if (sets != nullptr) {
    Result<reference::Sets> found = sets_of(problem, backend, options.block);
    if (!found.ok()) return found.status();
    *sets = std::move(*found);
  }
  return computed;
}

}  // namespace tamis::cli
