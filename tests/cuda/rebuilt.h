// What was fetched from the device, beside what the host makes.
#pragma once

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "tamis/cuda.h"

namespace tamis::testing {

// A BundleView of fetched bundles, as far as schedule() reads one.
class Rebuilt {
 public:
  Rebuilt(const cuda::StepPlan& plan, const cuda::FetchedStep& from) {
    const int64_t heads = plan.plan.shape.index_heads;
    for (size_t i = 0; i < from.bundles.size(); ++i) {
      const cuda::FetchedBundle& b = from.bundles[i];
      if (b.request < 0) continue;
      const int32_t part = static_cast<int32_t>(i) % plan.bundles_a_block;
      bundle_.push_back({.request = b.request,
                         .kv_head = part * plan.kv_heads_served,
                         .kv_heads = plan.kv_heads_served,
                         .first_list = static_cast<int32_t>(rows_.size()),
                         .lists = plan.lists,
                         .count = static_cast<int32_t>(b.blocks.size()),
                         .begin = static_cast<int64_t>(blocks_.size()),
                         .members_at = static_cast<int64_t>(members_.size())});
      blocks_.insert(blocks_.end(), b.blocks.begin(), b.blocks.end());
      members_.insert(members_.end(), b.members.begin(), b.members.end());
      for (int32_t l = 0; l < plan.lists; ++l) {
        rows_.push_back(static_cast<int32_t>(row_.size()));
        const int64_t head = heads == 1 ? 0 : int64_t{part} * plan.lists + l;
        row_.push_back({b.request, static_cast<int32_t>(head), b.first_query, b.last_query});
      }
    }
    view_ = {.bundles = static_cast<int64_t>(bundle_.size()),
             .entries = static_cast<int64_t>(blocks_.size()),
             .block = plan.plan.block,
             .words = 1,
             .max_lists = plan.lists,
             .bundle = bundle_.data(),
             .rows = rows_.data(),
             .row = row_.data(),
             .blocks = blocks_.data(),
             .members = members_.data()};
  }
  const BundleView& view() const { return view_; }

 private:
  std::vector<Bundle> bundle_;
  std::vector<int32_t> rows_, blocks_;
  std::vector<RowInfo> row_;
  std::vector<uint64_t> members_;
  BundleView view_;
};

// The first difference between the host's bundles and the fetched ones; empty when there is none. `seen`: the
// host's bundles of the same problem that hold only blocks of which some query sees a token. The host places
// all blocks of a touched page, the device those that are seen.
inline std::string unlike_bundles(const cuda::StepPlan& plan, const BundleView& want, const BundleView& seen,
                                  const cuda::FetchedStep& got) {
  std::ostringstream text;
  if (static_cast<int64_t>(got.bundles.size()) < want.bundles) return "too few bundles";
  for (size_t i = 0; i < got.bundles.size(); ++i) {
    const cuda::FetchedBundle& have = got.bundles[i];
    text.str("");
    text << "bundle " << i << ": ";
    if (static_cast<int64_t>(i) >= want.bundles) {
      if (have.request != -1 || !have.blocks.empty()) return text.str() + "is none of this step";
      continue;
    }
    const Bundle& b = want.bundle[i];
    const RowInfo& row = want.row[want.rows[b.first_list]];
    if (b.lists != plan.lists) return text.str() + "the host has other lists";
    if (have.request != b.request) return text.str() + "request";
    if (have.first_query != row.first_query || have.last_query != row.last_query)
      return text.str() + "queries";
    if (have.blocks != std::vector<int32_t>(want.blocks + b.begin, want.blocks + b.begin + b.count))
      return text.str() + "blocks";
    const uint64_t* words = want.members + b.members_at;
    // Where every token is a candidate there is no list, hence no words.
    if (!plan.every_token && have.members != std::vector<uint64_t>(words, words + int64_t{b.count} * b.lists))
      return text.str() + "member words";
    const int64_t page = plan.plan.shape.page_size;
    if (have.slots.size() != have.blocks.size()) return text.str() + "as many slots as blocks";
    for (int32_t j = 0; j < b.count; ++j) {
      const int64_t e = b.begin + j;
      if (plan.every_token) break;  // the kernel asks the page table itself
      const Bundle& s = seen.bundle[i];
      const bool touched =
          std::binary_search(seen.blocks + s.begin, seen.blocks + s.begin + s.count, have.blocks[j]);
      if (page == 0 && !touched) continue;  // of no concern: nobody reads there
      const int64_t slot = touched && page % plan.plan.block == 0 ? want.spans[want.span_begin[e]].slot : -1;
      if (have.slots[j] == slot) continue;
      text << "block " << have.blocks[j] << " is at slot " << have.slots[j] << ", not " << slot;
      return text.str();
    }
  }
  return {};
}

inline std::string unlike_schedules(const Schedule& want, const cuda::FetchedStep& got) {
  std::ostringstream text;
  if (got.tasks.size() != want.tasks.size()) {
    text << got.tasks.size() << " tasks, not " << want.tasks.size();
    return text.str();
  }
  for (size_t i = 0; i < want.tasks.size(); ++i) {
    const Task &a = got.tasks[i], &b = want.tasks[i];
    if (a.bundle == b.bundle && a.kv_head == b.kv_head && a.begin == b.begin && a.end == b.end &&
        a.part == b.part)
      continue;
    text << "task " << i << " is bundle " << a.bundle << " head " << a.kv_head << " blocks " << a.begin
         << " to " << a.end << " part " << a.part << ", not " << b.bundle << ' ' << b.kv_head << ' '
         << b.begin << ' ' << b.end << ' ' << b.part;
    return text.str();
  }
  if (got.merges.size() != want.merges.size()) {
    text << got.merges.size() << " merges, not " << want.merges.size();
    return text.str();
  }
  for (size_t i = 0; i < want.merges.size(); ++i) {
    const MergeItem &a = got.merges[i], &b = want.merges[i];
    if (a.bundle == b.bundle && a.kv_head == b.kv_head && a.first_part == b.first_part && a.parts == b.parts)
      continue;
    text << "merge " << i << " is of another group or of other parts";
    return text.str();
  }
  return {};
}

}  // namespace tamis::testing
