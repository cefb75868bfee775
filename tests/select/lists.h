// Branches for the tests of select.h.
#pragma once

#include <rapidcheck.h>

#include <vector>

#include "tamis/select.h"

namespace tamis::testing {

struct List {
  std::vector<int32_t> entries;
  std::vector<float> scores;
};

// Views of the lists, which must outlive them: call with an lvalue, or inside one full expression.
inline std::vector<Branch> branches_of(const std::vector<List>& lists) {
  std::vector<Branch> branches;
  for (const List& list : lists) branches.push_back({list.entries, list.scores});
  return branches;
}

// Few positions and few scores, so that padding, repetition, overlap and ties are common.
inline std::vector<List> any_lists() {
  std::vector<List> lists(*rc::gen::inRange(0, 5));
  for (List& list : lists) {
    list.entries = *rc::gen::container<std::vector<int32_t>>(rc::gen::inRange(-1, 12));
    for (size_t i = 0; i < list.entries.size(); ++i) list.scores.push_back(*rc::gen::inRange(-40, 41) / 8.f);
  }
  return lists;
}

}  // namespace tamis::testing
