// The accounting of section 13 on the worked numbers of section 14.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "support/expect.h"
#include "support/problems.h"
#include "tamis/explain.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

Accounting account(const Problem& problem, AccountingOptions options = {}) {
  const Result<Accounting> result = explain(problem, options);
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? *result : Accounting{};
}

// A problem of sets alone; page size 0 for a contiguous cache.
TestProblem index_only(Spec spec, int bits = 16) {
  const IndexOnly only{.q_heads = spec.q_heads,
                       .kv_heads = spec.kv_heads,
                       .head_dim = spec.head_dim,
                       .v_head_dim = spec.v_head_dim,
                       .page_size = spec.page_size,
                       .kv_bits = bits};
  const std::vector<int32_t> lengths = spec.kv_len;
  spec.q_heads = spec.kv_heads = spec.head_dim = spec.v_head_dim = 1;
  spec.page_size = 0;
  if (spec.q_len.empty()) spec.q_len.assign(lengths.size(), 1);
  std::fill(spec.kv_len.begin(), spec.kv_len.end(), 0);  // no memory behind the lengths, which may be absurd
  TestProblem t(std::move(spec));
  std::copy(lengths.begin(), lengths.end(), t.kv_len().begin());
  t.problem.query.q = t.problem.cache.k = t.problem.cache.v = t.problem.cache.cu_kv = {};
  t.problem.index_only = only;
  return t;
}

TEST(Accounting, WorkedPageOf64) {
  TestProblem t({.kv_len = {128}, .page_size = 64, .table = {{41, 7}}});
  t.csr({{1, 2, 63, 64, 65, 127}});
  const Accounting a = account(t.problem);
  EXPECT_EQ(a.tiles.rows, 1);
  EXPECT_EQ(a.tiles.selected_tokens, 6);
  EXPECT_EQ(a.tiles.touched_pages, 2);
  EXPECT_EQ(a.tiles.block_utilization, 0.046875);
  EXPECT_EQ(a.tiles.aligned, 2);
  EXPECT_EQ(a.tiles.packed, 2);
  EXPECT_EQ(a.bytes.index_normalized, 8);
}

TEST(Accounting, WorkedPageOf16SecondRequest) {
  TestProblem t({.kv_len = {16, 160},
                 .page_size = 16,
                 .table = {{100, -1, -1, -1, -1, -1, -1, -1, -1, -1}, {41, 7, 83, 19, 5, 1, 2, 3, 4, 6}}});
  t.csr({{}, {18, 23, 70, 71, 72}});
  const Accounting a = account(t.problem);
  EXPECT_EQ(a.tiles.touched_pages, 2);
  EXPECT_EQ(a.tiles.block_utilization, 0.15625);
  const Result<reference::Sets> sets = reference::build_sets(t.problem);
  ASSERT_TRUE(sets.ok());
  EXPECT_EQ(reference::physical_slots(t.problem, *sets),
            (std::vector<int64_t>{7 * 16 + 2, 7 * 16 + 7, 5 * 16 + 6, 5 * 16 + 7, 5 * 16 + 8}));
}

