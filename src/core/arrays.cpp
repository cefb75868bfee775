// Contents of the small host arrays that every later stage indexes with.
#include <initializer_list>
#include <utility>

#include "core/source.h"
#include "core/tensor_checks.h"
#include "tamis/problem.h"

namespace tamis {
namespace {

int64_t entry(const TensorView& t, int64_t i) {
  return t.dtype == DType::kI64 ? t.at<int64_t>({i}) : t.at<int32_t>({i});
}

Status check_memory(std::initializer_list<std::pair<const char*, const TensorView*>> tensors) {
  for (const auto& [name, t] : tensors) TAMIS_RETURN_IF_ERROR(need_memory(name, *t));
  return {};
}

// Starts at 0 and never falls.
Status check_offsets(const char* name, const TensorView& t, bool from_zero) {
  if (from_zero && entry(t, 0) != 0) return invalid(name, "starts at ", entry(t, 0), ", not at 0");
  if (entry(t, 0) < 0) return invalid(name, "starts at ", entry(t, 0), ", below 0");
  for (int64_t i = 1; i < t.shape[0]; ++i)
    if (entry(t, i) < entry(t, i - 1))
      return invalid(name, "falls from ", entry(t, i - 1), " to ", entry(t, i), " at ", i);
  return {};
}

Status check_queries(const Problem& p, const Shape& s) {
  const TensorView& cu_q = p.query.cu_q;
  TAMIS_RETURN_IF_ERROR(check_offsets("cu_q", cu_q, true));
  const int64_t last = entry(cu_q, s.requests);
  if (!s.index_only && last != s.total_q)
    return invalid("cu_q", "ends at ", last, ", q has ", s.total_q, " rows");
  if (p.query.q_pos.present() && p.query.q_pos.shape[0] != last)
    return invalid("q_pos", p.query.q_pos.shape[0], " positions for ", last, " queries");
  return {};
}

Status check_lengths(const Problem& p, const Shape& s) {
  const CacheView& c = p.cache;
  const bool paged = c.page_table.present() && s.page_size > 0;
  if (c.cu_kv.present()) {
    TAMIS_RETURN_IF_ERROR(check_offsets("cu_kv", c.cu_kv, false));
    if (!s.index_only && entry(c.cu_kv, s.requests) > s.kv_rows)
      return invalid("cu_kv", "ends at ", entry(c.cu_kv, s.requests), ", k has ", s.kv_rows, " rows");
  }
  for (int64_t b = 0; b < s.requests; ++b) {
    const int64_t length = entry(c.kv_len, b);
    if (length < 0) return invalid("kv_len", length, " of request ", b, " is negative");
    // Counted in pages, so that no product can overflow.
    if (paged && length > 0 && (length - 1) / s.page_size >= s.max_pages)
      return {
          Code::kInvalidArgument,
          text("kv_len: ", length, " of request ", b, " exceeds ", s.max_pages, " pages of ", s.page_size),
          {.request = b, .value = length, .limit = s.max_pages * s.page_size + 1}};
    if (!c.cu_kv.present()) continue;
    if (const int64_t held = entry(c.cu_kv, b + 1) - entry(c.cu_kv, b); length > held)
      return {Code::kInvalidArgument,
              text("kv_len: ", length, " of request ", b, " exceeds its ", held, " rows of cu_kv"),
              {.request = b, .value = length, .limit = held + 1}};
  }
  return {};
}

constexpr const char* kRowsAre = " (query blocks of all requests x index_heads)";

Status check_candidate_rows(const Problem& p) {
  const CandidateView& c = p.candidates;
  const int64_t rows = count_query_blocks(p) * c.index_heads;
  if (c.form == CandidateForm::kCsr) {
    if (c.indptr.shape[0] != rows + 1)
      return invalid("cand_indptr", c.indptr.shape[0], " offsets for ", rows, " rows", kRowsAre);
    TAMIS_RETURN_IF_ERROR(check_offsets("cand_indptr", c.indptr, true));
    const int64_t last = entry(c.indptr, rows);
    if (last != c.indices.shape[0])
      return invalid("cand_indptr", "ends at ", last, ", cand_indices has ", c.indices.shape[0], " entries");
  }
  if (c.form == CandidateForm::kFixedWidth) {
    if (c.indices.shape[0] != rows)
      return invalid("cand_indices", c.indices.shape[0], " rows, expected ", rows, kRowsAre);
    for (int64_t r = 0; c.count.present() && r < rows; ++r)
      if (entry(c.count, r) < 0 || entry(c.count, r) > c.indices.shape[1])
        return {Code::kInvalidArgument,
                text("cand_count: ", entry(c.count, r), " of row ", r, " is outside [0, ", c.indices.shape[1],
                     "]"),
                {.row = r, .value = entry(c.count, r), .limit = c.indices.shape[1] + 1}};
  }
  return {};
}

}  // namespace

Status check_arrays(const Problem& problem, const Shape& shape) {
  const CacheView& cache = problem.cache;
  const CandidateView& c = problem.candidates;
  TAMIS_RETURN_IF_ERROR(check_memory({{"cu_q", &problem.query.cu_q},
                                      {"q_pos", &problem.query.q_pos},
                                      {"kv_len", &cache.kv_len},
                                      {"cu_kv", &cache.cu_kv},
                                      {"page_table", &cache.page_table},
                                      {"page_stamps", &cache.page_stamps},
                                      {"table_stamps", &cache.table_stamps},
                                      {"cand_indptr", &c.indptr},
                                      {"cand_indices", &c.indices},
                                      {"cand_count", &c.count},
                                      {"alibi_slopes", &problem.score.alibi_slopes}}));
  TAMIS_RETURN_IF_ERROR(check_queries(problem, shape));
  TAMIS_RETURN_IF_ERROR(check_lengths(problem, shape));
  return check_candidate_rows(problem);
}

Status check_values(const Problem& problem) {
  const CacheView& cache = problem.cache;
  return check_memory({{"q", &problem.query.q},
                       {"k", &cache.k},
                       {"v", &cache.v},
                       {"k_scale", &cache.k_quant.scale},
                       {"v_scale", &cache.v_quant.scale}});
}

uint64_t source_stamp(const Problem& problem, const Shape& shape) {
  uint64_t hash = 0xCBF29CE484222325ull;  // FNV-1a, a word at a time
  const auto add = [&](int64_t x) { hash = (hash ^ static_cast<uint64_t>(x)) * 0x100000001B3ull; };
  for (const int64_t x : {shape.requests, shape.total_q, shape.page_size, shape.q_heads, shape.kv_heads,
                          shape.index_heads, problem.mask.window, problem.mask.sink})
    add(x);
  add(problem.mask.causal);
  for (const TensorView* t :
       {&problem.query.cu_q, &problem.query.q_pos, &problem.cache.kv_len, &problem.cache.cu_kv})
    for (int64_t i = 0; t->present() && i < t->shape[0]; ++i) add(entry(*t, i));
  return hash;
}

int64_t count_query_blocks(const Problem& problem) {
  const TensorView& cu_q = problem.query.cu_q;
  int64_t blocks = 0;
  for (int64_t b = 0; b + 1 < cu_q.shape[0]; ++b) {
    const int64_t queries = entry(cu_q, b + 1) - entry(cu_q, b);
    if (queries > 0) blocks += (queries - 1) / problem.candidates.query_block + 1;
  }
  return blocks;
}

}  // namespace tamis
