// group_union: private lists of query heads become one list per KV head.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <set>

#include "support/expect.h"
#include "support/problems.h"
#include "tamis/select.h"

namespace tamis {
namespace {

using namespace testing;

// 4 query heads, 2 KV heads, a list for each query head.
TestProblem private_lists(Spec spec = {}) {
  spec.q_heads = 4;
  spec.kv_heads = 2;
  TestProblem t(std::move(spec));
  t.problem.candidates.index_heads = 4;
  t.problem.mask.causal = false;
  return t;
}

Rows joined_rows(const Problem& problem) {
  const auto joined = group_union(problem);
  EXPECT_TRUE(joined.ok()) << joined.status().message();
  Rows rows;
  for (size_t r = 0; joined.ok() && r + 1 < joined->indptr.size(); ++r)
    rows.emplace_back(joined->indices.begin() + joined->indptr[r],
                      joined->indices.begin() + joined->indptr[r + 1]);
  return rows;
}

Status refusal(const Problem& problem) { return group_union(problem).status(); }

const Rows kPrivate{{5, -1, 3}, {3, 0}, {}, {7, 7, -1}}, kJoined{{0, 3, 5}, {7}};

TEST(GroupUnion, OneListPerKvHead) {
  EXPECT_EQ(joined_rows(private_lists().csr(kPrivate).problem), kJoined);
  EXPECT_EQ(joined_rows(private_lists().csr64(kPrivate).problem), kJoined);
}

TEST(GroupUnion, FixedWidthStopsAtTheCount) {
  const Rows rows{{5, -1, 3, 1}, {3, 0, 6, 6}, {2, 2, 2, 2}, {7, 7, -1, 4}};
  EXPECT_EQ(joined_rows(private_lists().fixed(rows, {3, 2, 0, 3}).problem), kJoined);
  EXPECT_EQ(joined_rows(private_lists().fixed(rows).problem), (Rows{{0, 1, 3, 5, 6}, {2, 4, 7}}));
  auto t = private_lists();
  t.fixed(rows, {3, 2, 0, 3});
  const auto joined = group_union(t.problem);
  ASSERT_TRUE(joined.ok());
  t.problem.candidates = joined->view(t.problem.candidates);
  EXPECT_TRUE(reference::build_sets(t.problem).ok()) << "the view is CSR and has no counts";
}

TEST(GroupUnion, EveryQueryHeadAttendsToTheUnion) {
  auto t = private_lists();
  t.csr(kPrivate);
  const auto before = answer(t.problem);
  const auto joined = group_union(t.problem);
  ASSERT_TRUE(joined.ok());
  t.problem.candidates = joined->view(t.problem.candidates);
  EXPECT_EQ(t.problem.candidates.index_heads, 2);
  const auto after = answer(t.problem);
  ASSERT_EQ(after.output.out.size(), before.output.out.size());
  // V[t] = t and K = 0: outputs are means of positions.
  const double private_means[] = {4, 1.5, 0, 7}, joined_means[] = {8. / 3, 8. / 3, 7, 7};
  for (int h = 0; h < 4; ++h) {
    EXPECT_NEAR(before.output.out[h * 4], private_means[h], 1e-12) << h;
    EXPECT_NEAR(after.output.out[h * 4], joined_means[h], 1e-12) << h;
  }
}

// Requests without queries, short last query blocks, units: rows are counted as the contract says.
TEST(GroupUnion, RowsOfSeveralRequests) {
  auto t = private_lists({.kv_len = {8, 5, 40}, .q_len = {3, 0, 1}});
  t.problem.candidates.query_block = 2;
  t.problem.candidates.unit = 16;
  t.csr({{0}, {0}, {}, {0}, {}, {}, {0}, {}, {0}, {2}, {1}, {1, 2}});
  const auto joined = group_union(t.problem);
  ASSERT_TRUE(joined.ok()) << joined.status().message();
  EXPECT_EQ(joined_rows(t.problem), (Rows{{0}, {0}, {}, {0}, {0, 2}, {1, 2}}));
  const CandidateView view = joined->view(t.problem.candidates);
  EXPECT_EQ(view.unit, 16);
  EXPECT_EQ(view.query_block, 2);
  t.problem.candidates = view;
  EXPECT_TRUE(reference::build_sets(t.problem).ok());
}

// Out of range is judged after the join, by the policy, and not lost in it.
TEST(GroupUnion, KeepsWhatIsOutOfRange) {
  for (const int32_t bad : {8, -2, INT32_MAX, INT32_MIN}) {
    auto t = private_lists();
    t.csr({{1, bad, bad}, {bad}, {}, {2}});
    const auto joined = group_union(t.problem);
    ASSERT_TRUE(joined.ok()) << joined.status().message();
    t.problem.candidates = joined->view(t.problem.candidates);
    EXPECT_EQ(reference::build_sets(t.problem).status().code(), Code::kIndexOutOfRange) << bad;
    t.problem.candidates.invalid = OnInvalid::kDrop;
    const auto sets = reference::build_sets(t.problem);
    ASSERT_TRUE(sets.ok());
    EXPECT_EQ(sets->counts.invalid, 1);
    EXPECT_EQ(set_of(*sets, 0), (std::vector<int32_t>{1}));
  }
}

TEST(GroupUnion, RejectedDuplicatesAreThoseOfOneList) {
  auto t = private_lists();
  t.csr({{1, 2}, {2, 1}, {}, {}});
  t.problem.candidates.duplicates = OnDuplicate::kReject;
  EXPECT_EQ(joined_rows(t.problem), (Rows{{1, 2}, {}})) << "two heads may list the same entry";
  t.csr({{1, 2}, {}, {-1, -1}, {5, 6, 4, 6, 5}});
  EXPECT_EQ(refusal(t.problem).code(), Code::kDuplicateIndex);
  EXPECT_EQ(refusal(t.problem).where().request, 0);
  EXPECT_EQ(refusal(t.problem).where().row, 3);
  EXPECT_EQ(refusal(t.problem).where().value, 6);
  t.csr({{8, 8}, {-2, -2}, {}, {}});
  EXPECT_TRUE(refusal(t.problem).ok()) << "invalid entries are invalid, not duplicates";
}

TEST(GroupUnion, Refusals) {
  auto t = private_lists();
  t.csr(kPrivate);
  t.problem.candidates.index_heads = 2;
  EXPECT_EQ(refusal(t.problem).code(), Code::kInvalidArgument);
  EXPECT_TRUE(says(refusal(t.problem), "index_heads")) << "nothing private to join";
  t.problem.candidates.index_heads = 4;
  t.problem.candidates.semantics = Semantics::kMultiset;
  EXPECT_EQ(refusal(t.problem).code(), Code::kUnsupportedSemantics);
  t.problem.candidates.semantics = Semantics::kSet;
  t.indptr32()[2] = 99;
  EXPECT_EQ(refusal(t.problem).code(), Code::kInvalidArgument);
  EXPECT_TRUE(says(refusal(t.problem), "cand_indptr"));
  t.all();
  EXPECT_EQ(refusal(t.problem).code(), Code::kInvalidArgument);
  EXPECT_TRUE(says(refusal(t.problem), "cand_indices"));
}

TEST(CandidateRows, ViewOfRowsThatLikeDoesNotList) {
  const CandidateRows rows{.indptr = {0, 1, 3}, .indices = {4, 1, 2}};
  const CandidateView view = rows.view(
      {.unit = 16, .index_heads = 2, .duplicates = OnDuplicate::kReject, .invalid = OnInvalid::kDrop});
  EXPECT_EQ(view.form, CandidateForm::kCsr);
  EXPECT_EQ(view.indptr.shape[0], 3);
  EXPECT_EQ(view.indices.shape[0], 3);
  EXPECT_EQ(view.unit, 16);
  EXPECT_EQ(view.index_heads, 2);
  EXPECT_EQ(view.duplicates, OnDuplicate::kReject);
  EXPECT_EQ(view.invalid, OnInvalid::kDrop);
}

RC_GTEST_PROP(GroupUnion, EqualsTheSetUnionPerKvHead, ()) {
  const int group = *rc::gen::inRange(1, 4), kv_heads = *rc::gen::inRange(1, 4);
  const int blocks = *rc::gen::inRange(0, 4);
  Rows rows(group * kv_heads * blocks), model;
  for (auto& row : rows) row = *rc::gen::container<std::vector<int32_t>>(rc::gen::inRange(-2, 10));
  for (int first = 0; first < static_cast<int>(rows.size()); first += group) {
    std::set<int32_t> all;
    for (int r = first; r < first + group; ++r) all.insert(rows[r].begin(), rows[r].end());
    all.erase(-1);
    model.emplace_back(all.begin(), all.end());
  }
  TestProblem t({.q_len = {blocks}, .q_heads = group * kv_heads, .kv_heads = kv_heads});
  t.problem.candidates.index_heads = group * kv_heads;
  RC_ASSERT(joined_rows(t.csr(rows).problem) == model);
}

}  // namespace
}  // namespace tamis