TEST(Accounting, The64KCase) {
  // Pages of 16: the selector lists 256 per KV head, the window covers the last 16, 8 are in both. Outside
  // the window the 248 others fill 32 tiles of 64 wholly, 40 by half and 40 by a quarter.
  TestProblem t = index_only(
      {.kv_len = {65536}, .q_heads = 32, .kv_heads = 8, .head_dim = 128, .v_head_dim = 128, .page_size = 16});
  std::vector<int32_t> pages;
  for (int32_t tile = 0; tile < 112; ++tile)
    for (int32_t page = 0; page < (tile < 32 ? 4 : tile < 72 ? 2 : 1); ++page)
      pages.push_back(9 * 4 * tile + page);
  for (int32_t page = 0; page < 8; ++page) pages.push_back(4095 - page);
  ASSERT_EQ(pages.size(), 256u);
  t.csr(Rows(8, pages));
  t.problem.candidates.unit = 16;
  t.problem.candidates.index_heads = 8;
  t.problem.mask.window = 256;
  Accounting a = account(t.problem, {.splits = 4, .bandwidth = 3e12});
  EXPECT_EQ(a.tiles.rows, 8);
  EXPECT_EQ(a.tiles.kv_heads, 8);
  EXPECT_EQ(a.tiles.touched_pages, 8 * 264);
  EXPECT_EQ(a.tiles.selected_tokens, 8 * 4224);
  EXPECT_EQ(a.tiles.aligned, 928);
  EXPECT_EQ(a.tiles.packed, 528);
  EXPECT_NEAR(a.tiles.efficiency_aligned, 0.5690, 5e-5);
  EXPECT_EQ(a.tiles.efficiency_packed, 1);
  EXPECT_EQ(a.tiles.block_utilization, 1);
  EXPECT_EQ(a.bytes.logical, 8 * 2162688);
  EXPECT_EQ(a.bytes.logical, 33 << 19) << "16.5 MiB";
  EXPECT_EQ(a.bytes.pages, a.bytes.logical);
  EXPECT_EQ(a.bytes.aligned, 29 << 20);
  EXPECT_EQ(a.bytes.dense, 256 << 20);
  EXPECT_NEAR(a.bytes.compression_logical, 15.5, 0.05);
  EXPECT_NEAR(a.bytes.compression_aligned, 8.83, 0.005);
  EXPECT_EQ(a.bytes.index, 8 * 256 * 4 + 9 * 4);
  EXPECT_EQ(a.bytes.index_normalized, 8448);
  EXPECT_EQ(a.flops_logical, 69206016);
  EXPECT_EQ(a.flops_aligned, 121634816);
  EXPECT_EQ(a.workspace.partial_o, 65536);
  EXPECT_EQ(a.workspace.partial_ml, 1024);
  EXPECT_EQ(a.workspace.total, 66560);
  EXPECT_EQ(a.workspace.total * 64, 65 << 16) << "4.0625 MiB at batch 64";
  EXPECT_NEAR(a.floor_us, 33 * 524288 / 3e6, 1e-9);
  a = account(t.problem, {.tile = 16});
  EXPECT_EQ(a.tiles.aligned, 8 * 264);
  EXPECT_EQ(a.tiles.efficiency_aligned, 1);
}

TEST(Accounting, ScatteredScalars) {
  // 32 bf16 scalars, each on a line of its own.
  TestProblem t({.kv_len = {1}, .head_dim = 32, .v_head_dim = 32, .dtype = DType::kBF16});
  t.all();
  t.problem.cache.k.stride[3] = t.problem.cache.v.stride[3] = 64;
  const Accounting a = account(t.problem);
  EXPECT_EQ(a.bytes.logical, 2 * 64);
  EXPECT_EQ(a.bytes.transactions, 2 * 4096);
  EXPECT_EQ(a.bytes.transaction_efficiency, 0.015625);
}

TEST(Accounting, WorkOfTokensLoadedInVain) {
  // 2048 tokens of one head on 40 tiles of 64, that is 2560 tokens loaded.
  TestProblem t = index_only({.kv_len = {2560}, .head_dim = 128, .v_head_dim = 128, .page_size = 64});
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 2560; ++i)
    if (i % 5 != 4) tokens.push_back(i);
  ASSERT_EQ(tokens.size(), 2048u);
  t.csr({tokens});
  const Accounting a = account(t.problem);
  EXPECT_EQ(a.flops_logical, 1048576);
  EXPECT_EQ(a.flops_aligned, 1310720);
  EXPECT_EQ(a.tiles.efficiency_aligned, 0.8);
}

