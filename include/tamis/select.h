// Joining candidate branches before normalization: explicit functions, because each changes the set.
//
// A branch is one candidate list of a row, with or without scores. Positions are entries (tokens or blocks of
// `unit`), -1 is padding and is skipped. Nothing here reads K or V.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tamis/problem.h"
#include "tamis/status.h"

namespace tamis {

struct Branch {
  std::span<const int32_t> entries;
  std::span<const float> scores{};  // as many as entries, or none
};

// How the scores of one position in several branches become one. kReplace: the later branch wins.
enum class ScoreJoin : uint8_t { kMax, kSum, kReplace };

struct ScoredList {
  std::vector<int32_t> entries;  // ascending, unique
  std::vector<float> scores;     // of each
};

// Every entry of any branch once, ascending. Fails with index_out_of_range on an entry below -1.
Result<std::vector<int32_t>> join_union(std::span<const Branch> branches);

// Every position of any branch once, with its joined score. A position repeated inside one branch joins with
// itself by the same rule. NaN scores are skipped for kMax and refused (invalid_argument) for the others.
Result<ScoredList> join_scored(std::span<const Branch> branches, ScoreJoin rule);

// The `budget` best by score, ties to the lower position; ascending. -inf is never chosen.
std::vector<int32_t> keep_best(const ScoredList& list, int64_t budget);

// Candidate rows that own their arrays, CSR.
struct CandidateRows {
  std::vector<int64_t> indptr;
  std::vector<int32_t> indices;
  CandidateView view(const CandidateView& like) const;  // policies and units of `like`, arrays of this
};

// Joins the private lists of the query heads of each KV head into one list per KV head: index_heads q_heads
// becomes kv_heads. An explicit function because every query head then attends to the union.
Result<CandidateRows> group_union(const Problem& problem);

}  // namespace tamis
