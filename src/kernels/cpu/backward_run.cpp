#include "kernels/cpu/backward_run.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/clock.h"
#include "core/pool.h"
#include "kernels/cpu/backward_args.h"
#include "kernels/cpu/backward_sums.h"
#include "kernels/cpu/make_args.h"
#include "kernels/cpu/numbers.h"
#include "kernels/cpu/rows.h"

namespace tamis::cpu {
namespace {

constexpr int64_t kLine = 64;

// The working memory of one thread.
struct Scratch {
  RowChunk* chunk;
  float *q, *g;                 // rows as f32, where they are not kept
  uint32_t *q_pairs, *g_pairs;  // rows as pairs
  float* lse;
  char* kernel;
};

// What a task leaves for the pass over keys.
struct TaskStore {
  Stored stored;
  index::SlotRun* runs;
  int16_t* group_of;
};

class BackwardRunner {
 public:
  BackwardRunner(const BackwardStep& step, const Isa& isa, Context::Pool& pool)
      : s_(step),
        isa_(isa),
        pool_(pool),
        q_stride_(store_sizes(step.shape).q_stride),
        g_stride_(store_sizes(step.shape).g_stride),
        pairs_(isa.pairs && pairs_up(step.problem.query.q) && pairs_up(step.problem.cache.k) &&
               pairs_up(step.problem.cache.v) && pairs_up(step.problem.gradients.d_out) &&
               step.shape.head_dim % 2 == 0 && step.shape.v_head_dim % 2 == 0),
        dq_(floats_at(step.layout.dq)),
        delta_(floats_at(step.layout.delta)),
        key_sums_(step.gradients.d_k, step.problem, step.shape, step.spans, step.span_place,
                  floats_at(step.layout.key_sums)),
        value_sums_(step.gradients.d_v, step.problem, step.shape, step.spans, step.span_place,
                    floats_at(step.layout.value_sums)),
        grouping_(static_cast<int64_t>(step.touched.size()) * step.shape.kv_heads) {
    int64_t most = 0;
    for (size_t s = 0; s + 1 < step.work.slabs.size(); ++s)
      most = std::max(most, step.work.slabs[s + 1] - step.work.slabs[s]);
    stores_.resize(most);
    run_counts_.resize(most);
  }

  Status run(BackwardCounters* counters) {
    const auto start = Clock::now();
    clear_all();
    const double clear_us = microseconds_since(start);
    const auto begun = Clock::now();
    pool_.for_each(items(), [this](int worker, int64_t i) { delta_of(worker, i); });
    double query_us = microseconds_since(begun), transpose_us = 0, key_us = 0;
    BackwardCounters count;
    for (size_t slab = 0; slab + 1 < s_.work.slabs.size() && !out_of_memory_; ++slab) {
      const int64_t first = s_.work.slabs[slab], tasks = s_.work.slabs[slab + 1] - first;
      const auto query = Clock::now();
      lay_out(first, tasks);
      pool_.for_each(tasks, [&](int worker, int64_t i) { query_task(worker, first + i, i); });
      query_us += microseconds_since(query);
      if (out_of_memory_) break;
      const auto transpose = Clock::now();
      group_runs(first, tasks);
      transpose_us += microseconds_since(transpose);
      const auto key = Clock::now();
      pool_.for_each(static_cast<int64_t>(grouped_.keys.size()),
                     [&](int, int64_t owner) { key_owner(owner); });
      key_us += microseconds_since(key);
      ++count.slabs;
      count.tasks += tasks;
      for (int64_t i = 0; i < tasks; ++i) count.tiles += s_.work.tasks[first + i].tiles();
      count.runs += static_cast<int64_t>(grouped_.order.size());
      count.owners += static_cast<int64_t>(grouped_.keys.size());
    }
    if (out_of_memory_) return {Code::kCapacityExceeded, "threads: no memory for the scratch of a thread"};
    const auto finishing = Clock::now();
    pool_.for_each(items(), [this](int worker, int64_t i) { finish_queries(worker, i); });
    query_us += microseconds_since(finishing);
    finish_keys();
    if (out_of_memory_) return {Code::kCapacityExceeded, "threads: no memory for the scratch of a thread"};
    if (counters == nullptr) return {};
    count.clear_us = clear_us, count.query_us = query_us, count.transpose_us = transpose_us,
    count.key_us = key_us;
    *counters = count;
    return {};
  }

 private:
  float* floats_at(int64_t offset) const { return reinterpret_cast<float*>(s_.workspace + offset); }
  int64_t items() const { return static_cast<int64_t>(s_.work.items.size()); }
  int64_t touched() const { return static_cast<int64_t>(s_.touched.size()); }