TEST(Accounting, TheFloor) {
  // 2048 tokens, K + V 512 B each.
  TestProblem t = index_only({.kv_len = {2048}, .head_dim = 128, .v_head_dim = 128, .page_size = 64});
  t.all();
  EXPECT_EQ(account(t.problem).bytes.logical, 2048 * 512);
  EXPECT_EQ(account(t.problem).floor_us, 0) << "no bandwidth, no floor";
  EXPECT_NEAR(account(t.problem, {.bandwidth = 3e12}).floor_us, 0.3495, 5e-5);
  EXPECT_NEAR(account(t.problem, {.bandwidth = 0.2 * 3e12}).floor_us, 1.748, 5e-4);
}

TEST(Accounting, IntensityOfDecode) {
  // 2 / s FLOP per byte for elements of s bytes, times the group.
  for (const int64_t group : {1, 4})
    for (const int bits : {8, 16, 32}) {
      TestProblem t = index_only({.kv_len = {300},
                                  .q_heads = 2 * group,
                                  .kv_heads = 2,
                                  .head_dim = 64,
                                  .v_head_dim = 32,
                                  .page_size = 16},
                                 bits);
      t.all();
      const Accounting a = account(t.problem);
      EXPECT_EQ(static_cast<double>(a.flops_logical) / static_cast<double>(a.bytes.logical),
                16.0 / bits * static_cast<double>(group));
    }
}

TEST(Accounting, IndexAndWorkspaceBytes) {
  TestProblem t = index_only({.kv_len = {2048},
                              .q_len = {1024},
                              .q_heads = 32,
                              .head_dim = 128,
                              .v_head_dim = 128,
                              .page_size = 16});
  t.fixed(Rows(1024, std::vector<int32_t>(128, -1)));
  const Accounting a = account(t.problem, {.splits = 8});
  EXPECT_EQ(a.bytes.index, 512 << 10);
  EXPECT_EQ(a.workspace.partial_o, 128 << 20);
  EXPECT_EQ(a.workspace.partial_ml, 2 << 20);
  EXPECT_EQ(a.workspace.total, 130 << 20);
  EXPECT_EQ(a.workspace.splits, 8);
  EXPECT_EQ(account(t.problem, {.splits = 1}).workspace.total, 0);
  t.fixed(Rows(1024, {-1, -1}), std::vector<int32_t>(1024, 0));
  EXPECT_EQ(account(t.problem).bytes.index, 1024 * (2 * 4 + 4)) << "with the counts";
  t.csr64(Rows(1024, {0}));
  EXPECT_EQ(account(t.problem).bytes.index, 1025 * 8 + 1024 * 4);
}

TEST(Accounting, ScalesPerPageAndChannel) {
  const auto scales = [](int64_t page, ScaleKind kind, Format format) {
    const int64_t dim = 32, pack = format == Format::kInt4 ? 2 : 1;
    TestProblem t({.kv_len = {256}, .head_dim = dim, .v_head_dim = dim, .page_size = page});
    t.all();
    const int64_t pages = t.slots() / page;
    const DType dtype = format == Format::kInt4 ? DType::kU8 : DType::kI8;
    TensorView scale = dense_view(nullptr, DType::kF32, {pages, 1, dim});
    if (kind == ScaleKind::kPage) scale = dense_view(nullptr, DType::kF32, {pages, 1});
    if (kind == ScaleKind::kChannel) scale = dense_view(nullptr, DType::kF32, {1, dim});
    if (kind == ScaleKind::kToken) scale = dense_view(nullptr, DType::kF32, {pages, page, 1});
    for (const auto& [view, quant] : {std::pair{&t.problem.cache.k, &t.problem.cache.k_quant},
                                      {&t.problem.cache.v, &t.problem.cache.v_quant}}) {
      *view = dense_view(nullptr, dtype, {pages, page, 1, dim / pack});
      quant->format = format;
      quant->kind = kind;
      quant->scale = scale;
    }
    return account(t.problem).bytes;
  };
  const ByteAccount small = scales(16, ScaleKind::kPageChannel, Format::kInt8);
  EXPECT_EQ(small.logical, 256 * 2 * 32);
  EXPECT_EQ(small.scales * 4, small.logical) << "25 %";
  const ByteAccount large = scales(64, ScaleKind::kPageChannel, Format::kInt8);
  EXPECT_EQ(large.scales * 16, large.logical) << "6.25 %";
  EXPECT_EQ(scales(16, ScaleKind::kPage, Format::kInt8).scales, 2 * 16 * 4);
  EXPECT_EQ(scales(16, ScaleKind::kChannel, Format::kInt8).scales, 2 * 32 * 4);
  EXPECT_EQ(scales(16, ScaleKind::kToken, Format::kInt8).scales, 2 * 256 * 4);
  EXPECT_EQ(scales(16, ScaleKind::kChannel, Format::kInt4).logical, 256 * 32) << "half a byte an element";
}

