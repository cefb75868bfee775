// A normalize of the device followed on the host, and its index set beside the host's own.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "attention/step_args.h"
#include "emulated/emulate.h"
#include "tamis/bundle.h"
#include "tamis/cuda.h"

namespace tamis::testing {

// Device buffers on the host, full of 0xFF. Only the index is written, and behind it is a fence.
class Emulated {
 public:
  // `in_memory`: blocks and member words are gathered in the index set even where shared memory would do.
  // staged: entries that are, at most, where that is so.
  Emulated(const Problem& p, const cuda::StepPlan& made, bool in_memory = false, int64_t staged = 4096)
      : plan(made) {
    memory_.assign(static_cast<size_t>(plan.bytes.index) + kFence + 256, '\xFF');
    void* at = memory_.data();
    size_t room = memory_.size();
    std::align(256, static_cast<size_t>(plan.bytes.index), at, room);
    fence_ = static_cast<const char*>(at) + plan.bytes.index;
    const cuda::StepBuffers buffers{nullptr, at, nullptr, plan.bytes};
    index::NormalizeShared shared = cuda::shared_of(plan, p.candidates);
    if (in_memory)
      shared = index::normalize_shared(plan.max_kv_len, plan.plan.block, plan.plan.capacities.row_entries,
                                       plan.lists, std::min<int64_t>(shared.staged, staged), 0);
    const index::NormalizeArgs args = cuda::normalize_args(plan, p, *describe(p), buffers, shared);
    std::vector<uint64_t> scratch(static_cast<size_t>(shared.bytes) / 8 + 1, 0x5A5A5A5A5A5A5A5Au);
    emulate_normalize(args, shared, reinterpret_cast<char*>(scratch.data()));
    index = args.out;
    plain = index::is_plain(args, shared);
  }
  cuda::StepPlan plan;
  index::DeviceIndex index{};
  bool plain = false;

  // The first offence over all bundles.
  Status verdict() const {
    int32_t first = -1;
    for (int32_t b = 0; b < index.bundles; ++b)
      if (index.offence[b] != index::kNoOffence && (first < 0 || index.offence[b] < index.offence[first]))
        first = b;
    return first < 0 ? Status() : Status(static_cast<Code>(index.record[first].code), "on the device");
  }

  bool fence_stands() const {
    return std::all_of(fence_, fence_ + kFence, [](char x) { return x == '\xFF'; });
  }

 private:
  static constexpr int64_t kFence = 4096;
  std::vector<char> memory_;
  const char* fence_ = nullptr;
};

// `seen`: the host's bundles that hold only blocks of which some query sees a token.
inline void expect_bundle(const Emulated& e, const BundleView& want, const BundleView& seen, int32_t b) {
  const Bundle& w = want.bundle[b];
  ASSERT_EQ(e.index.count[b], w.count);
  EXPECT_EQ(e.index.bundle[b].request, w.request);
  const int64_t first = e.index.bundle[b].begin;
  for (int32_t j = 0; j < w.count; ++j) {
    ASSERT_EQ(e.index.blocks[first + j], want.blocks[w.begin + j]) << "entry " << j;
    for (int32_t l = 0; l < w.lists; ++l)
      ASSERT_EQ(e.index.members[(first + j) * w.lists + l],
                want.members[w.members_at + int64_t{j} * w.lists + l])
          << "entry " << j << ", list " << l;
    const Bundle& s = seen.bundle[b];
    const bool touched =
        std::binary_search(seen.blocks + s.begin, seen.blocks + s.begin + s.count, e.index.blocks[first + j]);
    const int64_t page = e.plan.plan.shape.page_size;
    if (!touched || (page > 0 && page % e.plan.plan.block != 0)) {
      ASSERT_EQ(e.index.places[first + j], index::kUntouched) << "entry " << j;
      continue;
    }
    const int64_t slot = int64_t{e.index.places[first + j]} * e.plan.plan.block + e.index.bundle[b].base_slot;
    ASSERT_EQ(slot, want.spans[want.span_begin[w.begin + j]].slot) << "entry " << j;
  }
}

// Verdict, bundles and counts against those of the host. Bundles past the host's are none of this step.
inline void expect_like_host(const Emulated& e, const Problem& p) {
  EXPECT_TRUE(e.fence_stands());
  const bool dense = e.plan.plan.path == Path::kDense;
  const Result<IndexSet> index = normalize(p, {.block = e.plan.plan.block, .all_blocks = dense});
  ASSERT_EQ(e.verdict().code(), index.status().code()) << index.status().message();
  if (!index.ok()) return;
  const Result<IndexSet> touched = normalize(p, {.block = e.plan.plan.block});
  const Result<Bundles> want = bundle(p, *index, {.policy = BundlePolicy::kHeads}),
                        seen = bundle(p, *touched, {.policy = BundlePolicy::kHeads});
  ASSERT_TRUE(want.ok() && seen.ok());
  int64_t raw = 0, unique = 0, duplicates = 0, future = 0;
  for (int32_t b = 0; b < e.index.bundles; ++b) {
    SCOPED_TRACE(::testing::Message() << "bundle " << b);
    if (b < want->view().bundles)
      expect_bundle(e, want->view(), seen->view(), b);
    else
      EXPECT_EQ(e.index.count[b], -1);
    if (::testing::Test::HasFailure()) return;
    raw += e.index.counts[b].raw;
    unique += e.index.counts[b].unique;
    duplicates += e.index.counts[b].duplicates;
    future += e.index.counts[b].future;
  }
  EXPECT_EQ(raw, index->stats().counts.raw);
  EXPECT_EQ(unique, index->stats().counts.unique);
  EXPECT_EQ(duplicates, index->stats().counts.duplicates);
  EXPECT_EQ(future, index->stats().future);
}

}  // namespace tamis::testing
