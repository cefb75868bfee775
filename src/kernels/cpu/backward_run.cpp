#include "kernels/cpu/backward_run.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "core/pool.h"
#include "kernels/cpu/backward_args.h"
#include "kernels/cpu/make_args.h"
#include "kernels/cpu/numbers.h"
#include "kernels/cpu/rows.h"

namespace tamis::cpu {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kLine = 64;

int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

double microseconds(Clock::time_point from) {
  return std::chrono::duration<double, std::micro>(Clock::now() - from).count();
}

// Sums can be made in the gradient itself. Asked of any view: a workspace is sized before gradients are
// checked.
bool sums_in_place(const MutableTensorView& t) {
  return t.rank > 0 && t.dtype == DType::kF32 && t.stride[t.rank - 1] == 1;
}

KvStrides strides_of(const MutableTensorView& t, Layout layout) {
  TensorView view;
  view.rank = t.rank, view.shape = t.shape, view.stride = t.stride;
  return kv_strides(view, layout);
}

// The working memory of one thread.
struct Scratch {
  RowChunk *chunk, *walk;       // an item's rows; those of its bundle on the way there
  float *q, *g;                 // rows as f32, where they are not kept
  uint32_t *q_pairs, *g_pairs;  // rows as pairs
  float* lse;
  int16_t* group_of;
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
        grouping_(step.spans.count() * step.shape.kv_heads) {
    int64_t most = 0;
    for (size_t s = 0; s + 1 < step.work.slabs.size(); ++s)
      most = std::max(most, step.work.slabs[s + 1] - step.work.slabs[s]);
    stores_.resize(most);
    run_counts_.resize(most);
  }

