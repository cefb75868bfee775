// describe(): quantized caches and problems without values.
#include <gtest/gtest.h>

#include "core/broken.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of broken.h

TensorView f32(std::initializer_list<int64_t> shape) { return dense_view(nullptr, DType::kF32, shape); }

// 4 pages of 16 tokens, 2 KV heads, D 8, Dv 4.
TestProblem quantized(Format format, DType dtype, ScaleKind kind, TensorView scale) {
  TestProblem t(
      {.kv_len = {48}, .q_heads = 2, .kv_heads = 2, .head_dim = 8, .v_head_dim = 4, .page_size = 16});
  const int64_t pack = format == Format::kInt4 ? 2 : 1;
  t.problem.cache.k = dense_view(nullptr, dtype, {4, 16, 2, 8 / pack});
  t.problem.cache.k_quant = {format, kind, scale};
  return t;
}

TEST(DescribeQuantized, EveryFormatIsStoredInItsOwnType) {
  struct Row {
    Format format;
    DType dtype;
    int bits;
  };
  const Row rows[] = {{Format::kInt8, DType::kI8, 8},
                      {Format::kFp8E4M3, DType::kF8E4M3, 8},
                      {Format::kFp8E5M2, DType::kF8E5M2, 8},
                      {Format::kInt4, DType::kU8, 4}};
  for (const Row& row : rows) {
    TestProblem t = quantized(row.format, row.dtype, ScaleKind::kTensor, f32({}));
    const Result<Shape> shape = describe(t.problem);
    ASSERT_TRUE(shape.ok()) << shape.status().message();
    EXPECT_EQ(shape->k_bits, row.bits);
    EXPECT_EQ(shape->v_bits, 32) << "v has its own format";
    EXPECT_EQ(shape->head_dim, 8);
    for (const Row& other : rows) {
      if (other.dtype == row.dtype) continue;
      t.problem.cache.k.dtype = other.dtype;
      const Status status = describe(t.problem).status();
      EXPECT_EQ(status.code(), Code::kInvalidArgument);
      EXPECT_TRUE(says(status, std::string("k: dtype ") + dtype_name(other.dtype)));
    }
  }
}

TEST(DescribeQuantized, Int4OfVHoldsTwoADimension) {
  TestProblem t({.kv_len = {4}});
  t.problem.cache.v = dense_view(nullptr, DType::kU8, {2, 4, 1, 3});
  t.problem.cache.v_quant = {Format::kInt4, ScaleKind::kChannel, f32({1, 6})};
  const Result<Shape> shape = describe(t.problem);
  ASSERT_TRUE(shape.ok()) << shape.status().message();
  EXPECT_EQ(shape->v_head_dim, 6);
  EXPECT_EQ(shape->v_bits, 4);
  EXPECT_EQ(shape->k_bits, 32);
}

TEST(DescribeQuantized, ScalesHaveTheShapeOfTheirKind) {
  struct Row {
    ScaleKind kind;
    TensorView good, bad;
  };
  const Row rows[] = {{ScaleKind::kTensor, f32({}), f32({1})},
                      {ScaleKind::kHead, f32({2}), f32({1})},
                      {ScaleKind::kPage, f32({4, 2}), f32({3, 2})},
                      {ScaleKind::kChannel, f32({2, 8}), f32({2, 4})},
                      {ScaleKind::kPageChannel, f32({4, 2, 8}), f32({4, 8, 2})},
                      {ScaleKind::kToken, f32({4, 16, 2}), f32({4, 2, 16})}};
  for (const Row& row : rows) {
    TestProblem t = quantized(Format::kInt8, DType::kI8, row.kind, row.good);
    EXPECT_TRUE(describe(t.problem).ok()) << describe(t.problem).status().message();
    for (TensorView bad : {row.bad, TensorView{}, dense_view(nullptr, DType::kF16, {1})}) {
      t.problem.cache.k_quant.scale = bad;
      const Status status = describe(t.problem).status();
      EXPECT_EQ(status.code(), Code::kInvalidArgument) << static_cast<int>(row.kind);
      EXPECT_EQ(status.message().rfind("k_scale:", 0), 0u) << status.message();
    }
  }
}

