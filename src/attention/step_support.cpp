#include "attention/step_support.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numbers>
#include <utility>

#include "core/checks.h"
#include "core/saturating.h"
#include "core/tensor_checks.h"
#include "plan/stamps.h"

namespace tamis::cuda {
namespace {

constexpr int64_t kMost32 = std::numeric_limits<int32_t>::max();

template <class... Args>
Status unsupported(const Args&... args) {
  return {Code::kUnsupported, text(args...)};
}

Status need_dense(const char* name, const TensorView& t) {
  if (!t.present() || t.rank == 0 || t.shape[t.rank - 1] <= 1 || t.stride[t.rank - 1] == 1) return {};
  return unsupported(name, ": stride ", t.stride[t.rank - 1],
                     " of the last axis on the device; nearest: 1 (backend cpu takes any)");
}

// Strides that lead no further than memory can: places are computed in 64 bits. One over a single element
// leads nowhere, however large.
Status need_reach(const char* name, const TensorView& t) {
  constexpr int64_t most = int64_t{1} << 60;  // bytes
  int64_t bytes = 0;
  for (int axis = 0; t.present() && axis < t.rank; ++axis) {
    if (t.shape[axis] <= 1) continue;
    const int64_t stride = t.stride[axis], apart = stride < -kMostSize ? kMostSize : std::abs(stride);
    bytes = plus(bytes, times(times(apart, dtype_bytes(t.dtype)), t.shape[axis] - 1));
    if (bytes > most) return invalid(name, "stride ", stride, " of axis ", axis, " leads beyond any memory");
  }
  return {};
}

// Rows that 16-byte copies can start at.
Status need_copies(const char* name, const TensorView& t) {
  TAMIS_RETURN_IF_ERROR(need_dense(name, t));
  for (int axis = 0; axis + 1 < t.rank; ++axis)
    if (t.shape[axis] > 1 && t.stride[axis] % 8 != 0)
      return unsupported(name, ": stride ", t.stride[axis], " of axis ", axis,
                         " on the device; nearest: multiples of 8 elements");
  if (reinterpret_cast<uintptr_t>(t.data) % 16 != 0)
    return unsupported(name, ": does not start on a multiple of 16 bytes");
  return {};
}

// The arrays beside q, k and v.
std::array<std::pair<const char*, const TensorView*>, 11> arrays_of(const Problem& p) {
  return {{{"cu_q", &p.query.cu_q},
           {"q_pos", &p.query.q_pos},
           {"kv_len", &p.cache.kv_len},
           {"cu_kv", &p.cache.cu_kv},
           {"page_table", &p.cache.page_table},
           {"page_stamps", &p.cache.page_stamps},
           {"table_stamps", &p.cache.table_stamps},
           {"cand_indptr", &p.candidates.indptr},
           {"cand_indices", &p.candidates.indices},
           {"cand_count", &p.candidates.count},
           {"alibi_slopes", &p.score.alibi_slopes}}};
}

Status check_dtypes(const Problem& p) {
  const DType dtype = p.query.q.dtype;
  if (dtype != DType::kF16 && dtype != DType::kBF16)
    return unsupported("q: dtype ", dtype_name(dtype), " on the device; nearest: F16, BF16");
  for (const auto& [name, quant] : {std::pair{"k_format", &p.cache.k_quant}, {"v_format", &p.cache.v_quant}})
    if (quant->format != Format::kPlain)
      return unsupported(name,
                         ": quantized caches on the device; nearest: F16, BF16 (backend cpu takes them)");
  for (const auto& [name, t] : {std::pair{"k", &p.cache.k}, {"v", &p.cache.v}})
    if (t->dtype != dtype)
      return unsupported(name, ": dtype ", dtype_name(t->dtype), " beside q in ", dtype_name(dtype),
                         " on the device; nearest: the same for all three");
  return {};
}

Status check_head_dims(const Shape& s) {
  for (const auto& [name, dim] : {std::pair{"head_dim", s.head_dim}, {"v_head_dim", s.v_head_dim}})
    if (dim % 8 != 0 || dim > 256)
      return unsupported(name, ": ", dim, " on the device; nearest: multiples of 8 up to 256");
  return {};
}

Status check_strides(const Problem& p) {
  const TensorView& q = p.query.q;
  for (const auto& [name, t] : {std::pair{"q", &q}, {"k", &p.cache.k}, {"v", &p.cache.v}})
    TAMIS_RETURN_IF_ERROR(need_reach(name, *t));
  TAMIS_RETURN_IF_ERROR(need_copies("k", p.cache.k));
  TAMIS_RETURN_IF_ERROR(need_copies("v", p.cache.v));
  TAMIS_RETURN_IF_ERROR(need_dense("q", q));
  const auto odd = [&q](int axis) { return q.shape[axis] > 1 && q.stride[axis] % 2 != 0; };
  if (odd(0) || odd(1) || reinterpret_cast<uintptr_t>(q.data) % 4 != 0)
    return unsupported("q: rows do not start on multiples of 4 bytes");
  for (const auto& [name, t] : arrays_of(p)) {
    TAMIS_RETURN_IF_ERROR(need_reach(name, *t));
    TAMIS_RETURN_IF_ERROR(need_dense(name, *t));
  }
  return {};
}

// Numbers of the score, which the kernels have in float32, and `scale` with its factor for powers of 2.
Status check_score(const Problem& p, const Shape& s) {
  for (const auto& [name, value] : {std::pair{"scale", s.scale}, {"softcap", p.score.softcap}})
    if (value != 0 && !std::isnormal(static_cast<float>(value)))
      return unsupported(name, ": ", value,
                         " is no normal float32 number (backend reference computes in float64)");
  if (!std::isfinite(static_cast<float>(s.scale) * std::numbers::log2e_v<float>))
    return unsupported("scale: ", s.scale,
                       " times log2(e) is no float32 number; nearest: up to 2.35e38 either way (backend "
                       "reference computes in float64)");
  return {};
}

// Numbers the kernels keep in 32 bits.
Status check_extents(const Problem& p, const Shape& s) {
  const struct {
    const char* name;
    int64_t value, most;
  } sizes[] = {
      {"q", s.total_q, kMost32},
      {"kv_len", s.requests, 1 << 30},
      {"page_table", s.page_size > 0 ? s.max_pages : 0, 1 << 30},
      {"page_table", s.page_size, 1 << 30},
      {"unit", p.candidates.unit, kMost32},
      {"query_block", p.candidates.query_block, kMost32},
      {"cand_indices", p.candidates.form == CandidateForm::kFixedWidth ? p.candidates.indices.shape[1] : 0,
       (1 << 28) - 1}};
  for (const auto& size : sizes)
    if (size.value > size.most)
      return {Code::kUnsupported,
              text(size.name, ": ", size.value, " on the device; nearest: up to ", size.most),
              {.value = size.value, .limit = size.most + 1}};
  return {};
}

}  // namespace

Status supports(const Problem& problem, const Shape& shape) {
  if (shape.index_only) return invalid("q", "tensor is missing, an index-only problem has no values");
  if (problem.dropout.p > 0)
    return unsupported("dropout_p: ", problem.dropout.p, " on the device; nearest: 0 (backend cpu takes it)");
  TAMIS_RETURN_IF_ERROR(check_dtypes(problem));
  TAMIS_RETURN_IF_ERROR(check_head_dims(shape));
  TAMIS_RETURN_IF_ERROR(check_score(problem, shape));
  TAMIS_RETURN_IF_ERROR(check_strides(problem));
  return check_extents(problem, shape);
}

Status supports(const OutView& out) {
  const Epilogue& e = out.epilogue;
  if (e.scale != 1 || e.gate.present() || e.static_scale.present() || e.out_scale.present())
    return unsupported("epilogue: not built on the device; nearest: none (backend cpu has it)");
  const DType dtype = out.out.dtype;
  if (dtype != DType::kF32 && dtype != DType::kF16 && dtype != DType::kBF16)
    return unsupported("out: dtype ", dtype_name(dtype), " on the device; nearest: F32, F16, BF16");
  TAMIS_RETURN_IF_ERROR(need_dense("out", out.out));
  TAMIS_RETURN_IF_ERROR(need_reach("out", out.out));
  TAMIS_RETURN_IF_ERROR(need_reach("lse", out.lse));
  for (const auto& [name, t] : {std::pair{"slot", &out.slots.slot},
                                {"generation", &out.slots.generation},
                                {"live_generation", &out.slots.live_generation}}) {
    TAMIS_RETURN_IF_ERROR(need_dense(name, *t));
    TAMIS_RETURN_IF_ERROR(need_aligned(name, *t));
  }
  TAMIS_RETURN_IF_ERROR(need_aligned("out", out.out));
  return need_aligned("lse", out.lse);
}

Status supports_prefill(int32_t lists) {
  if (lists > kPrefillLists)
    return unsupported("index_heads: ", lists, " lists of a KV head in the prefill kernel; nearest: up to ",
                       kPrefillLists);
  return {};
}

std::string no_blocks(const Shape& s, int32_t block) {
  if (s.page_size > 0 && s.page_size % block != 0)
    return text("blocks of ", block, " do not divide pages of ", s.page_size);
  if (blocks_overflow(s, block)) return "the cache has more than 2^32 blocks";
  return {};
}

std::string no_boxes(const Problem& problem, const Shape& s, int32_t block) {
  if (std::string why = no_blocks(s, block); !why.empty()) return why;
  if ((s.page_size > 0 ? s.pages : s.kv_rows) == 0) return "the cache is empty";
  for (const auto& [name, dim] : {std::pair{"head_dim", s.head_dim}, {"v_head_dim", s.v_head_dim}})
    if (dim % 64 != 0) return text(name, " ", dim, " is no multiple of 64");
  for (const auto& [name, t] : {std::pair{"k", &problem.cache.k}, {"v", &problem.cache.v}}) {
    const KvStrides stride = kv_strides(*t, problem.cache.layout);
    const bool many_pages = s.page_size > 0 && s.pages > 1, many_heads = s.kv_heads > 1;
    const auto serves = [](int64_t x) { return x > 0 && x <= int64_t{1} << 32 && x % 8 == 0; };
    if (!serves(stride.token) || (many_heads && !serves(stride.head)) || (many_pages && !serves(stride.page)))
      return text(name, " has strides that are no multiples of 8 elements in (0, 2^32]");
    if (many_pages && many_heads && stride.page % stride.head != 0)
      return text(name, " has pages ", stride.page, " elements apart and heads ", stride.head,
                  ", not a whole number of heads");
    if (many_pages && plus(times(s.pages, many_heads ? stride.page / stride.head : 1), s.kv_heads) > kMost32)
      return text(name, " has more than 2^31 places of heads");
  }
  return {};
}

int64_t row_groups_of(const StepPlan& p) { return p.groups * p.column_tiles * (p.columns / 16); }
int64_t arrivals_of(const StepPlan& p) {
  const int64_t counters = std::min(p.groups, p.parts) * p.column_tiles;
  return p.engine == Engine::kPrefill ? counters * (p.columns / 16) + kWorkCounters : counters;
}

StepLayout layout_of(const StepPlan& p) {
  const int64_t entries = p.every_token ? 0 : p.plan.capacities.entries;
  return {.index = index::index_layout(p.bundles, entries, p.lists),
          .scratch =
              scratch_layout(p.tasks, arrivals_of(p), p.parts * p.plan.capacities.group_rows,
                             p.plan.shape.v_head_dim, p.engine == Engine::kPrefill ? row_groups_of(p) : 0)};
}

uint64_t mark_of(const StepPlan& p) {
  Hash hash;
  for (const int64_t number :
       {static_cast<int64_t>(p.plan.fingerprint), p.bundles, p.groups, p.tasks, p.parts, p.column_tiles,
        p.plan.capacities.group_rows, p.plan.capacities.row_entries, int64_t{p.lists}, int64_t{p.columns},
        static_cast<int64_t>(p.load), static_cast<int64_t>(p.engine), int64_t{p.every_token}})
    hash.add(static_cast<uint64_t>(number));
  return hash.value();
}

uint64_t index_mark_of(const StepPlan& p) {
  Hash hash;
  for (const int64_t number :
       {static_cast<int64_t>(p.plan.fingerprint), p.bundles, int64_t{p.lists}, int64_t{p.every_token},
        p.plan.capacities.row_entries, p.places.an_entry, p.places.extra, p.places.listed, p.max_kv_len,
        p.query_block, static_cast<int64_t>(p.plan.path)})
    hash.add(static_cast<uint64_t>(number));
  return hash.value();
}

index::IndexMark index_mark(const StepPlan& plan, const Problem& p, const Shape& s) {
  Hash hash;
  for (const int64_t number :
       {s.requests, s.total_q, s.max_pages, s.pages, s.kv_rows, int64_t{p.mask.causal}, p.mask.window,
        p.mask.sink, int64_t{p.query.q_pos.present()}, int64_t{p.cache.page_table.present()}})
    hash.add(static_cast<uint64_t>(number));
  return {index_mark_of(plan), hash.value()};
}

Status check_memory(const Problem& p) {
  for (const auto& [name, t] : arrays_of(p)) {
    TAMIS_RETURN_IF_ERROR(need_memory(name, *t));
    TAMIS_RETURN_IF_ERROR(need_aligned(name, *t));
  }
  return {};
}

Status check_buffers(const StepPlan& plan, const StepBuffers& b) {
  const struct {
    const char* name;
    const void* data;
    int64_t bytes, needed;
  } buffers[] = {{"control", b.control, b.bytes.control, plan.bytes.control},
                 {"index", b.index, b.bytes.index, plan.bytes.index},
                 {"scratch", b.scratch, b.bytes.scratch, plan.bytes.scratch}};
  for (const auto& buffer : buffers) {
    if (buffer.data == nullptr) return invalid(buffer.name, "buffer is missing");
    if (reinterpret_cast<uintptr_t>(buffer.data) % 256 != 0)
      return invalid(buffer.name, "does not start on a multiple of 256 bytes");
    if (buffer.bytes < buffer.needed)
      return {Code::kWorkspaceTooSmall,
              text(buffer.name, ": ", buffer.bytes, " bytes, ", buffer.needed, " are needed"),
              {.value = buffer.bytes, .limit = buffer.needed}};
  }
  // Of what a step uses: there may be more.
  const auto begin = [](const auto& buffer) { return reinterpret_cast<uintptr_t>(buffer.data); };
  for (const auto& one : buffers)
    for (const auto& other : buffers)
      if (&one < &other && begin(one) < begin(other) + static_cast<uintptr_t>(other.needed) &&
          begin(other) < begin(one) + static_cast<uintptr_t>(one.needed))
        return invalid(other.name, "overlaps ", one.name);
  return {};
}

}  // namespace tamis::cuda
