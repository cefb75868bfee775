#include "kernels/cpu/run.h"

#include <atomic>
#include <cmath>
#include <cstring>

#include "core/checks.h"
#include "core/clock.h"
#include "core/pool.h"
#include "kernels/cpu/make_args.h"
#include "kernels/cpu/numbers.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/store.h"
#include "merge/state.h"

namespace tamis::cpu {
namespace {

struct Totals {
  std::atomic<int64_t> tiles{0}, tokens{0}, redone{0}, empty{0}, stale{0}, saturated{0};
  std::atomic<bool> out_of_memory{false};
};

// Which products take bf16 pairs.
struct Pairs {
  bool scores, weights;
};

// The working memory of one thread.
struct Scratch {
  RowChunk* chunk;
  float* q;
  uint32_t* q_pairs;
  float* o;
  float* m;
  float* l;
  char* kernel;
};

class Runner {
 public:
  Runner(const Step& step, const Isa& isa, Context::Pool& pool)
      : s_(step),
        isa_(isa),
        pool_(pool),
        store_(step.out, step.problem.query.cu_q),
        q_stride_(round_up(step.shape.head_dim, 16)),
        q_pair_stride_(round_up((step.shape.head_dim + 1) / 2, 16)),
        pairs_{isa.pairs && pairs_up(step.problem.query.q) && pairs_up(step.problem.cache.k) &&
                   step.shape.head_dim % 2 == 0,
               isa.pairs && pairs_up(step.problem.query.q) && pairs_up(step.problem.cache.k) &&
                   pairs_up(step.problem.cache.v)} {
    const int64_t rows = step.schedule.part_rows.empty() ? 0 : step.schedule.part_rows.back();
    const PartialLayout layout = partial_layout(rows, step.shape.v_head_dim);
    partial_o_ = reinterpret_cast<float*>(step.workspace + layout.o);
    partial_m_ = reinterpret_cast<float*>(step.workspace + layout.m);
    partial_l_ = reinterpret_cast<float*>(step.workspace + layout.l);
  }

  Status run(RunCounters* counters) {
    const auto start = Clock::now();
    pool_.for_each(static_cast<int64_t>(s_.schedule.tasks.size()),
                   [this](int worker, int64_t i) { attend(worker, s_.schedule.tasks[i]); });
    const auto attended = Clock::now();
    merge_all();
    if (totals_.out_of_memory)
      return {Code::kCapacityExceeded, "threads: no memory for the scratch of a thread"};
    if (counters == nullptr) return {};
    counters->tasks += static_cast<int64_t>(s_.schedule.tasks.size());
    counters->tiles += totals_.tiles;
    counters->tokens_loaded += totals_.tokens;
    counters->rows_redone += totals_.redone;
    counters->empty_rows += totals_.empty;
    counters->stale_rows += totals_.stale;
    counters->saturated += totals_.saturated;
    counters->attention_us += microseconds(start, attended);
    counters->merge_us += microseconds_since(attended);
    return {};
  }

 private:
  // Little work is done here: waking the other threads would take longer.
  void merge_all() {
    constexpr int64_t few_floats = 1 << 18;
    const auto& merges = s_.schedule.merges;
    if (merges.empty()) return;
    if (s_.schedule.part_rows.back() * s_.shape.v_head_dim <= few_floats) {
      for (const MergeItem& item : merges) merge(0, item);
    } else {
      pool_.for_each(static_cast<int64_t>(merges.size()),
                     [&](int worker, int64_t i) { merge(worker, merges[i]); });
    }
  }

  bool take_scratch(int worker, Scratch* scratch) {
    const int64_t dv = s_.shape.v_head_dim;
    const int64_t chunk = round_up(sizeof(RowChunk), 64), q = kRowChunk * q_stride_ * 4,
                  q_pairs = pairs_.scores ? kRowChunk * q_pair_stride_ * 4 : 0,
                  o = round_up(kRowChunk * dv * 4, 64);
    const int64_t kernel = isa_.scratch_bytes(s_.shape.head_dim, dv);
    std::byte* at = pool_.scratch(worker, chunk + q + q_pairs + o + 2 * kRowChunk * 4 + kernel);
    if (at == nullptr) {
      totals_.out_of_memory = true;
      return false;
    }
    scratch->chunk = new (at) RowChunk;
    scratch->q = reinterpret_cast<float*>(at += chunk);
    scratch->q_pairs = reinterpret_cast<uint32_t*>(at += q);
    scratch->o = reinterpret_cast<float*>(at += q_pairs);
    scratch->m = reinterpret_cast<float*>(at += o);
    scratch->l = reinterpret_cast<float*>(at += kRowChunk * 4);
    scratch->kernel = reinterpret_cast<char*>(at += kRowChunk * 4);
    return true;
  }

