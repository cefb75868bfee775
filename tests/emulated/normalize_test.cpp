// The device's way to an index set, followed on the host: the same blocks, words, places and counts as the
// host's own way. Runs where there is no device; what only a device can show (races, memory order) is
// tests/cuda's.
#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "attention/step_args.h"
#include "cuda/draw.h"
#include "emulated/emulate.h"
#include "tamis/bundle.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

// Device buffers on the host. Only the index is written.
class Emulated {
 public:
  Emulated(const Problem& p, const cuda::StepPlan& made) : plan(made) {
    memory_.assign(static_cast<size_t>(plan.bytes.index) + 256, '\xFF');
    void* at = memory_.data();
    size_t room = memory_.size();
    std::align(256, static_cast<size_t>(plan.bytes.index), at, room);
    const cuda::StepBuffers buffers{nullptr, at, nullptr, plan.bytes};
    const index::NormalizeShared shared = cuda::shared_of(plan, p.candidates);
    const index::NormalizeArgs args = cuda::normalize_args(plan, p, *describe(p), buffers, shared);
    std::vector<uint64_t> scratch(static_cast<size_t>(shared.bytes) / 8 + 1, 0x5A5A5A5A5A5A5A5Au);
    emulate_normalize(args, shared, reinterpret_cast<char*>(scratch.data()));
    index = args.out;
    plain = index::is_plain(args, shared);
  }
  cuda::StepPlan plan;
  index::DeviceIndex index{};
  bool plain = false;

 private:
  std::vector<char> memory_;
};

// The first offence over all bundles: its code, kOk where there is none.
Code verdict_of(const index::DeviceIndex& index) {
  int32_t first = -1;
  for (int32_t b = 0; b < index.bundles; ++b)
    if (index.offence[b] != index::kNoOffence && (first < 0 || index.offence[b] < index.offence[first]))
      first = b;
  return first < 0 ? Code::kOk : static_cast<Code>(index.record[first].code);
}

void expect_bundle(const Emulated& e, const BundleView& want, const BundleView& seen, int32_t b) {
  const Bundle& w = want.bundle[b];
  ASSERT_EQ(e.index.count[b], w.count);
  EXPECT_EQ(e.index.bundle[b].request, w.request);
  const int64_t first = b * e.index.capacity;
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

TEST(EmulatedNormalize, GivesTheIndexSetOfTheHost) {
  int64_t plain = 0, lists = 0, all = 0;
  for (int64_t number = first_problem(); number < first_problem() + 6 * problems(); ++number) {
    Dice d(number);
    const TestProblem t = draw_problem(d, false);
    const cuda::StepOptions o = draw_options(d);
    const Problem& p = t.problem;
    if (p.candidates.form == CandidateForm::kAll) continue;  // no list
    SCOPED_TRACE(::testing::Message() << "TAMIS_CUDA_FIRST=" << number);
    const Result<cuda::StepPlan> plan = cuda::plan_step(p, o);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const Emulated e(p, *plan);
    const bool dense = plan->plan.path == Path::kDense;
    const Result<IndexSet> index = normalize(p, {.block = plan->plan.block, .all_blocks = dense});
    ASSERT_EQ(verdict_of(e.index), index.status().code()) << index.status().message();
    if (!index.ok()) continue;
    const Result<IndexSet> touched = normalize(p, {.block = plan->plan.block});
    const Result<Bundles> want = bundle(p, *index, {.policy = BundlePolicy::kHeads}),
                          seen = bundle(p, *touched, {.policy = BundlePolicy::kHeads});
    ASSERT_TRUE(want.ok() && seen.ok());
    for (int32_t b = 0; b < e.index.bundles; ++b) {
      SCOPED_TRACE(::testing::Message() << "bundle " << b);
      if (b < want->view().bundles)
        expect_bundle(e, want->view(), seen->view(), b);
      else
        EXPECT_EQ(e.index.count[b], -1);
      if (HasFailure()) return;
    }
    int64_t raw = 0, unique = 0, duplicates = 0, future = 0;
    for (int32_t b = 0; b < e.index.bundles; ++b) {
      raw += e.index.counts[b].raw;
      unique += e.index.counts[b].unique;
      duplicates += e.index.counts[b].duplicates;
      future += e.index.counts[b].future;
    }
    EXPECT_EQ(raw, index->stats().counts.raw);
    EXPECT_EQ(unique, index->stats().counts.unique);
    EXPECT_EQ(duplicates, index->stats().counts.duplicates);
    EXPECT_EQ(future, index->stats().future);
    if (HasFailure()) return;
    plain += e.plain;
    lists += e.index.lists > 1;
    all += dense;
  }
  // The instances that matter were all met.
  EXPECT_GT(plain, 0);
  EXPECT_GT(lists, 0);
  EXPECT_GT(all, 0);
}

}  // namespace
}  // namespace tamis
