// The prefill benches of the device: their lists, counts and plans on the host, and small work through the
// whole loop where there is a device.
#include "bench/device_prefill.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "bench/cases.h"
#include "support/folder.h"
#include "tamis/device.h"
#include "tamis/io.h"

namespace tamis::bench {
namespace {

PrefillLists drawn(const PrefillWork& work, const std::string& trace = {}) {
  Result<PrefillLists> lists = draw_lists(work, trace);
  EXPECT_TRUE(lists.ok()) << lists.status().message();
  return lists.ok() ? std::move(*lists) : PrefillLists{};
}

// The raw entries of a row, in the order drawn.
std::vector<int32_t> raw(const PrefillLists& lists, int64_t r) {
  const auto begin = lists.indices.begin() + r * lists.width;
  return {begin, begin + (lists.count.empty() ? lists.width : lists.count[r])};
}

constexpr PrefillWork kSmall{
    .queries = 1024, .kv_len = 1024, .block = 16, .query_block = 64, .sixteenths = 4};

PrefillWork small(bool causal, bool masked, int64_t kv_len = 1024) {
  PrefillWork w = kSmall;
  w.causal = causal, w.masked = masked, w.kv_len = kv_len;
  return w;
}

TEST(PrefillLists, EveryRowListsItsShareOnce) {
  for (const int64_t block : {16, 64, 128})
    for (const int64_t sixteenths : {1, 2, 4, 8, 16}) {
      const PrefillWork w{.queries = 2048, .kv_len = 4096, .block = block, .sixteenths = sixteenths};
      const PrefillLists lists = drawn(w);
      ASSERT_EQ(lists.indices.size(), static_cast<size_t>(16 * 8 * lists.width));
      EXPECT_EQ(lists.width % 4, 0);
      for (int64_t r = 0; r < w.rows(); ++r) {
        const std::vector<int32_t> row = lists.row(r);
        ASSERT_EQ(static_cast<int64_t>(row.size()), std::max<int64_t>(1, 4096 / block * sixteenths / 16));
        EXPECT_EQ(raw(lists, r).size(), row.size());
        EXPECT_GE(row.front(), 0);
        EXPECT_LT(row.back(), 4096 / block);
      }
    }
}

TEST(PrefillLists, CausalRowsListVisibleBlocksAndTheirOwn) {
  const PrefillWork w = small(true, false, 2048);
  const PrefillLists lists = drawn(w);
  EXPECT_FALSE(lists.count.empty());
  for (int64_t r = 0; r < w.rows(); ++r) {
    const std::vector<int32_t> row = lists.row(r);
    const int64_t visible = (1024 + (r / 8 + 1) * 64) / 16;
    EXPECT_EQ(static_cast<int64_t>(row.size()), (visible + 3) / 4);
    EXPECT_EQ(row.back(), visible - 1);
    EXPECT_EQ(row[row.size() - 4], visible - 4);
  }
}

TEST(PrefillLists, MaskedRowsMissAnEighthOfEveryBlock) {
  const PrefillLists whole = drawn(small(false, false)), holes = drawn(small(false, true));
  EXPECT_EQ(holes.width, 7 * whole.width);
  for (int64_t r = 0; r < kSmall.rows(); ++r) {
    std::vector<int> listed(64);
    for (const int32_t e : holes.row(r)) ++listed[e / 8];
    for (const int n : listed) EXPECT_TRUE(n == 0 || n == 7) << n;
    EXPECT_EQ(std::count(listed.begin(), listed.end(), 7), whole.width);
  }
}

TEST(PrefillLists, OneAQueryHoldsTheFirstBlockAndTheNearOnes) {
  const PrefillWork w{.queries = 4096,
                      .kv_len = 4096,
                      .q_heads = 64,
                      .kv_heads = 4,
                      .listing = Listing::kNear,
                      .block = 64,
                      .query_block = 1,
                      .causal = true};
  const PrefillLists lists = drawn(w);
  EXPECT_EQ(lists.width, 16);
  for (int64_t r = 0; r < w.rows(); ++r) {
    const std::vector<int32_t> row = lists.row(r);
    const int64_t own = r / 4 / 64;
    ASSERT_EQ(static_cast<int64_t>(row.size()), std::min<int64_t>(16, own + 1));
    EXPECT_EQ(raw(lists, r).size(), row.size());
    EXPECT_EQ(row.front(), 0);
    EXPECT_EQ(row.back(), own);
    if (own > 0) {
      EXPECT_EQ(row[row.size() - 2], own - 1);
    }
  }
}

TEST(PrefillLists, RecordedOnesComeFromATensor) {
  const testing::TempFolder folder;
  const std::string path = folder / "trace.safetensors";
  PrefillWork w{.queries = 3,
                .kv_len = 192,
                .kv_heads = 2,
                .listing = Listing::kRecorded,
                .block = 64,
                .query_block = 1,
                .causal = true};
  const std::vector<int16_t> blocks{0, -1, 0, -1, 2, 0, 2, 1, 1, 1, 0, 2};
  const TensorView t = dense_view(blocks.data(), DType::kI16, {3, 2, 2});
  ASSERT_TRUE(io::write_tensors(path, {{"blocks", t}}, {{"unit", "64"}}).ok());
  const PrefillLists lists = drawn(w, path);
  EXPECT_EQ(lists.row(0), std::vector<int32_t>{0});
  EXPECT_EQ(lists.row(2), (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(lists.row(4), std::vector<int32_t>{1});
  w.queries = 4;
  EXPECT_EQ(draw_lists(w, path).status().code(), Code::kInvalidArgument);
  w.queries = 3, w.block = 32;
  EXPECT_EQ(draw_lists(w, path).status().code(), Code::kInvalidArgument);
}

TEST(PrefillLists, SameSeedSameLists) {
  for (const Listing listing : {Listing::kUniform, Listing::kNear}) {
    PrefillWork w = small(true, false);
    w.listing = listing;
    const PrefillLists a = drawn(w), b = drawn(w);
    EXPECT_EQ(a.indices, b.indices);
    w.seed = 7;
    EXPECT_NE(drawn(w).indices, a.indices);
  }
}

TEST(PrefillCounts, SelectedPairsAreThoseOfTheLists) {
  for (const bool masked : {false, true})
    for (const bool causal : {false, true})
      for (const int64_t kv_len : {1024, 2048})
        for (const Listing listing : {Listing::kUniform, Listing::kAll, Listing::kNear}) {
          PrefillWork w = small(causal, masked && listing == Listing::kUniform, kv_len);
          w.listing = listing;
          if (listing == Listing::kNear) w.query_block = 1, w.queries = 256;
          const PrefillLists lists = drawn(w);
          int64_t pairs = 0, tokens = 0;
          for (int64_t r = 0; r < w.rows(); ++r) {
            std::vector<bool> listed(static_cast<size_t>(kv_len), listing == Listing::kAll);
            if (listing != Listing::kAll)
              for (const int64_t e : lists.row(r))
                for (int64_t t = e * w.unit(); t < (e + 1) * w.unit(); ++t) listed[t] = true;
            std::set<int64_t> seen;
            for (int64_t q = w.first_query(r / 8); q < w.end_query(r / 8); ++q)
              for (int64_t t = 0; t < (causal ? w.position(q) + 1 : kv_len); ++t)
                if (listed[t]) ++pairs, seen.insert(t);
            tokens += static_cast<int64_t>(seen.size());
          }
          const PrefillCount counted = count_selected(w, lists);
          EXPECT_EQ(counted.pairs, pairs);
          EXPECT_EQ(counted.tokens, tokens);
          EXPECT_EQ(flops_of(w, counted), 4 * 128 * 4 * pairs);
          EXPECT_EQ(bytes_of(counted), tokens * 512);
        }
}

TEST(PrefillCases, NamesOfTheProtocolAreThere) {
  std::set<std::string> names;
  for (const Case& c : cases()) names.insert(c.name);
  for (const char* block : {"block16", "block64", "block128"}) {
    for (const char* length : {"L16k", "L32k"})
      for (const char* share : {"d6", "d12", "d25", "d50", "d100"})
        EXPECT_EQ(names.count(std::string("cuda.prefill.") + block + "." + length + "." + share), 1u);
    for (const char* share : {"d6", "d25"})
      for (const char* variant : {".causal", ".masked", ".nhd", ".pairs", ".paged", ".paged.hnd"})
        EXPECT_EQ(names.count(std::string("cuda.prefill.") + block + ".L32k." + share + variant), 1u);
  }
  for (const char* name :
       {"dense.L16k", "dense.L16k.pairs", "block128.L32k.d6.kv32", "block128.L32k.d25.kv32",
        "lists.random.T64k", "lists.trace.T64k", "chunk.2k.on128k", "chunk.128.on128k",
        "chunk.128.on128k.dense", "cross.L8k.dense", "cross.L128k.block16.d1.uniform",
        "cross.L32k.block64.d75.clustered", "normalize.block16.L32k.d6", "normalize.block128.L32k.d25"})
    EXPECT_EQ(names.count(std::string("cuda.prefill.") + name), 1u) << name;
}

// Sizes as docs/benchmarks.md states them.
TEST(PrefillCases, SharesAndHeadsAreThoseOfTheName) {
  for (const PrefillCase& c : prefill_cases()) {
    const std::string& name = c.reading;
    const PrefillWork& w = c.work;
    EXPECT_EQ(w.q_heads, w.listing == Listing::kNear || w.listing == Listing::kRecorded ? 64 : 32) << name;
    if (name.rfind("block", 0) != 0) continue;
    EXPECT_EQ(w.block, std::atoi(name.c_str() + 5)) << name;
    EXPECT_EQ(w.kv_len / 1024, std::atoi(name.c_str() + name.find(".L") + 2)) << name;
    EXPECT_EQ(100 * w.sixteenths / 16, std::atoi(name.c_str() + name.find(".d") + 2)) << name;
    EXPECT_EQ(w.query_block, w.block == 64 ? 64 : 128) << name;
    EXPECT_EQ(w.kv_heads, name.find(".kv32") == std::string::npos ? 8 : 32) << name;
    EXPECT_EQ(w.queries, w.kv_len) << name;
  }
}

TEST(PrefillCases, EveryOneIsPlannedForThePrefillKernel) {
  for (const PrefillCase& c : prefill_cases()) {
    // Extents alone decide: lists of the right width stand for the drawn ones.
    PrefillLists lists;
    if (c.work.listing != Listing::kAll) {
      lists.width = c.work.query_block == 1
                        ? 16
                        : c.work.listed(c.work.kv_len / c.work.block) * (c.work.masked ? 7 : 1);
      lists.indices.assign(static_cast<size_t>(c.work.rows() * lists.width), -1);
    }
    const PrefillArrays arrays(c.work, lists);
    const Result<cuda::StepPlan> plan =
        cuda::plan_step(arrays.problem(nullptr, nullptr, nullptr), prefill_options(c.work));
    if (!plan.ok() && plan.status().code() == Code::kDeviceError) GTEST_SKIP() << plan.status().message();
    ASSERT_TRUE(plan.ok()) << c.reading << ": " << plan.status().message();
    EXPECT_EQ(plan->pairs, c.work.pairs) << c.reading << ": " << plan->plan.reason;
    EXPECT_EQ(plan->kernel, "prefill_sm90_bf16") << c.reading;
    EXPECT_EQ(plan->plan.reason, "") << c.reading;
    EXPECT_EQ(plan->plan.block, std::min<int64_t>(c.work.page > 0 ? c.work.page : 64,
                                                  c.work.listing == Listing::kAll ? 64 : c.work.block))
        << c.reading;
    EXPECT_LT(plan->bytes.index + plan->bytes.scratch, int64_t{4} << 30) << c.reading;
    // Rows may be split wherever there is room for them; these must be.
    if (c.reading.rfind("chunk.128", 0) == 0) {
      EXPECT_LT(plan->groups * plan->column_tiles, 132) << c.reading;
      EXPECT_GT(plan->parts, 0) << c.reading;
    }
  }
}

TEST(PrefillDraws, RunsFillTheirShare) {
  for (const int64_t block : {16, 64, 128})
    for (const int64_t of64 : {1, 4, 16, 48}) {
      PrefillWork w{.queries = 256, .kv_len = 8192, .listing = Listing::kRuns, .block = block};
      w.sixteenths = of64, w.finer = true;
      const PrefillLists lists = drawn(w);
      for (int64_t r = 0; r < w.rows(); ++r) {
        const std::vector<int32_t> row = lists.row(r);  // ascending, none twice
        const int64_t wanted = std::max<int64_t>(1, 8192 / block * of64 / 64);
        ASSERT_EQ(static_cast<int64_t>(row.size()), wanted);
        int64_t begins = 0;
        for (size_t i = 0; i < row.size(); ++i) begins += i == 0 || row[i] != row[i - 1] + 1;
        EXPECT_LE(begins, (wanted + 512 / block - 1) / (512 / block)) << "block " << block << ", " << of64;
        EXPECT_TRUE(row.front() >= 0 && row.back() < 8192 / block);
      }
    }
}

// What the judge is given, against attention by hand: the first query of a paged, causal work.
TEST(PrefillArrays, TheJudgedProblemIsTheWork) {
  for (const Layout layout : {Layout::kNHD, Layout::kHND})
    for (const int64_t page : {0, 16}) {
      PrefillWork w = small(true, true, 1024);
      w.queries = 128, w.page = page, w.layout = layout, w.q_heads = 2, w.kv_heads = 1;
      const PrefillLists lists = drawn(w);
      const PrefillArrays arrays(w, lists);
      // K zero: all weights alike. V of a token is its number's parity.
      const std::vector<uint16_t> q(128 * 2 * 128, 0x3F80), k(1024 * 128);
      std::vector<uint16_t> v(k.size()), out(q.size());
      const Problem views = arrays.judged_problem(q.data(), k.data(), v.data());
      const auto* table = static_cast<const int32_t*>(views.cache.page_table.data);
      for (int64_t t = 0; t < 1024; ++t) {
        const int64_t slot = page == 0 ? t : table[t / page] * page + t % page;
        std::fill_n(v.begin() + slot * 128, 128, t % 2 ? 0x3F80 : 0);
      }
      int64_t odd = 0, all = 0;
      for (const int64_t e : lists.row(0))
        for (int64_t t = e * 2; t < e * 2 + 2; ++t)
          if (t <= w.position(5)) odd += t % 2, ++all;
      const Result<Judged> judged = judge(views, mutable_view(out.data(), DType::kBF16, {128, 2, 128}), {5});
      ASSERT_TRUE(judged.ok()) << judged.status().message();
      EXPECT_EQ(judged->rows, 2);
      EXPECT_NEAR(judged->max_error, static_cast<double>(odd) / static_cast<double>(all), 1e-12);
    }
}

TEST(PrefillChecks, QueriesAreInRangeAndFewWhereEachSelectsMuch) {
  for (const PrefillCase& c : prefill_cases()) {
    PrefillCount counted{.pairs = c.work.queries * c.work.kv_heads * 2048};
    for (const int64_t q : judged_queries(c.work, counted)) EXPECT_TRUE(q >= 0 && q < c.work.queries);
    EXPECT_EQ(judged_queries(c.work, counted).size(), 8u);
    counted.pairs *= 64;
    EXPECT_EQ(judged_queries(c.work, counted), std::vector<int64_t>{c.work.queries - 1});
  }
}

class CudaPrefillBench : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto devices = cuda_devices();
    if (!devices.ok()) GTEST_SKIP() << "no CUDA device";
    auto made = DeviceLab::make();
    ASSERT_TRUE(made.ok()) << made.status().message();
    lab_ = std::move(*made);
    session_.device = lab_.get();
  }

  std::unique_ptr<DeviceLab> lab_;
  Session session_{.context = Context(1),
                   .protocol = {.warmup = 2, .samples = 3},
                   .ceilings = {},
                   .trace = {},
                   .progress = {}};
};

TEST_F(CudaPrefillBench, StepsGivePartsAndWholeWithCheckedErrors) {
  PrefillWork all = small(true, false), pages = small(true, false, 2048);
  all.listing = Listing::kAll;
  pages.page = 16, pages.queries = 128;
  for (const PrefillWork& work : {small(false, false), small(true, true), all, pages}) {
    const Result<Readings> found = prefill_readings(session_, "x", work, true);
    if (!found.ok() && found.status().code() == Code::kUnsupported) GTEST_SKIP() << found.status().message();
    ASSERT_TRUE(found.ok()) << found.status().message();
    std::set<std::string> names;
    for (const Reading& r : *found) {
      names.insert(r.name);
      const Json json = to_json(r);
      for (const std::string& key : reading_keys()) EXPECT_TRUE(json.contains(key)) << key;
      if (r.name != "x" && r.name != "x.index_attend") continue;
      EXPECT_GT(r.checked_rows, 0);
      EXPECT_LE(r.max_error.value_or(1), 0.02);  // values of some 0.3, results in bf16
    }
    EXPECT_EQ(names, (std::set<std::string>{"x", "x.index_attend", "x.step_parts", "x.step_parts.normalize",
                                            "x.step_parts.schedule"}));
  }
}

TEST_F(CudaPrefillBench, IndexReadingsAreCheckedAgainstTheLists) {
  const Result<Readings> found = prefill_index_readings(session_, "y", small(false, true));
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ((*found)[0].name, "prefill.normalize.y");
  EXPECT_EQ((*found)[0].max_error.value_or(1), 0);
  EXPECT_EQ((*found)[1].name, "prefill.plan.y");
}

}  // namespace
}  // namespace tamis::bench