TEST(Accounting, OneRowServesManyKvHeadsAndOneKvHeadManyRows) {
  const auto with_index_heads = [](int64_t index_heads) {
    TestProblem t = index_only({.kv_len = {64}, .q_heads = 8, .kv_heads = 2, .page_size = 16});
    t.problem.candidates.index_heads = index_heads;
    t.csr(Rows(index_heads, {0, 1, 40}));
    return account(t.problem, {.tile = 32});
  };
  for (const int64_t index_heads : {1, 2}) {
    const Accounting a = with_index_heads(index_heads);
    EXPECT_EQ(a.tiles.rows, index_heads);
    EXPECT_EQ(a.tiles.selected_tokens, 2 * 3) << "per KV head served";
    EXPECT_EQ(a.tiles.touched_pages, 2 * 2);
    EXPECT_EQ(a.tiles.aligned, 2 * 2);
    EXPECT_EQ(a.tiles.packed, 2 * 1);
    EXPECT_EQ(a.flops_logical, 2 * (4 + 4) * 8 * 3);
    EXPECT_EQ(a.bytes.dense, 2 * 64 * (4 + 4) * 2);
  }
  const Accounting own = with_index_heads(8);
  EXPECT_EQ(own.tiles.selected_tokens, 8 * 3) << "each query head's list loads its KV head again";
  EXPECT_EQ(own.flops_logical, 2 * (4 + 4) * 8 * 3);
}

TEST(Accounting, ARowsSetIsTheUnionOfItsQueries) {
  TestProblem t = index_only({.kv_len = {8}, .q_len = {4}, .page_size = 4});
  t.problem.candidates.query_block = 4;
  t.problem.mask.window = 2;
  t.csr({{0, 6}});
  const Accounting a = account(t.problem, {.tile = 4});
  // Positions 4 .. 7: {0,3,4} {0,4,5} {0,5,6} {0,6,7}
  EXPECT_EQ(a.tiles.selected_tokens, 6);
  EXPECT_EQ(a.flops_logical, 2 * 8 * 12);
  EXPECT_EQ(a.flops_aligned, 2 * 8 * 4 * 2 * 4);
  EXPECT_EQ(a.bytes.dense, 8 * 8 * 2);
}

TEST(Accounting, ContiguousCachesCountInUnits) {
  TestProblem t = index_only({.kv_len = {100}, .page_size = 0});
  t.problem.candidates.unit = 32;
  t.csr({{0, 3}});
  const Accounting a = account(t.problem);
  EXPECT_EQ(a.tiles.selected_tokens, 36);
  EXPECT_EQ(a.tiles.touched_pages, 2);
  EXPECT_EQ(a.tiles.packed, 1);
  EXPECT_EQ(a.tiles.block_utilization, 36.0 / 64);
  EXPECT_EQ(account(t.problem, {.tile = 48}).tiles.packed, 2) << "the last tile counts whole";
}

TEST(Accounting, NothingAtAllHasRatiosOfZero) {
  TestProblem t = index_only({.kv_len = {0}, .page_size = 16});
  t.csr({{}});
  const Accounting a = account(t.problem, {.bandwidth = 1});
  EXPECT_EQ(a.tiles.rows, 1);
  EXPECT_EQ(a.tiles.aligned, 0);
  EXPECT_EQ(a.tiles.packed, 0);
  EXPECT_EQ(a.tiles.efficiency_aligned, 0);
  EXPECT_EQ(a.tiles.efficiency_packed, 0);
  EXPECT_EQ(a.tiles.block_utilization, 0);
  EXPECT_EQ(a.bytes.compression_logical, 0);
  EXPECT_EQ(a.bytes.transaction_efficiency, 0);
  EXPECT_EQ(a.floor_us, 0);
}