  Status run(BackwardCounters* counters) {
    const auto start = Clock::now();
    clear_all();
    const double clear_us = microseconds(start);
    const auto begun = Clock::now();
    pool_.for_each(items(), [this](int worker, int64_t i) { delta_of(worker, i); });
    double query_us = microseconds(begun), transpose_us = 0, key_us = 0;
    BackwardCounters count;
    for (size_t slab = 0; slab + 1 < s_.work.slabs.size() && !out_of_memory_; ++slab) {
      const int64_t first = s_.work.slabs[slab], tasks = s_.work.slabs[slab + 1] - first;
      const auto query = Clock::now();
      lay_out(first, tasks);
      pool_.for_each(tasks, [&](int worker, int64_t i) { query_task(worker, first + i, i); });
      query_us += microseconds(query);
      if (out_of_memory_) break;
      const auto transpose = Clock::now();
      group_runs(first, tasks);
      transpose_us += microseconds(transpose);
      const auto key = Clock::now();
      pool_.for_each(static_cast<int64_t>(grouped_.keys.size()),
                     [&](int, int64_t owner) { key_owner(owner); });
      key_us += microseconds(key);
      ++count.slabs;
      count.tasks += tasks;
      for (int64_t i = 0; i < tasks; ++i) count.tiles += s_.work.tasks[first + i].tiles();
      count.runs += static_cast<int64_t>(grouped_.order.size());
      count.owners += static_cast<int64_t>(grouped_.keys.size());
    }
    if (out_of_memory_) return {Code::kCapacityExceeded, "threads: no memory for the scratch of a thread"};
    const auto finishing = Clock::now();
    pool_.for_each(items(), [this](int worker, int64_t i) { finish_queries(worker, i); });
    query_us += microseconds(finishing);
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
  int64_t touched() const {
    int64_t n = 0;
    for (const int32_t place : s_.span_place) n += place >= 0;
    return n;
  }

  // --- clearing

  void clear_all() {
    clear_floats(dq_, s_.work.rows * q_stride_);
    clear_floats(delta_, s_.work.rows);
    for (const MutableTensorView* t : {&s_.gradients.d_q, &s_.gradients.d_k, &s_.gradients.d_v}) clear(*t);
    const int64_t sums = touched() * s_.spans.size() * s_.shape.kv_heads;
    if (!sums_in_place(s_.gradients.d_k))
      clear_floats(floats_at(s_.layout.key_sums), sums * s_.shape.head_dim);
    if (!sums_in_place(s_.gradients.d_v))
      clear_floats(floats_at(s_.layout.value_sums), sums * s_.shape.v_head_dim);
  }

  void clear_floats(float* at, int64_t count) {
    constexpr int64_t piece = 1 << 16;
    pool_.for_each((count + piece - 1) / piece, [&](int, int64_t i) {
      memset(at + i * piece, 0, sizeof(float) * static_cast<size_t>(std::min(piece, count - i * piece)));
    });
  }

  // Zero in every element, none between them.
  void clear(const MutableTensorView& t) {
    if (t.elements() == 0) return;
    const int64_t inner = t.elements() / t.shape[0], size = dtype_bytes(t.dtype);
    int64_t step = 1;
    bool dense = true;
    for (int axis = t.rank - 1; axis > 0; step *= t.shape[axis--]) dense = dense && t.stride[axis] == step;
    pool_.for_each(t.shape[0], [&](int, int64_t i) {
      char* at = static_cast<char*>(t.data) + i * t.stride[0] * size;
      if (dense) {
        memset(at, 0, static_cast<size_t>(inner * size));
        return;
      }
      for (int64_t e = 0; e < inner; ++e) {
        int64_t rest = e, offset = 0;
        for (int axis = t.rank - 1; axis > 0; rest /= t.shape[axis--])
          offset += rest % t.shape[axis] * t.stride[axis];
        memset(at + offset * size, 0, static_cast<size_t>(size));
      }
    });
  }

  // --- the rows of an item

  bool take_scratch(int worker, Scratch* scratch) {
    const int64_t sizes[] = {round_up(sizeof(RowChunk), kLine),
                             round_up(sizeof(RowChunk), kLine),
                             kRowChunk * q_stride_ * 4,
                             kRowChunk * g_stride_ * 4,
                             kRowChunk * q_stride_ * 2,
                             kRowChunk * g_stride_ * 2,
                             kRowChunk * 4,
                             kRowChunk * 2,
                             isa_.query_pass_scratch(s_.shape.head_dim, s_.shape.v_head_dim)};
    int64_t total = 0;
    for (const int64_t size : sizes) total += size;
    std::byte* at = pool_.scratch(worker, total);
    if (at == nullptr) {
      out_of_memory_ = true;
      return false;
    }
    scratch->chunk = new (at) RowChunk;
    scratch->walk = new (at += sizes[0]) RowChunk;
    scratch->q = reinterpret_cast<float*>(at += sizes[1]);
    scratch->g = reinterpret_cast<float*>(at += sizes[2]);
    scratch->q_pairs = reinterpret_cast<uint32_t*>(at += sizes[3]);
    scratch->g_pairs = reinterpret_cast<uint32_t*>(at += sizes[4]);
    scratch->lse = reinterpret_cast<float*>(at += sizes[5]);
    scratch->group_of = reinterpret_cast<int16_t*>(at += sizes[6]);
    scratch->kernel = reinterpret_cast<char*>(at += sizes[7]);
    return true;
  }

  // The rows of an item, in scratch->chunk.
  void load_chunk(const BackwardItem& item, const Scratch& scratch) const {
    int32_t number = 0;
    for_each_chunk(s_.problem, s_.shape, s_.bundles, s_.bundles.bundle[item.bundle], item.kv_head,
                   scratch.walk, [&](const RowChunk& chunk, int64_t) {
                     if (number++ == item.chunk) *scratch.chunk = chunk;
                   });
  }

  static int64_t row_at(const TensorView& t, const QueryRow& row) {
    return row.query * t.stride[0] + row.head * t.stride[1];
  }

  // delta = dO . O - d_lse, or - d_lse and the sum over edges when there is no O.
  void delta_of(int worker, int64_t i) {
    const BackwardItem& item = s_.work.items[i];
    Scratch scratch;
    if (!take_scratch(worker, &scratch)) return;
    load_chunk(item, scratch);
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
    for (int32_t group = 0; group < chunk.group_count; ++group)
      for (int32_t r = 0; r < chunk.groups[group].rows; ++r)
        scratch.group_of[chunk.groups[group].first + r] = static_cast<int16_t>(group);
    QueryPassArgs args{};
    const CacheView& cache = p.cache;
    args.k = side_of(cache.k, cache.k_quant, cache.layout, item.kv_head);
    args.v = side_of(cache.v, cache.v_quant, cache.layout, item.kv_head);
    args.groups = chunk.groups;
    args.group_count = chunk.group_count;
    args.rows = chunk.count;
    args.score = score_args(p, s_.shape, chunk);
    args.dropout = dropout_args(p.dropout, s_.bundles.bundle[item.bundle].request);
    args.dropout.heads = chunk.heads;
    args.dropout.positions = chunk.positions;
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
    args.group_of = scratch.group_of;
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
    load_chunk(item, scratch);
    TaskStore& store = stores_[place];
    QueryPassArgs args = rows_of(item, scratch, reinterpret_cast<float*>(store.stored.q),
                                 reinterpret_cast<float*>(store.stored.g));
    set_blocks(item, task, &args);
    args.stored = store.stored;
    isa_.query_pass(args);
    memcpy(store.group_of, scratch.group_of, sizeof(int16_t) * static_cast<size_t>(item.rows));
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
      const int64_t head = s_.work.items[s_.work.tasks[first + i].item].kv_head * s_.spans.count();
      for (int64_t r = 0; r < run_counts_[i]; ++r) {
        keys_.push_back(head + s_.spans.of(stores_[i].runs[r].slot));
        run_task_.push_back(static_cast<int32_t>(i));
        run_of_.push_back(static_cast<int32_t>(r));
      }
    }
    grouping_.group(keys_, &grouped_);
  }

