// describe(): every rule that needs no element of any array, one broken at a time, and the sizes it reads
// off.
#include "tamis/problem.h"

#include <gtest/gtest.h>

#include <limits>

#include "core/broken.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of broken.h

TensorView shaped(DType dtype, std::initializer_list<int64_t> shape) {
  return dense_view(nullptr, dtype, shape);
}

TEST(Describe, Options) {
  const Broken rules[] = {
      {"sequence", [](auto& t) { t.problem.candidates.semantics = Semantics::kSequence; }, "semantics",
       "'sequence'", Code::kUnsupportedSemantics},
      {"multiset", [](auto& t) { t.problem.candidates.semantics = Semantics::kMultiset; }, "semantics",
       "'multiset'", Code::kUnsupportedSemantics},
      {"no unit", [](auto& t) { t.problem.candidates.unit = 0; }, "unit", "0 "},
      {"negative unit", [](auto& t) { t.problem.candidates.unit = -64; }, "unit", "-64"},
      {"no query block", [](auto& t) { t.problem.candidates.query_block = 0; }, "query_block", "0 "},
      {"window", [](auto& t) { t.problem.mask.window = -1; }, "window", "-1"},
      {"sink", [](auto& t) { t.problem.mask.sink = -2; }, "sink", "-2"},
      {"NaN scale", [](auto& t) { t.problem.score.scale = kNaN; }, "scale", "finite"},
      {"infinite scale", [](auto& t) { t.problem.score.scale = -kInf; }, "scale", "finite"},
      {"NaN softcap", [](auto& t) { t.problem.score.softcap = kNaN; }, "softcap", "finite"},
      {"infinite softcap", [](auto& t) { t.problem.score.softcap = kInf; }, "softcap", "finite"},
      {"negative softcap", [](auto& t) { t.problem.score.softcap = -0.5; }, "softcap", "-0.5"},
      {"certain dropout", [](auto& t) { t.problem.dropout.p = 1; }, "dropout_p", "1 "},
      {"negative dropout", [](auto& t) { t.problem.dropout.p = -0.25; }, "dropout_p", "-0.25"},
      {"NaN dropout", [](auto& t) { t.problem.dropout.p = kNaN; }, "dropout_p", "nan"},
  };
  for (const Broken& rule : rules) expect_refused(good_paged(), rule);
}

TEST(Describe, Queries) {
  const Broken rules[] = {
      {"no q", [](auto& t) { t.problem.query.q = {}; }, "q", "missing"},
      {"f64 q", [](auto& t) { t.problem.query.q.dtype = DType::kF64; }, "q", "F64"},
      {"rank of q",
       [](auto& t) {
         t.problem.query.q = shaped(DType::kF32, {4, 48});
       },
       "q", "rank 2, expected 3"},
      {"negative extent", [](auto& t) { t.problem.query.q.shape[0] = -4; }, "q", "-4 of axis 0"},
      {"no heads", [](auto& t) { t.problem.query.q.shape[1] = 0; }, "q", "no heads"},
      {"no head size", [](auto& t) { t.problem.query.q.shape[2] = 0; }, "q", "no head dim"},
      {"too many heads", [](auto& t) { t.problem.query.q.shape[1] = 131072; }, "q", "131072"},
      {"head size too large", [](auto& t) { t.problem.query.q.shape[2] = 65537; }, "q", "65537"},
      {"head ratio", [](auto& t) { t.problem.query.q.shape[1] = 5; }, "q",
       "5 query heads are no multiple of 2"},
      {"more KV heads than heads", [](auto& t) { t.problem.query.q.shape[1] = 1; }, "q", "no multiple of 2"},
      {"index heads", [](auto& t) { t.problem.candidates.index_heads = 3; }, "index_heads", "3 is not 1, 2"},
      {"no index heads", [](auto& t) { t.problem.candidates.index_heads = 0; }, "index_heads", "0 is"},
      {"no cu_q", [](auto& t) { t.problem.query.cu_q = {}; }, "cu_q", "missing"},
      {"i64 cu_q", [](auto& t) { t.problem.query.cu_q.dtype = DType::kI64; }, "cu_q", "I64"},
      {"rank of cu_q", [](auto& t) { t.problem.query.cu_q.rank = 2; }, "cu_q", "rank 2"},
      {"empty cu_q", [](auto& t) { t.problem.query.cu_q.shape[0] = 0; }, "cu_q", "empty"},
      {"length of q_pos", [](auto& t) { t.problem.query.q_pos.shape[0] = 3; }, "q_pos", "[3], expected [4]"},
      {"dtype of q_pos", [](auto& t) { t.problem.query.q_pos.dtype = DType::kI64; }, "q_pos", "I64"},
      {"length of slopes", [](auto& t) { t.problem.score.alibi_slopes.shape[0] = 2; }, "alibi_slopes",
       "[2], expected [6]"},
      {"dtype of slopes", [](auto& t) { t.problem.score.alibi_slopes.dtype = DType::kBF16; }, "alibi_slopes",
       "BF16"},
      {"d_out heads", [](auto& t) { t.problem.gradients.d_out.shape[1] = 2; }, "d_out",
       "[4,2,4], expected [4,6,4]"},
      {"d_out dtype", [](auto& t) { t.problem.gradients.d_out.dtype = DType::kF16; }, "d_out", "F16"},
      {"d_lse rows", [](auto& t) { t.problem.gradients.d_lse.shape[0] = 5; }, "d_lse",
       "[5,6], expected [4,6]"},
      {"d_lse dtype", [](auto& t) { t.problem.gradients.d_lse.dtype = DType::kF64; }, "d_lse", "F64"},
  };
  for (const Broken& rule : rules) expect_refused(good_paged(), rule);
}

