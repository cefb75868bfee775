#include "attention/step_args.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numbers>

#include "plan/policy.h"

namespace tamis::cuda {
namespace {

template <class T>
const T* data_of(const TensorView& t) {
  return t.present() ? static_cast<const T*>(t.data) : nullptr;
}

int32_t log2_of(int64_t n) {
  return n > 0 && std::has_single_bit(static_cast<uint64_t>(n)) ? std::countr_zero(static_cast<uint64_t>(n))
                                                                : -1;
}

index::DeviceCandidates candidates_of(const StepPlan& plan, const CandidateView& c) {
  const bool csr = c.form == CandidateForm::kCsr, fixed = c.form == CandidateForm::kFixedWidth;
  return {.indices = data_of<int32_t>(c.indices),
          .row_stride = fixed && c.indices.data != nullptr ? c.indices.stride[0] : 0,
          .indptr = csr ? c.indptr.data : nullptr,
          .count = fixed ? data_of<int32_t>(c.count) : nullptr,
          .width = fixed ? c.indices.shape[1] : 0,
          .entries = csr ? c.indices.shape[0] : 0,
          .rows = static_cast<int32_t>(rows_of(plan, c)),
          .unit = static_cast<int32_t>(c.unit),
          .query_block = static_cast<int32_t>(c.query_block),
          .index_heads = static_cast<int32_t>(c.index_heads),
          .wide_indptr = csr && c.indptr.dtype == DType::kI64,
          .every_token = plan.every_token,
          .reject_duplicates = c.duplicates == OnDuplicate::kReject,
          .reject_invalid = c.invalid == OnInvalid::kReject};
}

DecodePages pages_of(const StepPlan& plan, const Problem& p, const Shape& s) {
  const bool paged = p.cache.page_table.present();
  const int64_t blocks = paged && s.page_size % plan.plan.block == 0 ? s.page_size / plan.plan.block : 0;
  return {.table = data_of<int32_t>(p.cache.page_table),
          .table_stride = paged ? p.cache.page_table.stride[0] : 0,
          .page_size = s.page_size,
          .pages = s.pages,
          .blocks_a_page = static_cast<int32_t>(blocks),
          .log2_blocks = log2_of(blocks),
          .log2_page = log2_of(s.page_size)};
}

// The view without strides that kernels cannot follow, or whose bytes 64 bits cannot count: those are of axes
// of one element (supports() sees to that). Copies of no byte are asked for beyond it too, and must be
// aligned: they stay at the one element.
template <class Data>
BasicTensorView<Data> followed(BasicTensorView<Data> t) {
  constexpr int64_t most = int64_t{1} << 56;
  for (int axis = 0; axis < t.rank; ++axis) {
    int64_t& stride = t.stride[axis];
    if (t.shape[axis] <= 1 && (stride % 8 != 0 || stride > most || stride < -most)) stride = 0;
  }
  return t;
}

DecodeQueries query_of(const QueryView& query, const Shape& s) {
  const TensorView q = followed(query.q);
  const int64_t bytes = dtype_bytes(q.dtype);
  return {.data = static_cast<const char*>(q.data),
          .stride_query = q.stride[0] * bytes,
          .stride_head = q.stride[1] * bytes,
          .q_pos = data_of<int32_t>(query.q_pos),
          .cu_q = data_of<int32_t>(query.cu_q),
          .head_dim = static_cast<int32_t>(s.head_dim),
          .q_heads = static_cast<int32_t>(s.q_heads),
          .group = static_cast<int32_t>(s.group),
          .aligned =
              q.stride[0] % 8 == 0 && q.stride[1] % 8 == 0 && reinterpret_cast<uintptr_t>(q.data) % 16 == 0};
}

DecodeSide side_of(const TensorView& t, Layout layout, int64_t dim) {
  const KvStrides stride = kv_strides(followed(t), layout);
  const int64_t bytes = dtype_bytes(t.dtype);
  return {.data = static_cast<const char*>(t.data),
          .page = stride.page * bytes,
          .token = stride.token * bytes,
          .head = stride.head * bytes,
          .dim = static_cast<int32_t>(dim)};
}

DecodeOut out_of(const OutView& out, const Shape& s, DType values) {
  const MutableTensorView o = followed(out.out);
  const int64_t bytes = dtype_bytes(o.dtype);
  const SlotView& slots = out.slots;
  return {.data = static_cast<char*>(o.data),
          .query = o.stride[0] * bytes,
          .head = o.stride[1] * bytes,
          .aligned = o.stride[0] % 4 == 0 && o.stride[1] % 4 == 0 &&
                     reinterpret_cast<uintptr_t>(o.data) % (4 * bytes) == 0,
          .wide = bytes == 2 && o.stride[0] % 8 == 0 && o.stride[1] % 8 == 0 &&
                  reinterpret_cast<uintptr_t>(o.data) % 16 == 0,
          .lse = out.lse.present() ? static_cast<float*>(out.lse.data) : nullptr,
          .lse_query = out.lse.present() ? out.lse.stride[0] : 0,
          .lse_head = out.lse.present() ? out.lse.stride[1] : 0,
          .dtype = o.dtype,
          .most = values == DType::kF16 ? 65504.f : std::numeric_limits<float>::infinity(),
          .slots = {.slot = data_of<int32_t>(slots.slot),
                    .generation = data_of<uint32_t>(slots.generation),
                    .live = data_of<uint32_t>(slots.live_generation),
                    .slots = slots.live_generation.present() ? slots.live_generation.shape[0] : 0},
          .requests = static_cast<int32_t>(s.requests),
          .total_q = s.total_q};
}

}  // namespace

int64_t rows_of(const StepPlan& plan, const CandidateView& c) {
  if (c.form == CandidateForm::kCsr) return std::max<int64_t>(0, c.indptr.shape[0] - 1);
  return c.form == CandidateForm::kFixedWidth ? c.indices.shape[0] : plan.plan.capacities.rows;
}

index::DeviceIndex index_of(const StepPlan& plan, const StepBuffers& buffers) {
  const StepPlaces& own = plan.places;
  return index::index_at(buffers.index, layout_of(plan).index, plan.bundles, plan.lists,
                         plan.every_token ? 0 : plan.plan.capacities.row_entries,
                         {.an_entry = own.an_entry, .extra = own.extra, .listed = own.listed});
}

DeviceScratch scratch_of(const StepPlan& plan, const StepBuffers& buffers) {
  return scratch_at(buffers.scratch, layout_of(plan).scratch, plan.plan.capacities.group_rows);
}

// Above 64 KB too few CTAs fit a multiprocessor: then member words are gathered in memory.
index::NormalizeShared shared_of(const StepPlan& plan, const CandidateView& c) {
  constexpr int64_t most_shared = 64 * 1024;
  if (plan.every_token) return {.bytes = 16, .lists = true, .staged = 0};
  const int64_t width = c.form == CandidateForm::kFixedWidth ? c.indices.shape[1]
                        : c.form == CandidateForm::kCsr      ? c.indices.shape[0]
                                                             : 0;
  return index::normalize_shared(plan.max_kv_len, plan.plan.block, plan.plan.capacities.row_entries,
                                 plan.lists, width, most_shared);
}

index::NormalizeArgs normalize_args(const StepPlan& plan, const Problem& p, const Shape& s,
                                    const StepBuffers& buffers, const index::NormalizeShared& shared) {
  const CacheView& c = p.cache;
  const bool paged = c.page_table.present();
  const DecodePages pages = pages_of(plan, p, s);
  return {.requests = {.cu_q = data_of<int32_t>(p.query.cu_q),
                       .kv_len = data_of<int32_t>(c.kv_len),
                       .q_pos = data_of<int32_t>(p.query.q_pos),
                       .cu_kv = data_of<int32_t>(c.cu_kv),
                       .requests = static_cast<int32_t>(s.requests),
                       .total_q = static_cast<int32_t>(s.total_q),
                       .kv_rows = s.kv_rows,
                       .table_tokens = paged ? s.max_pages * s.page_size : 0,
                       .max_kv_len = plan.max_kv_len},
          .pages = {.table = data_of<int32_t>(c.page_table),
                    .page_stamps = data_of<uint64_t>(c.page_stamps),
                    .table_stamps = data_of<uint64_t>(c.table_stamps),
                    .table_stride = paged ? c.page_table.stride[0] : 0,
                    .stamp_stride = c.table_stamps.present() ? c.table_stamps.stride[0] : 0,
                    .pages = s.pages,
                    .page_size = s.page_size},
          .candidates = candidates_of(plan, p.candidates),
          .mask = p.mask,
          .out = index_of(plan, buffers),
          .block = plan.plan.block,
          .log2_block = log2_of(plan.plan.block),
          .bundles_a_block = plan.bundles_a_block,
          .blocks_a_page = pages.blocks_a_page,
          .log2_blocks = pages.log2_blocks,
          .staged = shared.staged,
          .rows_apart = s.index_heads == 1 ? 0 : static_cast<int32_t>(s.index_heads / plan.bundles_a_block),
          .all_blocks = plan.plan.path == Path::kDense,
          .mark = index_mark(plan, p, s)};
}

ScheduleArgs schedule_args(const StepPlan& plan, const StepBuffers& buffers) {
  const Split split = split_of(Backend::kCuda, plan.plan.splits, plan.plan.batch_invariant);
  return {.index = index_of(plan, buffers),
          .scratch = scratch_of(plan, buffers),
          .control = static_cast<DeviceControl*>(buffers.control),
          .rule = {split, 0, plan.plan.min_part, plan.plan.splits},
          .shares = plan.plan.shares,
          .most_tasks = plan.tasks,
          .most_parts = plan.parts,
          .arrivals = arrivals_of(plan),
          .counts_parts = plan.parts < plan.groups,
          .kv_heads_served = plan.kv_heads_served,
          .bundles_a_block = plan.bundles_a_block,
          .plan = mark_of(plan),
          .index_plan = index_mark_of(plan)};
}

DecodeArgs decode_args(const StepPlan& plan, const Problem& p, const Shape& s, const OutView& out,
                       const StepBuffers& buffers, StepCounters* counters) {
  return {.q = query_of(p.query, s),
          .k = side_of(p.cache.k, p.cache.layout, s.head_dim),
          .v = side_of(p.cache.v, p.cache.layout, s.v_head_dim),
          .pages = pages_of(plan, p, s),
          .score = {.scale = static_cast<float>(s.scale),
                    .softcap = static_cast<float>(p.score.softcap),
                    .slopes = data_of<float>(p.score.alibi_slopes),
                    .window = p.mask.window,
                    .sink = p.mask.sink,
                    .causal = p.mask.causal},
          .out = out_of(out, s, p.cache.v.dtype),
          .index = index_of(plan, buffers),
          .scratch = scratch_of(plan, buffers),
          .control = static_cast<DeviceControl*>(buffers.control),
          .counters = counters,
          .log2_block = log2_of(plan.plan.block),
          .list_heads = static_cast<int32_t>(plan.lists > 1 ? 1 : s.group),
          .every_token = plan.every_token,
          .tokens = plan.load == Load::kTokens,
          .plan = mark_of(plan),
          .mark = index_mark(plan, p, s)};
}

PrefillArgs prefill_args(const StepPlan& plan, const Problem& p, const Shape& s, const OutView& out,
                         const StepBuffers& buffers, StepCounters* counters) {
  PrefillArgs a{.k = {},
                .v = {},
                .q = {},
                .out = {},
                .step = decode_args(plan, p, s, out, buffers, counters),
                .work = {},
                .row_tiles = static_cast<int32_t>(plan.column_tiles),
                .kv_heads = static_cast<int32_t>(s.kv_heads),
                .kv_rows = s.page_size > 0 ? 0 : static_cast<int32_t>(s.kv_rows),
                .pair = plan.pairs ? 2 : 1,
                .scale2 = 0};
  a.scale2 = a.step.score.scale * std::numbers::log2e_v<float>;
  uint32_t* counter = a.step.scratch.arrivals + arrivals_of(plan) - kWorkCounters;
  a.work = {.next = counter,
            .redo_count = counter + 1,
            .redo_done = counter + 2,
            .redo = reinterpret_cast<RedoEntry*>(a.step.scratch.rest)};
  return a;
}

SideShape shape_of_side(const StepPlan& plan, const Shape& s) {
  return {.page_tokens = s.page_size > 0 ? s.page_size : s.kv_rows,
          .pages = s.page_size > 0 ? s.pages : 1,
          .kv_heads = s.kv_heads,
          .block = plan.plan.block};
}

PrefillKey prefill_key(const Problem& p, const Shape& s) {
  return {.dtype = p.query.q.dtype,
          .dim = padded_dim(s.head_dim, s.v_head_dim),
          .bent = p.score.softcap > 0 || p.score.alibi_slopes.present() || !(s.scale > 0)};
}

}  // namespace tamis::cuda
