// normalize by example: the worked numbers, statistics, block sizes, and sizes beyond reason.
#include <gtest/gtest.h>

#include "index/storage.h"
#include "support/expect.h"
#include "support/problems.h"
#include "tamis/index.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

IndexSet normalized(const Problem& p, const NormalizeOptions& options = {}) {
  Result<IndexSet> set = normalize(p, options);
  EXPECT_TRUE(set.ok()) << set.status().message();
  return set.ok() ? std::move(*set) : IndexSet();
}

std::vector<int32_t> blocks_of(const IndexView& v) { return {v.blocks, v.blocks + v.entries}; }
std::vector<int64_t> slots_of(const IndexView& v) {
  std::vector<int64_t> slots;
  for (int64_t s = 0; s < v.span_begin[v.entries]; ++s) slots.push_back(v.spans[s].slot);
  return slots;
}

TEST(Normalize, WorkedPage64) {
  TestProblem t({.kv_len = {128}, .head_dim = 1, .v_head_dim = 1, .page_size = 64, .table = {{41, 7}}});
  t.csr({{1, 2, 63, 64, 65, 127}});
  const IndexSet set = normalized(t.problem);
  const IndexView v = set.view();
  EXPECT_EQ(v.block, 64);
  EXPECT_EQ(blocks_of(v), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(v.members[0], uint64_t{1} << 1 | uint64_t{1} << 2 | uint64_t{1} << 63);
  EXPECT_EQ(v.members[1], uint64_t{1} | uint64_t{1} << 1 | uint64_t{1} << 63);
  EXPECT_EQ(slots_of(v), (std::vector<int64_t>{41 * 64, 7 * 64}));
}

TEST(Normalize, WorkedPage16) {
  TestProblem t({.kv_len = {16, 160},
                 .head_dim = 1,
                 .v_head_dim = 1,
                 .page_size = 16,
                 .table = {{0, -1, -1, -1, -1, -1, -1, -1, -1, -1}, {41, 7, 83, 19, 5, 6, 8, 9, 10, 11}}});
  t.csr({{0}, {18, 23, 70, 71, 72}});
  const IndexSet set = normalized(t.problem);
  const IndexView v = set.view();
  EXPECT_EQ(blocks_of(v), (std::vector<int32_t>{0, 1, 4}));
  EXPECT_EQ(v.members[1], uint64_t{1} << 2 | uint64_t{1} << 7);
  EXPECT_EQ(v.members[2], uint64_t{7} << 6);
  EXPECT_EQ(slots_of(v), (std::vector<int64_t>{0, 7 * 16, 5 * 16}));
  EXPECT_EQ(set.stats().touched_pages, 3);
  EXPECT_EQ(set.stats().gaps, 1);
}

TEST(Normalize, FullMeansEveryTokenBelowTheLength) {
  TestProblem t({.kv_len = {40}, .q_len = {1}, .head_dim = 1, .v_head_dim = 1, .page_size = 16});
  t.problem.candidates.unit = 8;
  t.csr({{0, 1, 2, 4}});  // tokens 0 .. 23 and 32 .. 39
  const IndexSet set = normalized(t.problem, {.block = 16});
  ASSERT_EQ(set.view().entries, 3);
  EXPECT_EQ(set.view().full[0], 1);
  EXPECT_EQ(set.view().full[1], 0);
  EXPECT_EQ(set.view().full[2], 1) << "the tail of the context is short";
  // What the window brings is seen but not listed.
  t.csr({{}});
  t.problem.mask.window = 40;
  for (int e = 0; e < 3; ++e) {
    const IndexSet window = normalized(t.problem, {.block = 16});
    ASSERT_EQ(window.view().entries, 3);
    EXPECT_EQ(window.view().full[e], 0);
    EXPECT_EQ(window.view().members[e], 0u);
  }
}

// Lists of 0, 1, ... 100 blocks: the percentiles are the lengths themselves, whatever the rounding of ranks.
TEST(Normalize, Percentiles) {
  TestProblem t({.kv_len = {1700}, .q_len = {101}, .head_dim = 1, .v_head_dim = 1, .page_size = 0});
  Rows rows(101);
  for (int32_t r = 0; r <= 100; ++r)
    for (int32_t j = 0; j < r; ++j) rows[r].push_back(j);
  std::swap(rows[3], rows[77]);
  t.problem.mask.causal = false;
  t.problem.candidates.unit = 16;
  t.csr(rows);
  const IndexSet set = normalized(t.problem, {.block = 16});
  EXPECT_EQ(set.stats().row_blocks.p50, 50);
  EXPECT_EQ(set.stats().row_blocks.p95, 95);
  EXPECT_EQ(set.stats().row_blocks.max, 100);
  EXPECT_EQ(set.stats().empty_rows, 1);
  EXPECT_EQ(set.stats().gaps, 0);
  // Block j is in the 100 - j rows that are longer.
  const Percentiles reuse = reuse_statistics(set.view());
  EXPECT_NEAR(static_cast<double>(reuse.p50), 50, 1);
  EXPECT_NEAR(static_cast<double>(reuse.p95), 95, 1);
  EXPECT_EQ(reuse.max, 100);

  TestProblem two({.kv_len = {32, 32}, .head_dim = 1, .v_head_dim = 1, .page_size = 0});
  two.csr({{0, 20}, {1}});
  const Percentiles alone = reuse_statistics(normalized(two.problem, {.block = 16}).view());
  EXPECT_EQ(alone.max, 1) << "blocks of two requests are not the same block";
  EXPECT_EQ(reuse_statistics(IndexSet().view()).max, 0);
}

TEST(Normalize, TheDefaultBlockIsNeitherLoadedNorCutInVain) {
  Shape s{};
  for (const auto& [page, unit, block] :
       std::initializer_list<std::tuple<int64_t, int64_t, int32_t>>{{64, 1, 64},
                                                                    {0, 1, 64},
                                                                    {256, 1, 64},
                                                                    {16, 1, 16},
                                                                    {32, 1, 32},
                                                                    {64, 16, 16},
                                                                    {64, 128, 64},
                                                                    {128, 32, 32},
                                                                    {48, 48, 16},
                                                                    {1, 1, 16},
                                                                    {24, 1, 16},
                                                                    {96, 1, 32},
                                                                    {64, 24, 16},
                                                                    {0, 64, 64}}) {
    s.page_size = page;
    EXPECT_EQ(default_block(s, unit), block) << "page " << page << ", unit " << unit;
  }
}

TEST(Normalize, OtherBlocksAreRefused) {
  TestProblem t({});
  t.csr({{0}});
  for (const int32_t block : {-16, 1, 8, 48, 256}) {
    const Result<IndexSet> set = normalize(t.problem, {.block = block});
    EXPECT_EQ(set.status().code(), Code::kUnsupported) << block;
    EXPECT_TRUE(says(set.status(), "16, 32, 64, 128"));
  }
}

// A request of absurd length with K and V that exist only by name: normalize reads neither.
struct Huge {
  std::vector<int32_t> cu_q, kv_len, cu_kv, entries, indptr;
  Problem problem{};

  Huge(int32_t queries, int32_t length, std::vector<int32_t> list)
      : cu_q{0, queries},
        kv_len{length},
        cu_kv{0, length},
        entries(std::move(list)),
        indptr{0, static_cast<int32_t>(entries.size())} {
    Problem& p = problem;
    p.query.q = dense_view(nullptr, DType::kF32, {queries, 1, 1});
    p.query.cu_q = dense_view(cu_q.data(), DType::kI32, {2});
    p.cache.k = p.cache.v = dense_view(nullptr, DType::kF32, {length, 1, 1});
    p.cache.kv_len = dense_view(kv_len.data(), DType::kI32, {1});
    p.cache.cu_kv = dense_view(cu_kv.data(), DType::kI32, {2});
    p.candidates.form = CandidateForm::kCsr;
    p.candidates.indptr = dense_view(indptr.data(), DType::kI32, {2});
    p.candidates.indices = dense_view(entries.data(), DType::kI32, {indptr[1]});
  }
};

int64_t bytes_of(const IndexSet& set) {
  const IndexSet::Storage& s = set.storage();
  const auto bytes = [](const auto&... v) { return ((v.capacity() * sizeof(v[0])) + ...); };
  return static_cast<int64_t>(bytes(s.row, s.begin, s.count, s.blocks, s.members, s.full, s.span_begin,
                                    s.spans, s.bitmap, s.page_bitmap, s.seen, s.found, s.table, s.ranks));
}

TEST(NormalizeLimits, TheLongestContext) {
  constexpr int32_t last = INT32_MAX - 1;
  for (const Ordering ordering : {Ordering::kAuto, Ordering::kBitmap, Ordering::kSort, Ordering::kHash})
    for (const int32_t block : {16, 128}) {
      Huge h(1, INT32_MAX, {last, 1 << 30, 0, last});
      h.problem.mask = {.causal = true, .window = 2, .sink = 2};
      const IndexSet set = normalized(h.problem, {.block = block, .ordering = ordering});
      EXPECT_EQ(expand_set(h.problem, set.view(), 0, 0),
                (std::vector<int32_t>{0, 1, 1 << 30, last - 1, last}));
      ASSERT_EQ(set.view().span_begin[set.view().entries], 3);
      const Span& tail = set.view().spans[2];
      EXPECT_EQ(tail.token, INT32_MAX / block * block);
      EXPECT_EQ(tail.length, INT32_MAX % block);
      EXPECT_EQ(tail.slot, tail.token);
      // The bitmap is a bit a block, and only where it was asked for.
      EXPECT_LT(bytes_of(set), ordering == Ordering::kBitmap ? 32 << 20 : 1 << 20);
    }
  Huge h(1, INT32_MAX, {INT32_MAX});
  EXPECT_EQ(normalize(h.problem).status().code(), Code::kIndexOutOfRange);
}

TEST(NormalizeLimits, UnitsBeyondAnyContext) {
  for (const int64_t unit : {int64_t{1} << 40, INT64_MAX}) {
    Huge h(1, 300, {0, -1});
    h.problem.candidates.unit = unit;
    const IndexSet set = normalized(h.problem);
    EXPECT_EQ(expand_set(h.problem, set.view(), 0, 0).size(), 300u);
    EXPECT_EQ(set.stats().counts.unique, 1);
    h.entries[0] = 1;
    EXPECT_EQ(normalize(h.problem).status().code(), Code::kIndexOutOfRange);
    h.entries[0] = INT32_MAX;
    h.problem.candidates.invalid = OnInvalid::kDrop;
    EXPECT_EQ(normalized(h.problem).stats().counts.invalid, 1);
  }
  // A product that would wrap around to a token in range.
  Huge h(1, 300, {1 << 30});
  h.problem.candidates.unit = int64_t{1} << 34;
  EXPECT_EQ(normalize(h.problem).status().code(), Code::kIndexOutOfRange);
}

TEST(NormalizeLimits, RowsWithoutWidth) {
  for (const int32_t queries : {1 << 18, (1 << 26) + 1, INT32_MAX}) {
    Huge h(queries, 300, {});
    CandidateView& c = h.problem.candidates;
    c.form = CandidateForm::kFixedWidth;
    c.indptr = {};
    c.indices = dense_view(nullptr, DType::kI32, {queries, 0});
    const Result<IndexSet> set = normalize(h.problem);
    if (queries == 1 << 18) {
      ASSERT_TRUE(set.ok()) << set.status().message();
      EXPECT_EQ(set->stats().empty_rows, queries);
      EXPECT_LT(bytes_of(*set), 64 << 20);
    } else {
      EXPECT_EQ(set.status().code(), Code::kCapacityExceeded) << queries;
      EXPECT_EQ(set.status().where().limit, 1 << 26);
    }
  }
}

TEST(NormalizeLimits, OneRowForEveryQuery) {
  Huge h(1000, 300, {});
  h.problem.candidates.form = CandidateForm::kNone;
  h.problem.candidates.indptr = h.problem.candidates.indices = {};
  h.problem.candidates.query_block = INT64_MAX;
  h.problem.mask.window = 4;
  const IndexSet set = normalized(h.problem, {.block = 16});
  ASSERT_EQ(set.view().rows, 1);
  EXPECT_EQ(set.view().entries, 19) << "the windows of the last 300 queries; the others sit before token 0";
  EXPECT_EQ(expand_set(h.problem, set.view(), 0, 0), std::vector<int32_t>{});
  EXPECT_EQ(expand_set(h.problem, set.view(), 999, 0), (std::vector<int32_t>{296, 297, 298, 299}));
}

}  // namespace
}  // namespace tamis