TEST(Describe, PagedCache) {
  const Broken rules[] = {
      {"no k", [](auto& t) { t.problem.cache.k = {}; }, "k", "missing"},
      {"no v", [](auto& t) { t.problem.cache.v = {}; }, "v", "missing"},
      {"i8 k", [](auto& t) { t.problem.cache.k.dtype = DType::kI8; }, "k", "I8"},
      {"i32 v", [](auto& t) { t.problem.cache.v.dtype = DType::kI32; }, "v", "I32"},
      {"contiguous k",
       [](auto& t) {
         t.problem.cache.k = shaped(DType::kF32, {24, 2, 8});
       },
       "k", "rank 3, expected 4"},
      {"contiguous v",
       [](auto& t) {
         t.problem.cache.v = shaped(DType::kF32, {24, 2, 4});
       },
       "v", "rank 3, expected 4"},
      {"fewer pages of v", [](auto& t) { --t.problem.cache.v.shape[0]; }, "v", "disagrees with k"},
      {"other pages of v", [](auto& t) { t.problem.cache.v.shape[1] = 8; }, "v", "disagrees with k"},
      {"other heads of v", [](auto& t) { t.problem.cache.v.shape[2] = 1; }, "v", "disagrees with k"},
      {"head size of k", [](auto& t) { t.problem.cache.k.shape[3] = 4; }, "k", "head size 4, q has 8"},
      {"no head size of v", [](auto& t) { t.problem.cache.v.shape[3] = 0; }, "v", "no head dim"},
      {"head size of v", [](auto& t) { t.problem.cache.v.shape[3] = 65537; }, "v", "65537"},
      {"no KV heads", [](auto& t) { t.problem.cache.k.shape[2] = t.problem.cache.v.shape[2] = 0; }, "k",
       "no heads"},
      {"pages of nothing", [](auto& t) { t.problem.cache.k.shape[1] = t.problem.cache.v.shape[1] = 0; }, "k",
       "no tokens"},
      {"too many pages",
       [](auto& t) { t.problem.cache.k.shape[0] = t.problem.cache.v.shape[0] = int64_t{1} << 31; }, "k",
       "2147483648 pages"},
      {"pages too long",
       [](auto& t) { t.problem.cache.k.shape[1] = t.problem.cache.v.shape[1] = int64_t{1} << 31; },
       "page_size", "2147483648 tokens"},
      {"neither table", [](auto& t) { t.problem.cache.page_table = {}; }, "page_table", "exactly one"},
      {"both tables", [](auto& t) { t.problem.cache.cu_kv = shaped(DType::kI32, {3}); }, "page_table",
       "exactly one"},
      {"rows of the table", [](auto& t) { t.problem.cache.page_table.shape[0] = 3; }, "page_table", "[3,"},
      {"rank of the table", [](auto& t) { t.problem.cache.page_table.rank = 1; }, "page_table", "rank 1"},
      {"dtype of the table", [](auto& t) { t.problem.cache.page_table.dtype = DType::kI64; }, "page_table",
       "I64"},
      {"no kv_len", [](auto& t) { t.problem.cache.kv_len = {}; }, "kv_len", "missing"},
      {"length of kv_len", [](auto& t) { t.problem.cache.kv_len.shape[0] = 3; }, "kv_len",
       "[3], expected [2]"},
      {"dtype of kv_len", [](auto& t) { t.problem.cache.kv_len.dtype = DType::kU32; }, "kv_len", "U32"},
      {"page stamps alone", [](auto& t) { t.problem.cache.table_stamps = {}; }, "table_stamps", "together"},
      {"table stamps alone", [](auto& t) { t.problem.cache.page_stamps = {}; }, "page_stamps", "together"},
      {"length of page stamps", [](auto& t) { t.problem.cache.page_stamps.shape[0] = 2; }, "page_stamps",
       "[2]"},
      {"shape of table stamps", [](auto& t) { ++t.problem.cache.table_stamps.shape[1]; }, "table_stamps",
       "expected"},
      {"dtype of stamps", [](auto& t) { t.problem.cache.page_stamps.dtype = DType::kI64; }, "page_stamps",
       "I64"},
  };
  for (const Broken& rule : rules) expect_refused(good_paged(), rule);
}

