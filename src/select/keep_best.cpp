// The budget: the best entries of a scored list. Time is linear in the list on average, plus sorting what is
// kept.
#include <algorithm>
#include <limits>

#include "tamis/select.h"

namespace tamis {

std::vector<int32_t> keep_best(const ScoredList& list, int64_t budget) {
  struct Scored {
    float score;
    int32_t position;
  };
  std::vector<Scored> eligible;
  const size_t count = std::min(list.entries.size(), list.scores.size());
  for (size_t i = 0; i < count; ++i)
    // Also false for NaN, which must not take part: with it the order below would be none.
    if (list.scores[i] > -std::numeric_limits<float>::infinity())
      eligible.push_back({list.scores[i], list.entries[i]});

  const auto kept =
      static_cast<size_t>(std::clamp<int64_t>(budget, 0, static_cast<int64_t>(eligible.size())));
  // Positions are unique, so this is a total order and the kept set does not depend on the selection
  // algorithm. Compared as numbers, not bits: -0.0 and +0.0 tie.
  const auto better = [](const Scored& a, const Scored& b) {
    return a.score != b.score ? a.score > b.score : a.position < b.position;
  };
  if (kept < eligible.size())
    std::nth_element(eligible.begin(), eligible.begin() + kept, eligible.end(), better);

  std::vector<int32_t> best(kept);
  for (size_t i = 0; i < kept; ++i) best[i] = eligible[i].position;
  std::sort(best.begin(), best.end());
  return best;
}

}  // namespace tamis