  void clear_all() {
    clear_floats(dq_, s_.work.rows * q_stride_, pool_);
    clear_floats(delta_, s_.work.rows, pool_);
    clear_tensor(s_.gradients.d_q, pool_);
    key_sums_.clear(touched(), pool_);
    value_sums_.clear(touched(), pool_);
  }

  // --- the rows of an item

  bool take_scratch(int worker, Scratch* scratch) {
    const int64_t sizes[] = {round_up(sizeof(RowChunk), kLine),
                             kRowChunk * q_stride_ * 4,
                             kRowChunk * g_stride_ * 4,
                             kRowChunk * q_stride_ * 2,
                             kRowChunk * g_stride_ * 2,
                             kRowChunk * 4,
                             isa_.query_pass_scratch(s_.shape.head_dim, s_.shape.v_head_dim)};
    int64_t total = 0;
    for (const int64_t size : sizes) total += size;
    std::byte* at = pool_.scratch(worker, total);
    if (at == nullptr) {
      out_of_memory_ = true;
      return false;
    }
    scratch->chunk = new (at) RowChunk;
    scratch->q = reinterpret_cast<float*>(at += sizes[0]);
    scratch->g = reinterpret_cast<float*>(at += sizes[1]);
    scratch->q_pairs = reinterpret_cast<uint32_t*>(at += sizes[2]);
    scratch->g_pairs = reinterpret_cast<uint32_t*>(at += sizes[3]);
    scratch->lse = reinterpret_cast<float*>(at += sizes[4]);
    scratch->kernel = reinterpret_cast<char*>(at += sizes[5]);
    return true;
  }

  void load_chunk(const BackwardItem& item, RowChunk* chunk) const {
    fill_chunk(s_.problem, s_.shape, s_.bundles, s_.bundles.bundle[item.bundle], item.kv_head, item.first,
               chunk);
  }

  static int64_t row_at(const TensorView& t, const QueryRow& row) {
    return row.query * t.stride[0] + row.head * t.stride[1];
  }

  // delta = dO . O - d_lse, or - d_lse and the sum over edges when there is no O.
  void delta_of(int worker, int64_t i) {
    const BackwardItem& item = s_.work.items[i];
    Scratch scratch;
    if (!take_scratch(worker, &scratch)) return;
    load_chunk(item, scratch.chunk);
    const TensorView &g = s_.problem.gradients.d_out, &out = s_.saved.out,
                     &d_lse = s_.problem.gradients.d_lse;
    float* delta = delta_ + item.first_row;
    if (!out.present()) {
      QueryPassArgs args = rows_of(item, scratch, scratch.q, scratch.g);
      args.only_delta = true;
      for (int64_t t = s_.work.item_begin[i]; t < s_.work.item_begin[i + 1]; ++t) {
        set_blocks(item, s_.work.tasks[s_.work.item_tasks[t]], &args);
        isa_.query_pass(args);
      }
    }
    for (int32_t r = 0; r < item.rows; ++r) {
      const QueryRow& row = scratch.chunk->rows[r];
      if (out.present()) {
        const int64_t from = row_at(g, row), with = row_at(out, row);
        float sum = 0;
        for (int64_t d = 0; d < s_.shape.v_head_dim; ++d)
          sum += load_float(g, from + d * g.stride[2]) * load_float(out, with + d * out.stride[2]);
        delta[r] = sum;
      }
      if (d_lse.present()) delta[r] -= load_float(d_lse, row_at(d_lse, row));
    }
  }