TEST(Describe, ContiguousCache) {
  const Broken rules[] = {
      {"paged k",
       [](auto& t) {
         t.problem.cache.k = shaped(DType::kF32, {4, 4, 2, 8});
       },
       "k", "rank 4, expected 3"},
      {"no cu_kv", [](auto& t) { t.problem.cache.cu_kv = {}; }, "page_table", "exactly one"},
      {"length of cu_kv", [](auto& t) { t.problem.cache.cu_kv.shape[0] = 2; }, "cu_kv", "[2], expected [3]"},
      {"dtype of cu_kv", [](auto& t) { t.problem.cache.cu_kv.dtype = DType::kI64; }, "cu_kv", "I64"},
      {"rows of v", [](auto& t) { ++t.problem.cache.v.shape[0]; }, "v", "disagrees"},
      {"stamps",
       [](auto& t) {
         t.problem.cache.page_stamps = shaped(DType::kU64, {4});
         t.problem.cache.table_stamps = shaped(DType::kU64, {2, 3});
       },
       "page_stamps", "paged"},
      {"a scale per page",
       [](auto& t) {
         t.problem.cache.k.dtype = DType::kI8;
         t.problem.cache.k_quant = {Format::kInt8, ScaleKind::kPage, shaped(DType::kF32, {1, 2})};
       },
       "k_scale_kind", "paged"},
  };
  for (const Broken& rule : rules) expect_refused(good_contiguous(), rule);
}

TEST(Describe, Candidates) {
  const Broken csr[] = {
      {"count beside indptr", [](auto& t) { t.problem.candidates.count = shaped(DType::kI32, {4}); },
       "cand_count", "CSR"},
      {"no indptr", [](auto& t) { t.problem.candidates.indptr = {}; }, "cand_indptr", "missing"},
      {"dtype of indptr", [](auto& t) { t.problem.candidates.indptr.dtype = DType::kU32; }, "cand_indptr",
       "U32"},
      {"rank of indptr", [](auto& t) { t.problem.candidates.indptr.rank = 0; }, "cand_indptr", "rank 0"},
      {"no indices", [](auto& t) { t.problem.candidates.indices = {}; }, "cand_indices", "missing"},
      {"dtype of indices", [](auto& t) { t.problem.candidates.indices.dtype = DType::kI64; }, "cand_indices",
       "I64"},
      {"rank of indices", [](auto& t) { t.problem.candidates.indices.rank = 2; }, "cand_indices", "rank 2"},
  };
  for (const Broken& rule : csr) expect_refused(good_paged(), rule);
  const Broken fixed[] = {
      {"no indices", [](auto& t) { t.problem.candidates.indices = {}; }, "cand_indices", "missing"},
      {"rank of indices", [](auto& t) { t.problem.candidates.indices.rank = 1; }, "cand_indices", "rank 1"},
      {"length of count", [](auto& t) { t.problem.candidates.count.shape[0] = 3; }, "cand_count", "[3]"},
      {"dtype of count", [](auto& t) { t.problem.candidates.count.dtype = DType::kI64; }, "cand_count",
       "I64"},
  };
  for (const Broken& rule : fixed) expect_refused(good_contiguous(), rule);
}

