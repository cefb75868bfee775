// The lists of the 64K case are what docs/semantics.md section 14 counts, for any seed, and the same for the
// same.
#include "bench/lists.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "bench/index_work.h"
#include "support/folder.h"
#include "tamis/explain.h"
#include "tamis/io.h"

namespace tamis::bench {
namespace {

using Lists = std::vector<std::vector<int32_t>>;

Lists draw(std::vector<int32_t> (*make)(Random&, const Scale&), const Scale& scale, uint64_t seed) {
  Random random(seed);
  Lists lists;
  for (int head = 0; head < 8; ++head) lists.push_back(make(random, scale));
  return lists;
}

// The case of one request, as explain sees it.
Accounting account(const Lists& lists, const Scale& scale) {
  std::vector<int32_t> indptr{0}, indices, table(scale.pages());
  for (const auto& list : lists) {
    indices.insert(indices.end(), list.begin(), list.end());
    indptr.push_back(static_cast<int32_t>(indices.size()));
  }
  for (int64_t p = 0; p < scale.pages(); ++p) table[p] = static_cast<int32_t>(p);
  const int32_t cu_q[] = {0, 1}, kv_len[] = {static_cast<int32_t>(scale.kv_len())};
  Problem p;
  p.index_only = IndexOnly{.q_heads = 32, .kv_heads = 8, .head_dim = 128, .v_head_dim = 128, .page_size = 16};
  p.query.cu_q = dense_view(cu_q, DType::kI32, {2});
  p.cache.kv_len = dense_view(kv_len, DType::kI32, {1});
  p.cache.page_table = dense_view(table.data(), DType::kI32, {1, scale.pages()});
  p.candidates = {.form = CandidateForm::kCsr,
                  .indptr = dense_view(indptr.data(), DType::kI32, {static_cast<int64_t>(indptr.size())}),
                  .indices = dense_view(indices.data(), DType::kI32, {static_cast<int64_t>(indices.size())}),
                  .unit = 16,
                  .index_heads = 8};
  p.mask.window = Scale::kWindow;
  const Result<Accounting> a = explain(p, AccountingOptions{});
  EXPECT_TRUE(a.ok()) << a.status().message();
  return a.ok() ? *a : Accounting{};
}

TEST(Lists, UniformIsTheWorkedExample) {
  for (const uint64_t seed : {64, 1, 999}) {
    const Lists lists = draw(uniform_pages, {}, seed);
    for (const auto& list : lists) {
      EXPECT_EQ(list.size(), 256u);
      EXPECT_EQ(std::set<int32_t>(list.begin(), list.end()).size(), 256u);
      EXPECT_EQ(std::count_if(list.begin(), list.end(), [](int32_t p) { return p >= 4080; }), 8);
      EXPECT_FALSE(std::is_sorted(list.begin(), list.end()));
    }
    const Accounting a = account(lists, {});
    EXPECT_EQ(a.tiles.touched_pages, 8 * 264);
    EXPECT_EQ(a.tiles.selected_tokens, 8 * 4224);
    EXPECT_EQ(a.tiles.aligned, 928);
    EXPECT_EQ(a.tiles.packed, 528);
    EXPECT_EQ(a.bytes.logical, 8 * 2162688);
    EXPECT_EQ(a.flops_logical, 69206016);
  }
}

TEST(Lists, ClusteredTouchesAsMuchInRuns) {
  const Lists lists = draw(clustered_pages, {}, 5);
  for (std::vector<int32_t> list : lists) {
    EXPECT_EQ(list.size(), 256u);
    std::sort(list.begin(), list.end());
    int runs = 1;
    for (size_t i = 1; i < list.size() && list[i] < 4080; ++i) runs += list[i] != list[i - 1] + 1;
    EXPECT_LE(runs, 8);
  }
  const Accounting a = account(lists, {});
  EXPECT_EQ(a.tiles.touched_pages, 8 * 264);
  EXPECT_EQ(a.tiles.selected_tokens, 8 * 4224);
}

TEST(Lists, SmallScalesKeepTheProportions) {
  const Scale small{.scale = 1};
  EXPECT_EQ(small.listed(), 39);
  for (const auto make : {uniform_pages, clustered_pages})
    EXPECT_EQ(account(draw(make, small, 3), small).tiles.touched_pages, 8 * (39 + 8));
}

TEST(Lists, SameSeedSameLists) {
  for (const auto make : {uniform_pages, clustered_pages}) {
    EXPECT_EQ(draw(make, {}, 7), draw(make, {}, 7));
    EXPECT_NE(draw(make, {}, 7), draw(make, {}, 8));
  }
}

TEST(Lists, TheGeneratorIsTheSameEverywhere) {
  Random random(0);  // SplitMix64 of seed 0, as published
  EXPECT_EQ(random.next(), 0xE220A8397B1DCDAFu);
  EXPECT_EQ(random.next(), 0x6E789E6AA1B965F4u);
}

TEST(Lists, SamplesAreDifferentNumbersInRange) {
  Random random(3);
  const std::vector<int32_t> some = random.sample(10, 10);
  EXPECT_EQ(std::set<int32_t>(some.begin(), some.end()).size(), 10u);
  EXPECT_EQ(*std::min_element(some.begin(), some.end()), 0);
  EXPECT_EQ(*std::max_element(some.begin(), some.end()), 9);
  std::map<int64_t, int> seen;
  for (int i = 0; i < 3000; ++i) ++seen[random.below(3)];
  for (int64_t x = 0; x < 3; ++x) EXPECT_GT(seen[x], 900);
}

TEST(IndexWork, HasTheNamedSizes) {
  const Work pages = page_lists_work(2, 1), tokens = token_lists_work(2, 1);
  EXPECT_EQ(pages.turns[1].candidates.indices.elements(), 8 * 264);
  EXPECT_EQ(tokens.turns[1].candidates.indices.elements(), 8 * 2048);
  for (const Work* work : {&pages, &tokens})
    for (const Problem& p : work->turns) EXPECT_TRUE(describe(p).ok());
}

// A trace of two layers, two KV heads, three queries of two pages.
class TraceFile {
 public:
  explicit TraceFile(const io::Metadata& metadata) {
    std::vector<int16_t> pages(12);
    for (size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<int16_t>(i);
    const TensorView view = dense_view(pages.data(), DType::kI16, {2, 3, 2});
    EXPECT_TRUE(io::write_tensors(path, {{"quest_pages_l0", view}, {"quest_pages_l1", view}, {"other", view}},
                                  metadata)
                    .ok());
  }
  const testing::TempFolder folder;
  const std::string path = folder / "trace.safetensors";
};

TEST(Trace, GivesTheSelectionOfAHeadAndQuery) {
  const TraceFile file({{"kv_len", "65536"}, {"page", "16"}});
  const Result<Trace> trace = Trace::read(file.path, {});
  ASSERT_TRUE(trace.ok()) << trace.status().message();
  EXPECT_EQ(trace->pages(1, 2), (std::vector<int32_t>{10, 11}));
  EXPECT_EQ(trace->pages(5, 3), trace->pages(1, 0));  // four heads of two layers, three queries: both wrap
}

TEST(Trace, RefusesAnotherContextAndOtherFiles) {
  const TraceFile file({{"kv_len", "8192"}, {"page", "16"}});
  EXPECT_EQ(Trace::read(file.path, {}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Trace::read(file.path + ".none", {}).status().code(), Code::kIoError);
}

}  // namespace
}  // namespace tamis::bench
