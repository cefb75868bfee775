// tamis_problem to Problem and back. Views only: no array is copied.
#pragma once

#include "tamis/problem.h"
#include "tamis/tamis_c.h"

namespace tamis::capi {

// What a call reads behind the tensors: each step includes the one before.
enum class Reads { kShapes, kLists, kValues, kGradients };

// Refuses a struct of unknown size, numbers that are none of their enum, and a NULL or misaligned array that
// the call would read; the rest is describe()'s to judge.
Status read_problem(const tamis_problem* from, Reads reads, Problem* to);

// For what is no part of a problem: results, and what they are written by.
Status read_tensor(const char* name, const tamis_tensor& from, bool read, MutableTensorView* to);
Status read_tensor(const char* name, const tamis_tensor& from, bool read, TensorView* to);

// NULL leaves the view absent.
template <class View>
Status read_optional(const char* name, const tamis_tensor* from, bool read, View* to) {
  return from == nullptr ? Status() : read_tensor(name, *from, read, to);
}

// The options alone; tensors and index_only are absent.
tamis_problem write_options(const Problem& from);
tamis_tensor write_tensor(const TensorView& from);
tamis_index_only write_index_only(const IndexOnly& from);

// Calls f(name, tensor pointer, view, least Reads of a call that reads its array) for every tensor of a
// problem.
template <class C, class View, class F>
void for_each_tensor(C& c, View& p, F f) {
  f("q", c.query.q, p.query.q, Reads::kValues);
  f("cu_q", c.query.cu_q, p.query.cu_q, Reads::kLists);
  f("q_pos", c.query.q_pos, p.query.q_pos, Reads::kLists);
  f("k", c.cache.k, p.cache.k, Reads::kValues);
  f("v", c.cache.v, p.cache.v, Reads::kValues);
  f("kv_len", c.cache.kv_len, p.cache.kv_len, Reads::kLists);
  f("page_table", c.cache.page_table, p.cache.page_table, Reads::kLists);
  f("cu_kv", c.cache.cu_kv, p.cache.cu_kv, Reads::kLists);
  f("page_stamps", c.cache.page_stamps, p.cache.page_stamps, Reads::kLists);
  f("table_stamps", c.cache.table_stamps, p.cache.table_stamps, Reads::kLists);
  f("k_scale", c.cache.k_quant.scale, p.cache.k_quant.scale, Reads::kValues);
  f("v_scale", c.cache.v_quant.scale, p.cache.v_quant.scale, Reads::kValues);
  f("cand_indptr", c.candidates.indptr, p.candidates.indptr, Reads::kLists);
  f("cand_indices", c.candidates.indices, p.candidates.indices, Reads::kLists);
  f("cand_count", c.candidates.count, p.candidates.count, Reads::kLists);
  f("alibi_slopes", c.score.alibi_slopes, p.score.alibi_slopes, Reads::kValues);
  f("d_out", c.gradients.d_out, p.gradients.d_out, Reads::kGradients);
  f("d_lse", c.gradients.d_lse, p.gradients.d_lse, Reads::kGradients);
}
inline constexpr int kProblemTensors = 18;

}  // namespace tamis::capi