  // All of a query pass but its blocks and its store. Rows of Q and dO go to q and g, or to pairs.
  QueryPassArgs rows_of(const BackwardItem& item, const Scratch& scratch, float* q, float* g) const {
    const Problem& p = s_.problem;
    const RowChunk& chunk = *scratch.chunk;
    for (int32_t r = 0; r < item.rows; ++r) {
      const QueryRow& row = chunk.rows[r];
      const TensorView &from_q = p.query.q, &from_g = p.gradients.d_out;
      if (pairs_) {
        load_pairs(from_q, row_at(from_q, row), s_.shape.head_dim, q_stride_ / 2,
                   scratch.q_pairs + r * q_stride_ / 2);
        load_pairs(from_g, row_at(from_g, row), s_.shape.v_head_dim, g_stride_ / 2,
                   scratch.g_pairs + r * g_stride_ / 2);
      } else {
        load_row(from_q, row_at(from_q, row), s_.shape.head_dim, q_stride_, q + r * q_stride_);
        load_row(from_g, row_at(from_g, row), s_.shape.v_head_dim, g_stride_, g + r * g_stride_);
      }
      scratch.lse[r] = load_float(s_.saved.lse, row_at(s_.saved.lse, row));
    }
    QueryPassArgs args{};
    const CacheView& cache = p.cache;
    args.k = side_of(cache.k, cache.k_quant, cache.layout, item.kv_head);
    args.v = side_of(cache.v, cache.v_quant, cache.layout, item.kv_head);
    args.groups = chunk.groups;
    args.group_of = chunk.group_of;
    args.group_count = chunk.group_count;
    args.rows = chunk.count;
    args.score = score_args(p, s_.shape, chunk);
    args.dropout = dropout_args(p.dropout, s_.bundles.bundle[item.bundle].request, chunk);
    args.q = pairs_ ? nullptr : q;
    args.g = pairs_ ? nullptr : g;
    args.q_stride = q_stride_;
    args.g_stride = g_stride_;
    args.q_pairs = pairs_ ? scratch.q_pairs : nullptr;
    args.g_pairs = pairs_ ? scratch.g_pairs : nullptr;
    args.q_pair_stride = q_stride_ / 2;
    args.g_pair_stride = g_stride_ / 2;
    args.lse = scratch.lse;
    args.delta = delta_ + item.first_row;
    args.dq = dq_ + item.first_row * q_stride_;
    args.dq_stride = q_stride_;
    args.stored.pairs = pairs_;
    args.scratch = scratch.kernel;
    return args;
  }

  void set_blocks(const BackwardItem& item, const BackwardTask& task, QueryPassArgs* args) const {
    args->index =
        block_args(s_.bundles, s_.bundles.bundle[item.bundle], task.begin, task.end, s_.shape.page_size);
  }

  // --- the pass over queries

  // Where each task of a slab leaves its results.
  void lay_out(int64_t first, int64_t tasks) {
    std::byte* at = s_.workspace + s_.layout.slab;
    const auto take = [&at](int64_t bytes) {
      std::byte* here = at;
      at += round_up(bytes, kLine);
      return here;
    };
    for (int64_t i = 0; i < tasks; ++i) {
      const BackwardTask& task = s_.work.tasks[first + i];
      const BackwardItem& item = s_.work.items[task.item];
      Stored& s = stores_[i].stored;
      s = {};
      s.rows = item.rows, s.groups = item.groups, s.pairs = pairs_;
      s.q_stride = q_stride_, s.g_stride = g_stride_;
      const int64_t edges = task.tiles() * s.depth() * kTile * 4;
      s.p = reinterpret_cast<char*>(take(edges));
      s.ds = reinterpret_cast<char*>(take(edges));
      s.q = reinterpret_cast<char*>(take(s.depth() * q_stride_ * 4));
      s.g = reinterpret_cast<char*>(take(s.depth() * g_stride_ * 4));
      s.bits = reinterpret_cast<uint64_t*>(take(task.tiles() * item.groups * 8));
      s.slots = reinterpret_cast<int64_t*>(take(task.tiles() * kTile * 8));
      stores_[i].runs = reinterpret_cast<index::SlotRun*>(
          take(task.columns * static_cast<int64_t>(sizeof(index::SlotRun))));
      stores_[i].group_of = reinterpret_cast<int16_t*>(take(item.rows * 2));
      s.one_by_one = reinterpret_cast<bool*>(take(1));
    }
  }

  void query_task(int worker, int64_t t, int64_t place) {
    const BackwardTask& task = s_.work.tasks[t];
    const BackwardItem& item = s_.work.items[task.item];
    Scratch scratch;
    if (!take_scratch(worker, &scratch)) return;
    load_chunk(item, scratch.chunk);
    TaskStore& store = stores_[place];
    QueryPassArgs args = rows_of(item, scratch, reinterpret_cast<float*>(store.stored.q),
                                 reinterpret_cast<float*>(store.stored.g));
    set_blocks(item, task, &args);
    args.stored = store.stored;
    isa_.query_pass(args);
    memcpy(store.group_of, scratch.chunk->group_of, sizeof(int16_t) * static_cast<size_t>(item.rows));
    int64_t runs = 0;
    for (int64_t tile = 0; tile < task.tiles(); ++tile) {
      const int64_t columns = std::min<int64_t>(kTile, task.columns - tile * kTile);
      runs += index::cut_runs(s_.spans, {store.stored.slots + tile * kTile, static_cast<size_t>(columns)},
                              static_cast<int32_t>(tile), store.runs + runs);
    }
    run_counts_[place] = runs;
  }

  // --- the pass over keys