TEST(Describe, ReadsNoMemory) {
  TestProblem t = good_paged();
  Problem p = t.problem;
  CacheView& c = p.cache;
  for (TensorView* view :
       {&p.query.q, &p.query.cu_q, &p.query.q_pos, &c.k, &c.v, &c.kv_len, &c.page_table, &c.page_stamps,
        &c.table_stamps, &p.candidates.indptr, &p.candidates.indices, &p.score.alibi_slopes})
    view->data = nullptr;
  EXPECT_TRUE(describe(p).ok());
}

TEST(Describe, ReadsTheSizes) {
  TestProblem t = good_paged();
  const Result<Shape> paged = describe(t.problem);
  ASSERT_TRUE(paged.ok()) << paged.status().message();
  EXPECT_EQ(paged->requests, 2);
  EXPECT_EQ(paged->total_q, 4);
  EXPECT_EQ(paged->q_heads, 6);
  EXPECT_EQ(paged->kv_heads, 2);
  EXPECT_EQ(paged->group, 3);
  EXPECT_EQ(paged->index_heads, 1);
  EXPECT_EQ(paged->head_dim, 8);
  EXPECT_EQ(paged->v_head_dim, 4);
  EXPECT_EQ(paged->page_size, 4);
  EXPECT_EQ(paged->pages, t.slots() / 4);
  EXPECT_EQ(paged->max_pages, 4);
  EXPECT_EQ(paged->k_bits, 32);
  EXPECT_FALSE(paged->index_only);
  EXPECT_DOUBLE_EQ(paged->scale, 1 / std::sqrt(8.0)) << "D, not Dv";
  t.problem.score.scale = 0.0;
  EXPECT_EQ(describe(t.problem)->scale, 0.0) << "a scale of 0 is a scale";

  TestProblem c({.kv_len = {9},
                 .q_heads = 6,
                 .kv_heads = 2,
                 .head_dim = 8,
                 .v_head_dim = 4,
                 .dtype = DType::kBF16,
                 .page_size = 0,
                 .layout = Layout::kHND});
  const Result<Shape> contiguous = describe(c.problem);
  ASSERT_TRUE(contiguous.ok()) << contiguous.status().message();
  EXPECT_EQ(contiguous->kv_heads, 2);
  EXPECT_EQ(contiguous->kv_rows, 12) << "a spare row before, one inside the request's range, one behind";
  EXPECT_EQ(contiguous->page_size, 0);
  EXPECT_EQ(contiguous->v_bits, 16);
}

TEST(Describe, EdgesThatAreGood) {
  TestProblem none({.kv_len = {}, .q_len = {}});
  EXPECT_TRUE(check(none.problem).ok()) << "no requests at all: " << check(none.problem).message();
  TestProblem zero({.kv_len = {0}, .q_len = {0}});
  EXPECT_TRUE(check(zero.problem).ok()) << check(zero.problem).message();
  TestProblem t = good_paged();
  t.problem.dropout.p = std::nextafter(1.0, 0.0);
  t.problem.candidates.unit = t.problem.candidates.query_block = std::numeric_limits<int64_t>::max();
  t.problem.mask = {.causal = false,
                    .window = std::numeric_limits<int64_t>::max(),
                    .sink = std::numeric_limits<int64_t>::max()};
  EXPECT_TRUE(describe(t.problem).ok()) << describe(t.problem).status().message();
}

}  // namespace
}  // namespace tamis