TEST(DescribeQuantized, TokenScalesOfAContiguousCacheFollowItsShape) {
  TestProblem t({.kv_len = {6}, .q_heads = 2, .kv_heads = 2, .page_size = 0, .layout = Layout::kHND});
  t.problem.cache.v = dense_view(nullptr, DType::kI8, {2, 9, 4});
  t.problem.cache.v_quant = {Format::kInt8, ScaleKind::kToken, f32({2, 9})};
  EXPECT_TRUE(describe(t.problem).ok()) << describe(t.problem).status().message();
  t.problem.cache.v_quant.scale = f32({9, 2});
  EXPECT_TRUE(says(describe(t.problem).status(), "v_scale: shape [9,2], expected [2,9]"));
}

TEST(DescribeQuantized, ThePlainFormatLooksAtNoScale) {
  TestProblem t({.kv_len = {6}});
  t.problem.cache.k_quant = {Format::kPlain, ScaleKind::kHead, dense_view(nullptr, DType::kI8, {77})};
  EXPECT_TRUE(describe(t.problem).ok());
}

TestProblem index_only() {
  TestProblem t({.kv_len = {9, 3}, .q_len = {3, 1}});
  t.problem.query.q = t.problem.cache.k = t.problem.cache.v = {};
  t.problem.index_only = IndexOnly{.q_heads = 8,
                                   .kv_heads = 2,
                                   .head_dim = 128,
                                   .v_head_dim = 64,
                                   .page_size = 4,
                                   .num_pages = 10,
                                   .kv_bits = 8};
  return t;
}

TEST(DescribeIndexOnly, ReadsTheSizesFromTheOptions) {
  TestProblem t = index_only();
  const Result<Shape> s = describe(t.problem);
  ASSERT_TRUE(s.ok()) << s.status().message();
  EXPECT_TRUE(s->index_only);
  EXPECT_EQ(s->q_heads, 8);
  EXPECT_EQ(s->kv_heads, 2);
  EXPECT_EQ(s->group, 4);
  EXPECT_EQ(s->head_dim, 128);
  EXPECT_EQ(s->v_head_dim, 64);
  EXPECT_EQ(s->page_size, 4);
  EXPECT_EQ(s->pages, 10);
  EXPECT_EQ(s->k_bits, 8);
  EXPECT_EQ(s->v_bits, 8);
  EXPECT_EQ(s->requests, 2);
}

TEST(DescribeIndexOnly, Rules) {
  const Broken rules[] = {
      {"q is there",
       [](auto& t) {
         t.problem.query.q = f32({4, 8, 128});
       },
       "q", "no place"},
      {"v is there",
       [](auto& t) {
         t.problem.cache.v = f32({4, 4, 2, 64});
       },
       "q", "no place"},
      {"both tables", [](auto& t) { t.problem.cache.cu_kv = dense_view(nullptr, DType::kI32, {3}); },
       "page_table", "at most one"},
      {"page size", [](auto& t) { t.problem.index_only->page_size = -1; }, "page_size", "-1"},
      {"page size too large", [](auto& t) { t.problem.index_only->page_size = int64_t{1} << 31; },
       "page_size", "2147483648"},
      {"pages", [](auto& t) { t.problem.index_only->num_pages = -5; }, "num_pages", "-5"},
      {"no bits", [](auto& t) { t.problem.index_only->kv_bits = 0; }, "kv_dtype", "0 bits"},
      {"too many bits", [](auto& t) { t.problem.index_only->kv_bits = 65; }, "kv_dtype", "65 bits"},
      {"no query heads", [](auto& t) { t.problem.index_only->q_heads = 0; }, "q", "no heads"},
      {"negative KV heads", [](auto& t) { t.problem.index_only->kv_heads = -2; }, "k", "no heads"},
      {"no head size", [](auto& t) { t.problem.index_only->head_dim = 0; }, "q", "no head dim"},
      {"no value size", [](auto& t) { t.problem.index_only->v_head_dim = 0; }, "v", "no head dim"},
      {"ratio", [](auto& t) { t.problem.index_only->q_heads = 7; }, "q", "7 query heads"},
      {"huge", [](auto& t) { t.problem.index_only->q_heads = int64_t{1} << 62; }, "q", "query heads"},
      {"positions",
       [](auto& t) {
         t.q_pos({0, 1, 2});
       },
       "q_pos", "3 positions for 4 queries"},
  };
  for (const Broken& rule : rules) expect_refused(index_only(), rule);
}

TEST(DescribeIndexOnly, NeedsNoTableAtAll) {
  TestProblem t = index_only();
  t.problem.cache.page_table = {};
  EXPECT_TRUE(check(t.problem).ok()) << check(t.problem).message();
}

}  // namespace
}  // namespace tamis
