// Union and scored join of the branches of one row. Both gather all n entries and sort them: O(n log n) time
// and O(n) memory, whatever the length of the request.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/checks.h"
#include "tamis/select.h"

namespace tamis {
namespace {

// Entries are named as they will be called once they are candidates.
Status check_entry(size_t branch, int32_t entry) {
  if (entry >= -1) return {};
  return {Code::kIndexOutOfRange,
          text("cand_indices: branch ", branch, " holds ", entry, ", below the padding -1"),
          {.value = entry}};
}

Status check_scores(size_t number, const Branch& branch, bool required) {
  if (branch.scores.size() == branch.entries.size() || (branch.scores.empty() && !required)) return {};
  return invalid("scores", branch.scores.size(), " scores for ", branch.entries.size(), " entries of branch ",
                 number);
}

struct Scored {
  int32_t position;
  float score;
};

float join_scores(ScoreJoin rule, float earlier, float later) {
  switch (rule) {
    case ScoreJoin::kMax:
      return later > earlier ? later : earlier;
    case ScoreJoin::kSum:
      return earlier + later;
    case ScoreJoin::kReplace:
      break;
  }
  return later;
}

// All entries but padding, branch by branch.
Result<std::vector<Scored>> gather(std::span<const Branch> branches, ScoreJoin rule) {
  std::vector<Scored> all;
  for (size_t number = 0; number < branches.size(); ++number) {
    const Branch& branch = branches[number];
    TAMIS_RETURN_IF_ERROR(check_scores(number, branch, true));
    for (size_t i = 0; i < branch.entries.size(); ++i) {
      const int32_t position = branch.entries[i];
      TAMIS_RETURN_IF_ERROR(check_entry(number, position));
      if (position == -1) continue;  // what stands beside padding is no score
      float score = branch.scores[i];
      if (std::isnan(score)) {
        if (rule != ScoreJoin::kMax)
          return Status(Code::kInvalidArgument,
                        text("scores: the score of ", position, " in branch ", number, " is NaN"),
                        {.value = position});
        // The score is skipped, not the position: the maximum over no score is -inf, so a position that has
        // only NaN stays listed, and keep_best never takes it.
        score = -std::numeric_limits<float>::infinity();
      }
      all.push_back({position, score});
    }
  }
  return all;
}

}  // namespace

// Scores, if any, play no part.
Result<std::vector<int32_t>> join_union(std::span<const Branch> branches) {
  std::vector<int32_t> all;
  for (size_t number = 0; number < branches.size(); ++number) {
    TAMIS_RETURN_IF_ERROR(check_scores(number, branches[number], false));
    for (const int32_t entry : branches[number].entries) {
      TAMIS_RETURN_IF_ERROR(check_entry(number, entry));
      if (entry != -1) all.push_back(entry);
    }
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

Result<ScoredList> join_scored(std::span<const Branch> branches, ScoreJoin rule) {
  Result<std::vector<Scored>> all = gather(branches, rule);
  if (!all.ok()) return all.status();
  // Stable, so that scores of one position meet in the order of branches and entries: "later" has a meaning,
  // and a sum has the same bits every time.
  std::stable_sort(all->begin(), all->end(),
                   [](const Scored& a, const Scored& b) { return a.position < b.position; });
  ScoredList list;
  for (const Scored& next : *all) {
    if (list.entries.empty() || list.entries.back() != next.position) {
      list.entries.push_back(next.position);
      list.scores.push_back(next.score);
      continue;
    }
    float& score = list.scores.back();
    score = join_scores(rule, score, next.score);
    // NaN made here, of +inf and -inf, is refused like NaN given.
    if (std::isnan(score))
      return Status(Code::kInvalidArgument,
                    text("scores: the scores of ", next.position, " sum to NaN (+inf and -inf)"),
                    {.value = next.position});
  }
  return list;
}

}  // namespace tamis
