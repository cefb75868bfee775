// Raw candidate rows: which tokens a selector offers to each query, before anything is merged, sorted or
// checked.
//
// A request's queries are cut into query blocks of `query_block`; a candidate row is (query block, index
// head), numbered query block * index_heads + index head, requests in order. An entry e names the tokens [e *
// unit, e * unit + unit) below kv_len; -1 is padding. docs/semantics.md section 3 is the whole contract.
#pragma once

#include <cstdint>

#include "tamis/tensor.h"

namespace tamis {

enum class CandidateForm : uint8_t {
  kCsr,         // indptr [rows + 1] i32 or i64, indices [nnz] i32
  kFixedWidth,  // indices [rows, K] i32, optional count [rows] i32; entries past count are never candidates
  kNone,        // no dynamic candidates: window and sink only
  kAll,         // every token, as if each were listed: full attention
};

enum class OnDuplicate : uint8_t { kMerge, kReject };
enum class OnInvalid : uint8_t { kReject, kDrop };
enum class Semantics : uint8_t {
  kSet,
  kSequence,
  kMultiset
};  // only kSet is computed, the others are refused

struct CandidateView {
  CandidateForm form = CandidateForm::kNone;
  TensorView indptr{}, indices{}, count{};
  int64_t unit = 1;         // tokens an entry stands for
  int64_t query_block = 1;  // queries that share a row
  int64_t index_heads = 1;  // 1, kv_heads or q_heads
  OnDuplicate duplicates = OnDuplicate::kMerge;
  OnInvalid invalid = OnInvalid::kReject;
  Semantics semantics = Semantics::kSet;

  static CandidateView all() { return {.form = CandidateForm::kAll}; }
};

// What became of the raw entries: raw = padding + invalid + duplicates + unique. kNone and kAll list no
// entries.
struct CandidateCounts {
  int64_t raw = 0, padding = 0, invalid = 0, duplicates = 0, unique = 0;
};

}  // namespace tamis
