// A typical decode step of a model, put to each backend. Views without memory: planning reads no array.
#include "kernels_model.h"

#include <fmt/core.h>

#include <algorithm>

#include "cuda_plan.h"
#include "format.h"
#include "kernels/registry.h"

namespace tamis::cli {
namespace {

constexpr int64_t kRequests = 16, kPage = 16, kSelected = 2048;  // selected: tokens of a list

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t selected_of(const ModelShape& m) { return std::min(kSelected, m.context); }

// One query a request, a fixed number of entries a list.
Problem decode_problem(const ModelShape& m, int64_t unit, int64_t index_heads) {
  const auto shaped = [](DType dtype, std::initializer_list<int64_t> shape) {
    return dense_view(nullptr, dtype, shape);
  };
  const int64_t pages = ceil_div(m.context, kPage);
  Problem p;
  p.query = {.q = shaped(m.dtype, {kRequests, m.q_heads, m.head_dim}),
             .cu_q = shaped(DType::kI32, {kRequests + 1})};
  p.cache = {.k = shaped(m.dtype, {kRequests * pages, kPage, m.kv_heads, m.head_dim}),
             .v = shaped(m.dtype, {kRequests * pages, kPage, m.kv_heads, m.head_dim}),
             .kv_len = shaped(DType::kI32, {kRequests}),
             .page_table = shaped(DType::kI32, {kRequests, pages})};
  p.candidates = {.form = CandidateForm::kFixedWidth,
                  .indices = shaped(DType::kI32, {kRequests * index_heads, ceil_div(selected_of(m), unit)}),
                  .unit = unit,
                  .index_heads = index_heads};
  p.mask.window = m.window;
  return p;
}

void plan_with_cuda(const Problem& p, ModelPlan* out) {
  const Result<CudaPlan> plan = plan_cuda(p, {});
  if (!plan.ok()) {
    out->refused = plan.status();
    return;
  }
  const cuda::StepPlan& step = plan->step;
  const auto devices = cuda_devices();
  if (devices.ok() && !devices->empty()) out->refused = check_device(step.kernel, devices->front());
  out->kernel = step.kernel;
  out->path = path_name(step.plan.path);
  out->load = cuda::load_name(step.load);
  out->reason = plan->reason;
  out->block = step.plan.block;
  out->columns = step.columns;
  out->column_tiles = step.column_tiles;
  out->workspace_bytes = step.bytes.control + step.bytes.index + step.bytes.scratch;
}

// Blocks that the joined lists of a KV head can bring, at most.
int64_t most_blocks(const Problem& p, const Shape& s, int64_t block) {
  const CandidateView& c = p.candidates;
  const int64_t lists = std::max<int64_t>(1, s.index_heads / s.kv_heads);
  const int64_t listed = lists * c.indices.shape[1] * ceil_div(c.unit, block);
  const int64_t window = p.mask.window > 0 ? ceil_div(p.mask.window, block) + 1 : 0;
  return std::min(listed + window, ceil_div(s.max_pages * s.page_size, block));
}

void plan_with_cpu(const Problem& p, ModelPlan* out) {
  const Result<Shape> s = describe(p);
  if (!s.ok()) {
    out->refused = s.status();
    return;
  }
  const std::string kernel = "cpu_" + cpu_isas().front();
  for (const Kernel& k : kernels())
    for (const auto& [name, value, range] : {std::tuple{"head_dim", s->head_dim, &k.limits.head_dims},
                                             {"v_head_dim", s->v_head_dim, &k.limits.v_head_dims}})
      if (k.name == kernel && !range->holds(value)) {
        out->refused = {Code::kUnsupported,
                        fmt::format("{}: {}; nearest: {} to {}", name, value, range->min, range->max)};
        return;
      }
  out->block = default_block(*s, p.candidates.unit);
  const int64_t bundles = s->requests * (s->index_heads == 1 ? 1 : s->kv_heads);
  const int64_t row_entries = most_blocks(p, *s, out->block);
  const Capacities capacities{.requests = s->requests,
                              .queries = s->total_q,
                              .rows = s->requests * s->index_heads,
                              .entries = bundles * row_entries,
                              .row_entries = row_entries,
                              .group_rows = s->group};
  const Result<Plan> plan = make_plan(p, capacities, static_cast<int32_t>(out->block));
  if (!plan.ok()) {
    out->refused = plan.status();
    return;
  }
  out->kernel = kernel;
  out->path = path_name(plan->path);
  out->reason = plan->reason;
  out->workspace_bytes = plan->workspace.bound;
}

ModelPlan plan_on(Backend backend, const ModelShape& m, int64_t unit, int64_t index_heads) {
  ModelPlan plan{.unit = unit, .index_heads = index_heads, .backend = backend};
  const Problem p = decode_problem(m, unit, index_heads);
  if (backend == Backend::kCuda) plan_with_cuda(p, &plan);
  if (backend == Backend::kCpu) plan_with_cpu(p, &plan);
  if (backend == Backend::kReference) {
    plan.kernel = "reference";
    plan.path = path_name(Path::kDirect);
  }
  return plan;
}

// What the device plans were made for.
std::string planned_for() {
  const auto devices = cuda_devices();
  if (!devices.ok() || devices->empty()) return "sm_90, assumed: " + devices.status().message();
  const CudaDevice& d = devices->front();
  return fmt::format("{} (sm_{}{})", d.name, d.major, d.minor);
}

Json or_null(int64_t value) { return value > 0 ? Json(value) : Json(nullptr); }
Json or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

Json to_json(const ModelShape& m, const std::vector<ModelPlan>& plans) {
  Json list = Json::array();
  for (const ModelPlan& p : plans)
    list.push_back({{"unit", p.unit},
                    {"index_heads", p.index_heads},
                    {"backend", backend_name(p.backend)},
                    {"kernel", or_null(p.kernel)},
                    {"path", or_null(p.path)},
                    {"block", or_null(p.block)},
                    {"load", or_null(p.load)},
                    {"columns", or_null(p.columns)},
                    {"column_tiles", or_null(p.column_tiles)},
                    {"workspace_bytes", p.workspace_bytes},
                    {"reason", p.reason},
                    {"refused", p.refused.ok() ? Json(nullptr) : error_object(p.refused)}});
  return {{"model",
           {{"q_heads", m.q_heads},
            {"kv_heads", m.kv_heads},
            {"head_dim", m.head_dim},
            {"dtype", dtype_name(m.dtype)},
            {"window", m.window},
            {"context", m.context}}},
          {"problem", {{"requests", kRequests}, {"page_size", kPage}, {"selected_tokens", selected_of(m)}}},
          {"note", or_null(m.note)},
          {"planned_for", planned_for()},
          {"plans", list}};
}

std::string number_text(int64_t value) { return value > 0 ? fmt::format("{}", value) : "-"; }
std::string word_text(const std::string& text) { return text.empty() ? "-" : text; }

std::string to_text(const std::string& path, const ModelShape& m, const std::vector<ModelPlan>& plans) {
  std::string out = fmt::format("{}\n", path);
  out += line("model", fmt::format("{} query and {} KV heads, D {}, {}, {} tokens{}", m.q_heads, m.kv_heads,
                                   m.head_dim, dtype_name(m.dtype), m.context,
                                   m.window > 0 ? fmt::format(", window {}", m.window) : ""));
  if (!m.note.empty()) out += line("note", m.note);
  out += line("step", fmt::format("{} requests, one query each, pages of {}, {} tokens a list", kRequests,
                                  kPage, selected_of(m)));
  out += line("cuda", planned_for());
  out += fmt::format("{:<6}{:<12}{:<11}{:<18}{:<8}{:<7}{:<8}{:<9}{:<7}{:<12}{}\n", "unit", "a list per",
                     "backend", "kernel", "path", "block", "load", "columns", "tiles", "workspace", "note");
  for (const ModelPlan& p : plans) {
    const std::string owner = p.index_heads == m.kv_heads ? "KV head" : "query head";
    const std::string note = p.refused.ok() ? p.reason : "refused: " + p.refused.message();
    out += fmt::format("{:<6}{:<12}{:<11}{:<18}{:<8}{:<7}{:<8}{:<9}{:<7}{:<12}{}\n", p.unit, owner,
                       backend_name(p.backend), word_text(p.kernel), word_text(p.path), number_text(p.block),
                       word_text(p.load), number_text(p.columns), number_text(p.column_tiles),
                       p.kernel.empty() ? "-" : bytes_text(p.workspace_bytes), note);
  }
  return out;
}

}  // namespace

std::vector<ModelPlan> plan_model(const ModelShape& m) {
  std::vector<int64_t> owners{m.kv_heads};
  if (m.q_heads != m.kv_heads) owners.push_back(m.q_heads);
  std::vector<ModelPlan> plans;
  for (const int64_t unit : {kPage, int64_t{1}})
    for (const int64_t index_heads : owners)
      for (const Backend backend : {Backend::kCuda, Backend::kCpu, Backend::kReference})
        plans.push_back(plan_on(backend, m, unit, index_heads));
  return plans;
}

int print_model(const std::string& path, bool json) {
  const Result<ModelShape> model = read_model(path);
  if (!model.ok()) return fail(model.status());
  const std::vector<ModelPlan> plans = plan_model(*model);
  if (json) {
    fmt::print("{}\n", to_json(*model, plans).dump(1));
  } else {
    fmt::print("{}", to_text(path, *model, plans));
  }
  return kDone;
}

}  // namespace tamis::cli