TEST(Accounting, DoesNotCheckPages) {
  TestProblem t({.kv_len = {8}, .table = {{-1, 99}}, .pages = 1});
  t.csr({{0, 7}});
  EXPECT_EQ(account(t.problem).tiles.touched_pages, 2);
}

TEST(Accounting, OptionsAreChecked) {
  TestProblem t({.kv_len = {8}});
  t.all();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  struct Bad {
    AccountingOptions options;
    const char* argument;
  };
  const Bad bad[] = {{{.tile = 0}, "tile:"},
                     {{.tile = -64}, "tile:"},
                     {{.tile = INT64_MAX}, "tile:"},
                     {{.splits = 0}, "splits:"},
                     {{.splits = INT64_MAX}, "splits:"},
                     {{.bandwidth = -1}, "bandwidth:"},
                     {{.bandwidth = nan}, "bandwidth:"}};
  for (const Bad& b : bad) {
    const Status s = explain(t.problem, b.options).status();
    EXPECT_EQ(s.code(), Code::kInvalidArgument) << b.argument;
    EXPECT_EQ(s.message().rfind(b.argument, 0), 0u) << s.message();
  }
  EXPECT_EQ(account(t.problem, {.tile = int64_t{1} << 31}).tiles.aligned, 1);
}

TEST(Accounting, RefusesWhatTheSetsRefuse) {
  TestProblem t({.kv_len = {8}});
  t.csr({{8}});
  EXPECT_EQ(explain(t.problem, AccountingOptions{}).status().code(), Code::kIndexOutOfRange);
  t.problem.candidates.unit = 0;
  EXPECT_EQ(explain(t.problem, AccountingOptions{}).status().code(), Code::kInvalidArgument);
}

// Results saturate; under UBSan nothing may overflow on the way.
TEST(Accounting, AbsurdSizesSaturate) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  TestProblem t =
      index_only({.kv_len = {INT32_MAX - 1}, .head_dim = 65536, .v_head_dim = 65536, .page_size = 0}, 64);
  t.problem.candidates.unit = kMost;
  t.problem.candidates.query_block = kMost;
  t.cu_q()[1] = 1 << 20;
  t.problem.index_only->q_heads = 65536;
  t.csr({{}});
  t.problem.mask.sink = 1;
  const Accounting a = account(t.problem, {.tile = int64_t{1} << 31, .splits = 1 << 20, .bandwidth = 1e-300});
  EXPECT_EQ(a.workspace.partial_o, kMost);
  EXPECT_EQ(a.workspace.partial_ml, int64_t{1} << (20 + 20 + 16 + 3));
  EXPECT_EQ(a.workspace.total, kMost);
  EXPECT_EQ(a.flops_aligned, kMost);
  EXPECT_EQ(a.tiles.selected_tokens, 1);
}

TEST(Accounting, FarTokensOfWideHeadsDoNotOverflow) {
  // Token 2^27 of a contiguous cache of 2^32 elements a token lies at bit 2^65.
  TestProblem t = index_only({.kv_len = {(1 << 27) + 1},
                              .q_heads = 65536,
                              .kv_heads = 65536,
                              .head_dim = 65536,
                              .v_head_dim = 65536,
                              .page_size = 0},
                             64);
  t.problem.candidates.index_heads = 65536;
  Rows rows(65536);
  rows.back() = {1 << 27};
  t.csr(rows);
  const Accounting a = account(t.problem);
  EXPECT_EQ(a.bytes.logical, 2 * 65536 * 8);
  EXPECT_EQ(a.bytes.transactions, a.bytes.logical);
}

}  // namespace
}  // namespace tamis