  struct Sums {
    float* at;
    int64_t stride;  // of the next slot
  };

  // Where the sum of a slot is made.
  Sums sums_of(const MutableTensorView& t, int64_t kept_apart, int64_t slot, int64_t kv_head,
               int64_t dim) const {
    if (sums_in_place(t)) {
      const KvStrides stride = strides_of(t, s_.problem.cache.layout);
      const int64_t size = s_.shape.page_size, page = size == 0 ? 0 : slot / size, token = slot - page * size;
      return {static_cast<float*>(t.data) + page * stride.page + token * stride.token + kv_head * stride.head,
              stride.token};
    }
    const int64_t place = s_.span_place[s_.spans.of(slot)] * s_.shape.kv_heads + kv_head;
    return {floats_at(kept_apart) + (place * s_.spans.size() + s_.spans.offset(slot)) * dim, dim};
  }

  void key_owner(int64_t owner) {
    const int64_t kv_head = grouped_.keys[owner] / s_.spans.count();
    for (int64_t i = grouped_.begin[owner]; i < grouped_.begin[owner + 1]; ++i) {
      const TaskStore& store = stores_[run_task_[grouped_.order[i]]];
      const index::SlotRun& run = store.runs[run_of_[grouped_.order[i]]];
      const Sums k = sums_of(s_.gradients.d_k, s_.layout.key_sums, run.slot, kv_head, s_.shape.head_dim);
      const Sums v = sums_of(s_.gradients.d_v, s_.layout.value_sums, run.slot, kv_head, s_.shape.v_head_dim);
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
    load_chunk(item, scratch);
    const MutableTensorView& to = s_.gradients.d_q;
    for (int32_t r = 0; r < item.rows; ++r) {
      const QueryRow& row = scratch.chunk->rows[r];
      const float* from = dq_ + (item.first_row + r) * q_stride_;
      const int64_t at = row.query * to.stride[0] + row.head * to.stride[1];
      for (int64_t d = 0; d < s_.shape.head_dim; ++d) store_float(to, at + d * to.stride[2], scaled(from[d]));
    }
  }

  void finish_keys() {
    pool_.for_each(s_.spans.count(), [&](int, int64_t span) {
      if (s_.span_place[span] < 0) return;
      finish_span(s_.gradients.d_k, s_.layout.key_sums, s_.shape.head_dim, span,
                  [this](float sum) { return scaled(sum); });
      if (!sums_in_place(s_.gradients.d_v))
        finish_span(s_.gradients.d_v, s_.layout.value_sums, s_.shape.v_head_dim, span,
                    [](float sum) { return sum; });
    });
  }

  template <class F>
  void finish_span(const MutableTensorView& t, int64_t kept_apart, int64_t dim, int64_t span, const F& f) {
    const KvStrides stride = strides_of(t, s_.problem.cache.layout);
    const int64_t size = s_.shape.page_size, first = s_.spans.first(span);
    for (int64_t slot = first; slot < first + s_.spans.length(span); ++slot)
      for (int64_t h = 0; h < s_.shape.kv_heads; ++h) {
        const int64_t page = size == 0 ? 0 : slot / size, token = slot - page * size;
        const int64_t at = page * stride.page + token * stride.token + h * stride.head;
        const Sums from = sums_of(t, kept_apart, slot, h, dim);
        for (int64_t d = 0; d < dim; ++d) store_float(t, at + d * stride.dim, f(from.at[d]));
      }
  }

  const BackwardStep& s_;
  const Isa& isa_;
  Context::Pool& pool_;
  const int64_t q_stride_, g_stride_;
  const bool pairs_;
  float* const dq_;     // [rows, q_stride_]
  float* const delta_;  // [rows]
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
  const int64_t sums = touched * spans.size() * shape.kv_heads * 4;
  layout.dq = take(work.rows * store_sizes(shape).q_stride * 4);
  layout.delta = take(work.rows * 4);
  layout.key_sums = take(sums_in_place(gradients.d_k) ? 0 : sums * shape.head_dim);
  layout.value_sums = take(sums_in_place(gradients.d_v) ? 0 : sums * shape.v_head_dim);
  layout.slab = take(work.largest_slab);
  layout.bytes = at;
  return layout;
}

Status run_backward(const BackwardStep& step, const Isa& isa, Context::Pool& pool,
                    BackwardCounters* counters) {
  return BackwardRunner(step, isa, pool).run(counters);
}

}  // namespace tamis::cpu
