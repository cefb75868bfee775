// Distinct 128-byte lines under strides as they are, against a list of all bytes.
#include "diagnose/lines.h"

#include <gtest/gtest.h>

#include <set>

#include "support/problems.h"
#include "tamis/explain.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

// Every byte of every selected token, one by one. Pages start on a line; so does row 0 of a contiguous cache.
int64_t lines_by_bytes(const TensorView& t, Layout layout, int64_t page_size, int64_t first_row,
                       const std::vector<int32_t>& tokens, int64_t head) {
  const KvStrides stride = kv_strides(t, layout);
  std::set<std::pair<int64_t, int64_t>> lines;  // (page, line)
  const int64_t size = dtype_bytes(t.dtype);
  for (const int32_t token : tokens) {
    const int64_t page = page_size > 0 ? token / page_size : 0;
    const int64_t row = page_size > 0 ? token % page_size : first_row + token;
    for (int64_t d = 0; d < t.shape[t.rank - 1]; ++d)
      for (int64_t byte = 0; byte < size; ++byte) {
        const int64_t at = (row * stride.token + head * stride.head + d * stride.dim) * size + byte;
        lines.insert({page, at >= 0 ? at / 128 : (at - 127) / 128});
      }
  }
  return static_cast<int64_t>(lines.size());
}

TEST(Lines, EqualTheBytesUnderAnyStrides) {
  const std::vector<int32_t> tokens = {0, 1, 5, 15, 16, 17, 40, 41, 42, 43, 47, 63, 64};
  for (const Placement placement : {Placement::kDense, Placement::kGaps, Placement::kSpread,
                                    Placement::kReversed, Placement::kInterleaved})
    for (const Layout layout : {Layout::kNHD, Layout::kHND})
      for (const DType dtype : {DType::kF32, DType::kBF16})
        for (const int64_t page : {0, 1, 16, 61})
          for (const int64_t dim : {1, 3, 20, 64}) {
            TestProblem t({.kv_len = {3, 70},
                           .q_heads = 3,
                           .kv_heads = 3,
                           .head_dim = dim,
                           .v_head_dim = 5,
                           .dtype = dtype,
                           .page_size = page,
                           .layout = layout,
                           .placement = placement});
            const Result<Shape> shape = describe(t.problem);
            ASSERT_TRUE(shape.ok()) << shape.status().message();
            const int64_t first = page == 0 ? t.cu_kv()[1] : 0;
            for (const bool is_v : {false, true})
              for (int64_t head = 0; head < 3; ++head) {
                const TensorView& view = is_v ? t.problem.cache.v : t.problem.cache.k;
                ASSERT_EQ(count_lines(line_layout(t.problem, *shape, is_v), tokens, first, head),
                          lines_by_bytes(view, layout, page, first, tokens, head))
                    << "placement " << static_cast<int>(placement) << " layout " << static_cast<int>(layout)
                    << " page " << page << " dim " << dim << " head " << head << " v " << is_v;
              }
          }
}

TEST(Lines, HeadsFirstKeepsNeighboursOnALine) {
  // 16 tokens of 64 bf16 elements: one line each when heads lie between them; back to back with heads
  // outside.
  const std::vector<int32_t> all = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const auto lines = [&](Layout layout, int64_t dim) {
    TestProblem t({.kv_len = {16},
                   .q_heads = 8,
                   .kv_heads = 8,
                   .head_dim = dim,
                   .v_head_dim = dim,
                   .dtype = DType::kBF16,
                   .page_size = 16,
                   .layout = layout});
    return count_lines(line_layout(t.problem, *describe(t.problem), false), all, 0, 3);
  };
  EXPECT_EQ(lines(Layout::kNHD, 64), 16);
  EXPECT_EQ(lines(Layout::kHND, 64), 16);
  EXPECT_EQ(lines(Layout::kNHD, 16), 16) << "32 of 128 bytes a token";
  EXPECT_EQ(lines(Layout::kHND, 16), 4);
}

TEST(Lines, ABrokenBoundaryCostsALine) {
  // f32 rows of 32 elements are exactly a line; shifted by one element each takes two.
  TestProblem t({.kv_len = {4}, .head_dim = 32, .v_head_dim = 32, .page_size = 0, .slack = 0});
  LineLayout layout = line_layout(t.problem, *describe(t.problem), false);
  EXPECT_EQ(count_lines(layout, {0}, 0, 0), 1);
  EXPECT_EQ(count_lines(layout, {3}, 0, 0), 1);
  layout.token = 33 * 32;
  EXPECT_EQ(count_lines(layout, {0}, 0, 0), 1);
  EXPECT_EQ(count_lines(layout, {1}, 0, 0), 2);
  EXPECT_EQ(count_lines(layout, {0, 1}, 0, 0), 3);
  layout.token = -32 * 32;
  EXPECT_EQ(count_lines(layout, {0, 1}, 0, 0), 2) << "backwards";
}

TEST(Lines, Int4IsCountedAsStored) {
  TestProblem t({.kv_len = {4}, .head_dim = 256, .page_size = 4});
  const float scale = 1;
  t.problem.cache.k = dense_view(nullptr, DType::kU8, {2, 4, 1, 128});
  t.problem.cache.k_quant.format = Format::kInt4;
  t.problem.cache.k_quant.scale = dense_view(&scale, DType::kF32, {});
  const Result<Shape> shape = describe(t.problem);
  ASSERT_TRUE(shape.ok()) << shape.status().message();
  EXPECT_EQ(count_lines(line_layout(t.problem, *shape, false), {0, 1, 2}, 0, 0), 3);
}

TEST(Lines, IndexOnlyCountsAsPackedHeadsInside) {
  TestProblem t({.kv_len = {32}});
  t.problem.query.q = t.problem.cache.k = t.problem.cache.v = {};
  t.problem.index_only =
      IndexOnly{.q_heads = 4, .kv_heads = 4, .head_dim = 16, .v_head_dim = 64, .page_size = 16, .kv_bits = 4};
  const Result<Shape> shape = describe(t.problem);
  ASSERT_TRUE(shape.ok()) << shape.status().message();
  const LineLayout k = line_layout(t.problem, *shape, false), v = line_layout(t.problem, *shape, true);
  // K: 8 bytes a head, 32 a token, so 4 tokens a line. V: 32 a head, 128 a token.
  EXPECT_EQ(count_lines(k, {0, 1, 2, 3, 4}, 0, 1), 2);
  EXPECT_EQ(count_lines(v, {0, 1, 2, 3, 4}, 0, 1), 5);
  EXPECT_EQ(count_lines(k, {0, 16}, 0, 0), 2) << "two pages";
  EXPECT_EQ(count_lines(k, {}, 0, 0), 0);
}

}  // namespace
}  // namespace tamis