  void group_runs(int64_t first, int64_t tasks) {
    keys_.clear();
    run_task_.clear();
    run_of_.clear();
    for (int64_t i = 0; i < tasks; ++i) {
      const int64_t head = s_.work.items[s_.work.tasks[first + i].item].kv_head * touched();
      for (int64_t r = 0; r < run_counts_[i]; ++r) {
        keys_.push_back(head + s_.span_place[s_.spans.of(stores_[i].runs[r].slot)]);
        run_task_.push_back(static_cast<int32_t>(i));
        run_of_.push_back(static_cast<int32_t>(r));
      }
    }
    grouping_.group(keys_, &grouped_);
  }

  void key_owner(int64_t owner) {
    const int64_t kv_head = grouped_.keys[owner] / touched();
    for (int64_t i = grouped_.begin[owner]; i < grouped_.begin[owner + 1]; ++i) {
      const TaskStore& store = stores_[run_task_[grouped_.order[i]]];
      const index::SlotRun& run = store.runs[run_of_[grouped_.order[i]]];
      const KeySums::Place k = key_sums_.at(run.slot, kv_head), v = value_sums_.at(run.slot, kv_head);
      isa_.key_pass({.stored = store.stored,
                     .group_of = store.group_of,
                     .tile = run.tile,
                     .column = run.column,
                     .length = run.length,
                     .dk = k.at,
                     .dv = v.at,
                     .dk_stride = k.stride,
                     .dv_stride = v.stride,
                     .head_dim = s_.shape.head_dim,
                     .v_head_dim = s_.shape.v_head_dim});
    }
  }

  // --- sums to gradients

  // dQ and dK are summed over scores without their scale. A sum of 0 stays +0, whatever the sign of the
  // scale.
  float scaled(float sum) const { return sum * static_cast<float>(s_.shape.scale) + 0.f; }

  void finish_queries(int worker, int64_t i) {
    const BackwardItem& item = s_.work.items[i];
    Scratch scratch;
    if (!take_scratch(worker, &scratch)) return;
    load_chunk(item, scratch.chunk);
    const MutableTensorView& to = s_.gradients.d_q;
    for (int32_t r = 0; r < item.rows; ++r) {
      const QueryRow& row = scratch.chunk->rows[r];
      const float* from = dq_ + (item.first_row + r) * q_stride_;
      const int64_t at = row.query * to.stride[0] + row.head * to.stride[1];
      for (int64_t d = 0; d < s_.shape.head_dim; ++d) store_float(to, at + d * to.stride[2], scaled(from[d]));
    }
  }

  void finish_keys() {
    pool_.for_each(touched(), [&](int, int64_t place) {
      const int64_t span = s_.touched[place];
      key_sums_.finish(span, [this](float sum) { return scaled(sum); });
      if (!sums_in_place(s_.gradients.d_v)) value_sums_.finish(span, [](float sum) { return sum; });
    });
  }

  const BackwardStep& s_;
  const Isa& isa_;
  Context::Pool& pool_;
  const int64_t q_stride_, g_stride_;
  const bool pairs_;
  float* const dq_;     // [rows, q_stride_]
  float* const delta_;  // [rows]
  const KeySums key_sums_, value_sums_;
  index::Grouping grouping_;
  index::Grouped grouped_;
  std::vector<TaskStore> stores_;  // of the tasks of a slab
  std::vector<int64_t> run_counts_;
  std::vector<int64_t> keys_;  // of the runs of a slab, task after task
  std::vector<int32_t> run_task_, run_of_;
  std::atomic<bool> out_of_memory_{false};
};

}  // namespace

BackwardLayout backward_layout(const BackwardWork& work, const Shape& shape,
                               const index::PhysicalSpans& spans, int64_t touched,
                               const GradientView& gradients) {
  BackwardLayout layout{};
  int64_t at = 0;
  const auto take = [&at](int64_t bytes) {
    const int64_t here = at;
    at += round_up(bytes, kLine);
    return here;
  };
  const auto apart = [&](const MutableTensorView& t, int64_t dim) {
    return 4 * KeySums::floats_apart(t, touched, spans, shape.kv_heads, dim);
  };
  layout.dq = take(work.rows * store_sizes(shape).q_stride * 4);
  layout.delta = take(work.rows * 4);
  layout.key_sums = take(apart(gradients.d_k, shape.head_dim));
  layout.value_sums = take(apart(gradients.d_v, shape.v_head_dim));
  layout.slab = take(work.largest_slab);
  layout.bytes = at;
  return layout;
}

Status run_backward(const BackwardStep& step, const Isa& isa, Context::Pool& pool,
                    BackwardCounters* counters) {
  return BackwardRunner(step, isa, pool).run(counters);
}

}  // namespace tamis::cpu
