// plan_step(): from extents and options to a StepPlan. Reads no array and asks no device.
#include <algorithm>
#include <limits>

#include "attention/step_support.h"
#include "core/checks.h"
#include "core/saturating.h"
#include "plan/policy.h"

namespace tamis::cuda {
namespace {

// Lists that fill less of their blocks than this are gathered token by token under `auto`.
constexpr double kDenseBlocks = 0.25;

void add_reason(std::string* all, const std::string& reason) {
  if (!reason.empty()) *all += (all->empty() ? "" : "; ") + reason;
}

// How the rows of a problem fall into bundles: the lists of a KV head's query heads go together.
struct Cut {
  int64_t rows, bundles;
  int32_t lists, bundles_a_block, kv_heads_served;
};

Cut cut_of(const Problem& p, const Shape& s) {
  const CandidateView& c = p.candidates;
  const bool one = s.index_heads == 1;
  Cut cut{.rows = 0,
          .bundles = 0,
          .lists = static_cast<int32_t>(one ? 1 : s.index_heads / s.kv_heads),
          .bundles_a_block = static_cast<int32_t>(one ? 1 : s.kv_heads),
          .kv_heads_served = static_cast<int32_t>(one ? s.kv_heads : 1)};
  switch (c.form) {
    case CandidateForm::kCsr:
      cut.rows = std::max<int64_t>(0, c.indptr.shape[0] - 1);
      break;
    case CandidateForm::kFixedWidth:
      cut.rows = c.indices.shape[0];
      break;
    case CandidateForm::kNone:
    case CandidateForm::kAll:  // at most one short block a request
      cut.rows = times(std::min(s.total_q, plus(s.total_q / c.query_block, s.requests)), s.index_heads);
      break;
  }
  // One at least: normalize's first bundle judges the batch and marks the index set, also of an empty step.
  cut.bundles = std::max<int64_t>(1, cut.rows / s.index_heads * cut.bundles_a_block);
  return cut;
}

Result<int32_t> block_of(const Problem& p, const Shape& s, const StepOptions& o, std::string* reason) {
  if (o.block == 0) return default_block(s, p.candidates.unit);
  if (o.block == 16 || o.block == 32 || o.block == 64) return o.block;
  if (o.block != 128) return Status(Code::kUnsupported, text("block: ", o.block, "; nearest: 16, 32, 64"));
  if (o.plan.fallback == Fallback::kRefuse)
    return Status(Code::kUnsupported, "block: 128 tokens on the device; nearest: 16, 32, 64", {.value = 128});
  add_reason(reason, "blocks of 64: the device has none of 128");
  return 64;
}

int64_t longest_of(const Shape& s, const StepOptions& o) {
  const int64_t held = s.page_size > 0 ? times(s.max_pages, s.page_size) : s.kv_rows;
  const int64_t most = std::min<int64_t>(held, std::numeric_limits<int32_t>::max() - 256);
  return o.max_kv_len > 0 ? std::min(o.max_kv_len, most) : most;
}

// Blocks that candidates and mask can bring into bundles, however they lie.
struct Most {
  int64_t of_bundle, of_all;
  StepPlaces places;
};

Most most_entries(const Problem& p, const Shape& s, const Cut& cut, const StepOptions& o, int32_t block,
                  int64_t longest, bool all_blocks) {
  const CandidateView& c = p.candidates;
  const int64_t all = ceil_div(longest, block);
  if (c.form == CandidateForm::kAll) return {all, times(cut.bundles, all), {}};
  const int64_t an_entry = c.unit <= block && block % c.unit == 0 ? 1 : plus(c.unit / block, 2);
  const int64_t queries = std::min(c.query_block, s.total_q);
  int64_t windows = 0;
  if (p.mask.window > 0)  // positions of one's own may lie anywhere, the others next to each other
    windows = p.query.q_pos.present() ? times(queries, p.mask.window / block + 2)
                                      : plus(p.mask.window, queries) / block + 2;
  // No request has more blocks than the longest.
  const StepPlaces places{.an_entry = std::min(an_entry, all),
                          .extra = std::min(all, plus(windows, ceil_div(p.mask.sink, block))),
                          .listed = c.form == CandidateForm::kCsr ? c.indices.shape[0] : 0};
  const int64_t width = c.form == CandidateForm::kFixedWidth ? c.indices.shape[1] : 0;
  int64_t most =
      std::min(all, plus(times(plus(times(width, cut.lists), places.listed), places.an_entry), places.extra));
  if (all_blocks) most = all;
  if (o.row_entries > 0) most = std::min(most, o.row_entries);
  // Rows of CSR are of any length, of which only the sum is known: places of one size would each have to hold
  // all of it.
  const int64_t fixed = times(cut.bundles, most),
                own = plus(times(places.listed, places.an_entry), times(cut.bundles, places.extra));
  if (c.form != CandidateForm::kCsr || all_blocks || o.row_entries > 0 || fixed <= own)
    return {most, fixed, {}};
  return {most, own, places};
}

// Blocks that were asked for and cannot be: tokens compute the same, where another way is allowed.
Result<Load> tokens_instead(const StepOptions& o, const std::string& why, std::string* reason) {
  if (o.load == Load::kBlocks && o.plan.fallback == Fallback::kRefuse)
    return Status(Code::kUnsupported, text("load: blocks, but ", why, "; nearest: tokens"));
  if (o.load != Load::kTokens) add_reason(reason, text("load tokens: ", why));
  return Load::kTokens;
}

Result<Load> load_of(const Problem& p, const Shape& s, const StepOptions& o, int32_t block, bool all_blocks,
                     std::string* reason) {
  const bool prefill = o.engine == Engine::kPrefill;
  const std::string why = prefill ? no_boxes(p, s, block) : no_blocks(s, block);
  if (!why.empty()) return tokens_instead(o, why, reason);
  if (o.load != Load::kAuto) return o.load;
  if (prefill) return Load::kBlocks;  // many rows share what they do not all select
  if (all_blocks || p.candidates.form == CandidateForm::kAll) return Load::kBlocks;
  if (o.density < 0) return p.candidates.unit >= 16 ? Load::kBlocks : Load::kTokens;
  return o.density >= kDenseBlocks ? Load::kBlocks : Load::kTokens;
}

// Most tasks, and most parts of rows that are split.
struct MostTasks {
  int64_t tasks, parts;
};

// `blocks`: of all groups.
MostTasks most_tasks(const Plan& plan, int64_t groups, int64_t blocks) {
  if (plan.splits > 0) return {times(groups, plan.splits), plan.splits > 1 ? times(groups, plan.splits) : 0};
  const int64_t each = times(groups, plan.max_parts);
  if (plan.batch_invariant) {  // a part of a split row has min_part blocks at least
    const int64_t parts = std::min(each, blocks / plan.min_part);
    return {std::max(groups, std::min(each, plus(groups, parts))), plan.max_parts > 1 ? parts : 0};
  }
  // kEven: the parts of a share fit into `shares`, or every part is a share of all blocks at least.
  const int64_t even = plus(plan.shares, groups);
  return {std::max(groups, std::min(each, even)),
          plan.max_parts > 1 ? std::min(each, times(2, plan.shares)) : 0};
}

// Row tiles of all CTAs side by side are what has to be filled; parts are worth their partial states from
// some length on.
void set_prefill_policy(int64_t row_tiles, PlanOptions* options) {
  constexpr int64_t ctas = 132, least_tiles = 8;
  if (options->shares == 0) options->shares = std::max<int64_t>(1, ctas / std::max<int64_t>(1, row_tiles));
  if (options->min_tiles == 0) options->min_tiles = least_tiles;
}

// Why row tiles cannot share what they bring in; empty where they can. keys: of a tile.
std::string_view no_pairs(const StepPlan& plan, int32_t keys, int32_t block) {
#ifdef TAMIS_RACECHECK
  return "a build for racecheck has none";
#endif
  if (plan.engine != Engine::kPrefill) return "not the engine prefill";
  if (plan.load != Load::kBlocks) return "tokens are loaded one by one";
  if (plan.lists > 1) return "the lists of a row tile are several";
  if (plan.column_tiles % 2 != 0) return "the row tiles of a group are odd in number";
  if (keys / block < 2) return "a block fills a tile";
  return {};
}

template <class E>
Status check_enum(const char* name, E value, E last) {
  if (value <= last) return {};
  return invalid(name, static_cast<int>(value), " is outside [0, ", static_cast<int>(last), "]");
}

Status check_options(const StepOptions& o) {
  TAMIS_RETURN_IF_ERROR(check_enum("load", o.load, Load::kTokens));
  TAMIS_RETURN_IF_ERROR(check_enum("engine", o.engine, Engine::kPrefill));
  TAMIS_RETURN_IF_ERROR(check_enum("ring", o.ring, Ring::kShort));
  TAMIS_RETURN_IF_ERROR(check_enum("path", o.plan.path, Path::kDense));
  TAMIS_RETURN_IF_ERROR(check_enum("fallback", o.plan.fallback, Fallback::kRefuse));
  if (!(o.density <= 1))
    return invalid("density", o.density, " is outside [0, 1], and not below 0: not known");
  if (o.row_entries < 0) return invalid("row_entries", o.row_entries, " is negative");
  if (o.max_kv_len < 0) return invalid("max_kv_len", o.max_kv_len, " is negative");
  return {};
}

Result<StepPlan> make(const Problem& problem, const StepOptions& options) {
  const Result<Shape> shape = describe(problem);
  if (!shape.ok()) return shape.status();
  const Shape& s = *shape;
  TAMIS_RETURN_IF_ERROR(supports(problem, s));
  TAMIS_RETURN_IF_ERROR(check_options(options));

  std::string reason;
  const Result<int32_t> block = block_of(problem, s, options, &reason);
  if (!block.ok()) return block.status();
  PlanOptions plan_options = options.plan;
  plan_options.backend = Backend::kCuda;
  const bool every_token = problem.candidates.form == CandidateForm::kAll;
  // What `auto` would go by are numbers of entries, and here only their bounds are known.
  if (plan_options.path == Path::kAuto) plan_options.path = every_token ? Path::kDense : Path::kDirect;
  const bool all_blocks = plan_options.path == Path::kDense;

  const Cut cut = cut_of(problem, s);
  if (cut.rows % s.index_heads != 0 || (cut.rows == 0 && s.total_q > 0))
    return invalid(problem.candidates.form == CandidateForm::kCsr          ? "cand_indptr"
                   : problem.candidates.form == CandidateForm::kFixedWidth ? "cand_indices"
                                                                           : "cu_q",
                   cut.rows, " rows for ", s.index_heads, " index heads");
  const int64_t longest = longest_of(s, options);
  const Most most = most_entries(problem, s, cut, options, *block, longest, all_blocks);
  const int64_t queries = std::min(problem.candidates.query_block, s.total_q);
  const Capacities capacities{.requests = s.requests,
                              .queries = s.total_q,
                              .rows = cut.rows,
                              .entries = most.of_all,
                              .row_entries = most.of_bundle,
                              .group_rows = times(std::max<int64_t>(1, queries), s.group)};
  const bool prefill = options.engine == Engine::kPrefill;
  if (prefill) set_prefill_policy(ceil_div(capacities.group_rows, kPrefillRows), &plan_options);
  Result<Plan> plan = make_plan(problem, capacities, *block, plan_options);
  if (!plan.ok()) return plan.status();

  StepPlan out{.plan = std::move(*plan)};
  out.ring = options.ring;
  out.every_token = every_token;
  out.max_kv_len = longest;
  out.query_block = problem.candidates.query_block;
  out.lists = cut.lists;
  out.bundles_a_block = cut.bundles_a_block;
  out.kv_heads_served = cut.kv_heads_served;
  out.bundles = cut.bundles;
  out.groups = times(cut.bundles, cut.kv_heads_served);
  const Result<Load> load = load_of(problem, s, options, *block, all_blocks, &reason);
  if (!load.ok()) return load.status();
  out.load = *load;
  const MostTasks cuts = most_tasks(out.plan, out.groups, times(most.of_all, out.kv_heads_served));
  out.tasks = cuts.tasks;
  out.parts = cuts.parts;
  out.places = most.places;
  // Head sizes above 128 leave no registers for a second tile of columns.
  const bool wide = std::max(s.head_dim, s.v_head_dim) > 128, bf16 = problem.query.q.dtype == DType::kBF16;
  out.columns = capacities.group_rows > 8 && !wide ? 16 : 8;
  out.kernel = bf16 ? "decode_sm80_bf16" : "decode_sm80_f16";
  if (prefill) {
    TAMIS_RETURN_IF_ERROR(supports_prefill(out.lists));
    out.engine = Engine::kPrefill;
    out.columns = kPrefillRows;
    out.kernel = bf16 ? "prefill_sm90_bf16" : "prefill_sm90_f16";
  }
  out.column_tiles = ceil_div(capacities.group_rows, out.columns);
  if (options.pairs) {
    const std::string_view why = no_pairs(out, prefill_keys(std::max(s.head_dim, s.v_head_dim)), *block);
    out.pairs = why.empty();
    if (!out.pairs) add_reason(&reason, text("no pairs: ", why));
  }
  constexpr int64_t most_numbers = std::numeric_limits<int32_t>::max() - 4096;  // a chunk beyond still counts
  if (out.tasks > most_numbers || out.groups > most_numbers || out.column_tiles > 65535 ||
      (prefill && times(out.tasks, out.column_tiles) > most_numbers))
    return Status(Code::kCapacityExceeded,
                  text("tasks: ", out.tasks, " of ", out.column_tiles, " tiles are too many"),
                  {.value = out.tasks, .limit = most_numbers + 1});
  if (times(times(capacities.entries, out.lists), 8) > (int64_t{1} << 46) ||
      times(times(out.parts, capacities.group_rows), s.v_head_dim) > (int64_t{1} << 44))
    return Status(Code::kCapacityExceeded, "plan: the buffers of this step would exceed any memory");
  const index::NormalizeShared shared =
      index::normalize_shared(longest, *block, most.of_bundle, out.lists, 0, 0);
  if (!every_token && shared.bytes > kMostShared)
    return Status(Code::kUnsupported,
                  text("max_kv_len: ", longest, " tokens in blocks of ", *block,
                       " on the device; nearest: up to ", (kMostShared / 8 - 1) * 32 * *block),
                  {.value = longest});
  const StepLayout layout = layout_of(out);
  out.bytes = {.control = to_line(sizeof(DeviceControl)),
               .index = layout.index.bytes,
               .scratch = layout.scratch.bytes};
  add_reason(&reason, out.plan.reason);
  out.plan.reason = std::move(reason);
  return out;
}

// What must hold the partial states is the scratch of this step, so the budget is judged by its bytes: fewer
// splits until they fit, or until no row is split.
Result<StepPlan> make_within(const Problem& problem, const StepOptions& options) {
  const int64_t budget = options.plan.workspace_budget;
  StepOptions o = options;
  if (budget >= 0) o.plan.workspace_budget = -1;
  Result<StepPlan> plan = make(problem, o);
  if (!plan.ok() || budget < 0 || plan->bytes.scratch <= budget) return plan;
  const int64_t needed = plan->bytes.scratch;
  if (o.plan.splits > 1 && o.plan.fallback == Fallback::kRefuse)
    return Status(Code::kWorkspaceTooSmall,
                  text("workspace_budget: ", o.plan.splits, " splits need ", needed,
                       " bytes of scratch, the budget is ", budget),
                  {.value = budget});
  while (plan.ok() && plan->parts > 0 && plan->bytes.scratch > budget) {
    if (o.plan.splits > 1)
      o.plan.splits /= 2;
    else if (o.plan.batch_invariant)
      o.plan.min_tiles =
          2 * (o.plan.min_tiles > 0 ? o.plan.min_tiles : policy_of(Backend::kCuda).invariant_tiles);
    else if (plan->plan.shares > 1)
      o.plan.shares = plan->plan.shares / 2;
    else
      o.plan.splits = 1;
    plan = make(problem, o);
  }
  if (plan.ok() && plan->bytes.scratch < needed)
    add_reason(&plan->plan.reason, text("fewer splits: scratch of ", plan->bytes.scratch,
                                        " bytes instead of ", needed, " for a budget of ", budget));
  return plan;
}

}  // namespace

Result<StepPlan> plan_step(const Problem& problem, const StepOptions& options) {
  return guarded([&] { return make_within(problem, options); });
}

}  // namespace tamis::cuda