  void attend(int worker, const Task& task) {
    Scratch scratch;
    if (!take_scratch(worker, &scratch)) return;
    const Bundle& bundle = s_.bundles.bundle[task.bundle];
    const BundleView& view = s_.bundles;
    AttendArgs args{};
    args.index = block_args(view, bundle, task.begin, task.end, s_.shape.page_size);
    args.index.load_all = s_.plan.path == Path::kDense;
    const CacheView& cache = s_.problem.cache;
    args.k = side_of(cache.k, cache.k_quant, cache.layout, task.kv_head);
    args.v = side_of(cache.v, cache.v_quant, cache.layout, task.kv_head);
    args.q_pairs = pairs_.scores ? scratch.q_pairs : nullptr;
    args.q_pair_stride = q_pair_stride_;
    args.pair_weights = pairs_.weights;
    args.scratch = scratch.kernel;
    args.q = scratch.q;
    args.q_stride = q_stride_;
    AttendCounts counts{};
    for_each_chunk(s_.problem, s_.shape, view, bundle, task.kv_head, scratch.chunk,
                   [&](const RowChunk& chunk, int64_t first) {
                     const int64_t at = task.part < 0 ? 0 : s_.schedule.part_rows[task.part] + first;
                     args.groups = chunk.groups;
                     args.group_of = chunk.group_of;
                     args.group_count = chunk.group_count;
                     args.rows = chunk.count;
                     args.score = score_args(s_.problem, s_.shape, chunk);
                     args.dropout = dropout_args(s_.problem.dropout, bundle.request, chunk);
                     args.o = task.part < 0 ? scratch.o : partial_o_ + at * s_.shape.v_head_dim;
                     args.m = task.part < 0 ? scratch.m : partial_m_ + at;
                     args.l = task.part < 0 ? scratch.l : partial_l_ + at;
                     load_queries(chunk, scratch);
                     isa_.attend(args, &counts);
                     if (task.part >= 0) return;
                     for (int32_t r = 0; r < chunk.count; ++r)
                       finish(chunk.rows[r], args.o + r * s_.shape.v_head_dim, args.m[r], args.l[r]);
                   });
    totals_.tiles += counts.tiles;
    totals_.tokens += counts.tokens;
    totals_.redone += counts.rows_redone;
  }

  void load_queries(const RowChunk& chunk, const Scratch& to) const {
    const TensorView& q = s_.problem.query.q;
    for (int32_t r = 0; r < chunk.count; ++r) {
      const int64_t from = chunk.rows[r].query * q.stride[0] + chunk.rows[r].head * q.stride[1];
      load_row(q, from, s_.shape.head_dim, q_stride_, to.q + r * q_stride_);
      if (pairs_.scores)
        load_pairs(q, from, s_.shape.head_dim, q_pair_stride_, to.q_pairs + r * q_pair_stride_);
    }
  }

  // Stores one row and counts. A set whose scores are all -inf has no softmax: NaN, as anywhere.
  void finish(const QueryRow& row, const float* o, float m, float l) {
    if (m == -INFINITY && l != 0) l = NAN;
    const StoreOutcome stored = store_.row(row.query, row.head, o, m, l);
    if (l == 0) ++totals_.empty;
    if (stored.stale) ++totals_.stale;
    if (stored.saturated > 0) totals_.saturated += stored.saturated;
  }

  void merge(int worker, const MergeItem& item) {
    Scratch scratch;
    if (!take_scratch(worker, &scratch)) return;
    const int64_t dv = s_.shape.v_head_dim;
    float* o = scratch.o;
    for_each_chunk(s_.problem, s_.shape, s_.bundles, s_.bundles.bundle[item.bundle], item.kv_head,
                   scratch.chunk, [&](const RowChunk& chunk, int64_t first) {
                     for (int32_t r = 0; r < chunk.count; ++r) {
                       float m = -INFINITY, l = 0;
                       memset(o, 0, sizeof(float) * dv);
                       for (int32_t part = item.first_part; part < item.first_part + item.parts; ++part) {
                         const int64_t at = s_.schedule.part_rows[part] + first + r;
                         // Only empty parts are skipped: a weight that underflows still carries NaN and Inf
                         // of selected V over, as it does within one part.
                         if (partial_l_[at] == 0) continue;
                         const bool first_part = l == 0;
                         const Weights w = join(m, l, partial_m_[at], partial_l_[at]);
                         const float* other = partial_o_ + at * dv;
                         if (first_part)
                           for (int64_t d = 0; d < dv; ++d) o[d] = other[d];
                         else
                           for (int64_t d = 0; d < dv; ++d) o[d] = w.a * o[d] + w.b * other[d];
                       }
                       finish(chunk.rows[r], o, m, l);
                     }
                   });
  }

  const Step& s_;
  const Isa& isa_;
  Context::Pool& pool_;
  const RowStore store_;
  const int64_t q_stride_, q_pair_stride_;
  const Pairs pairs_;
  float *partial_o_, *partial_m_, *partial_l_;
  Totals totals_;
};

}  // namespace

Status supports(const Problem& problem, const Shape& shape) {
  for (const auto& [name, value] : {std::pair{"scale", shape.scale}, {"softcap", problem.score.softcap}})
    if (value != 0 && !std::isnormal(static_cast<float>(value)))
      return {
          Code::kUnsupported,
          text(name, ": ", value, " is no normal float32 number (backend reference computes in float64)")};
  if (shape.head_dim > kMaxHeadDim || shape.v_head_dim > kMaxHeadDim)
    return {Code::kUnsupported, text("head_dim: ", shape.head_dim, " and ", shape.v_head_dim,
                                     "; nearest: up to ", kMaxHeadDim, " (backend reference computes any)")};
  return {};
}

Status run(const Step& step, const Isa& isa, Context::Pool& pool, RunCounters* counters) {
  return Runner(step, isa, pool).run(counters);
}

}  // namespace tamis::cpu
