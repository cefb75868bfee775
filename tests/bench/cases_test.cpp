// The table of benches, and one small piece of work through the whole loop.
#include "bench/cases.h"

#include <gtest/gtest.h>

#include <set>

#include "bench/index_work.h"
#include "bench/prefill.h"
#include "bench/problem64k.h"
#include "tamis/device.h"

namespace tamis::bench {
namespace {

TEST(Cases, NamesAreUniqueAndSaidInOneLine) {
  std::set<std::string> names;
  for (const Case& c : cases()) {
    EXPECT_TRUE(names.insert(c.name).second) << c.name;
    EXPECT_EQ(c.name.rfind(c.device ? "cuda." : "cpu.", 0), 0u) << c.name;
    EXPECT_FALSE(c.what.empty());
    EXPECT_EQ(c.what.find('\n'), std::string::npos);
  }
  for (const char* promised : {"cpu.decode64k.b1.bf16",
                               "cpu.decode64k.b1.f16",
                               "cpu.decode64k.b1.f32",
                               "cpu.decode64k.b8.bf16",
                               "cpu.dense64k.b1.bf16",
                               "cpu.dense64k.b1.f32",
                               "cpu.prefill.block128.L4k.d12.bf16",
                               "cpu.prefill.block128.L4k.d12.f32",
                               "cpu.normalize.pages.8x264.64k",
                               "cpu.normalize.tokens.8x2048.64k",
                               "cpu.plan.8",
                               "cpu.plan.reuse1",
                               "cpu.plan.reuse32",
                               "cpu.plan.reuse64",
                               "cuda.normalize.tokens.512x2048.64k",
                               "cuda.normalize.tokens.512x2048.1m",
                               "cuda.normalize.tokens.8x2048.64k",
                               "cuda.normalize.pages.512x264.64k",
                               "cuda.plan.512",
                               "cuda.decode64k.b1",
                               "cuda.decode64k.b8",
                               "cuda.decode64k.b64",
                               "cuda.decode64k.tokens2048.b64",
                               "cuda.decode64k.b1.dense",
                               "cuda.decode64k.b8.dense",
                               "cuda.decode64k.b64.dense"})
    EXPECT_EQ(names.count(promised), 1u) << promised;
}

TEST(Cases, PatternsAreGlobs) {
  const auto found = find_cases({"cpu.plan.*", "cpu.plan.8"});
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->size(), 4u);  // each once
  EXPECT_EQ(find_cases({"cpu.plan.8", "gpu.*"}).status().code(), Code::kInvalidArgument);
}

TEST(Cases, ARecordIsOfTheDeviceOrOfTheCpu) {
  const Status both = run_benches({.patterns = {"cpu.plan.8", "cuda.plan.512"}}, {}).status();
  EXPECT_EQ(both.code(), Code::kInvalidArgument);
  EXPECT_NE(both.message().find("cuda.*"), std::string::npos);
}

// Also when many are named: a record of nothing but skipped cases would look like a reading.
TEST(Cases, WithoutADeviceItsBenchesAreAnError) {
  if (cuda_devices().ok()) GTEST_SKIP() << "there is a device";
  EXPECT_EQ(run_benches({.patterns = {"cuda.decode*"}}, {}).status().code(), Code::kDeviceError);
}

Session small_session() {
  return {.context = Context(2),
          .protocol = {.warmup = 2, .samples = 3},
          .ceilings = {1, 1, 1},
          .trace = {},
          .progress = {}};
}

const Reading& named(const Readings& readings, const std::string& name) {
  for (const Reading& r : readings)
    if (r.name == name) return r;
  ADD_FAILURE() << "no reading " << name;
  return readings.front();
}

TEST(Cases, AttentionGivesPartsAndWholeWithCheckedErrors) {
  Session session = small_session();
  const Result<Work> work =
      decode_work({.requests = 2, .dtype = DType::kF32, .scale = {.scale = 1}, .turns = 2}, session.context);
  ASSERT_TRUE(work.ok());
  const Result<Readings> readings = attention_readings(session, "x", *work, Path::kDirect);
  ASSERT_TRUE(readings.ok()) << readings.status().message();
  for (const char* name : {"x", "x.attention", "x.merge", "x.normalize", "x.plan", "x.plan.bundle",
                           "x.plan.make", "x.plan.schedule", "x.whole", "x.reader"})
    EXPECT_EQ(named(*readings, name).time.samples, 3) << name;
  for (const char* name : {"x", "x.whole"}) {
    const Reading r = named(*readings, name);
    EXPECT_EQ(r.bytes, work->bytes);
    EXPECT_EQ(r.ceiling, "x.reader");
    ASSERT_TRUE(r.max_error.has_value());
    EXPECT_LT(*r.max_error, 1e-5);
    EXPECT_EQ(r.checked_rows, 64);
  }
  EXPECT_EQ(named(*readings, "x.reader").bytes, work->bytes);
  EXPECT_TRUE(named(*readings, "x.whole").more.contains("overlap_us"));
}

TEST(Cases, DenseAndPrefillAreCheckedToo) {
  Session session = small_session();
  const Result<Work> dense = dense_work({.dtype = DType::kF32, .kv_len = 2048}, session.context);
  const Result<Work> blocks = prefill_work({.dtype = DType::kF32, .length = 1024}, session.context);
  ASSERT_TRUE(dense.ok() && blocks.ok());
  const Result<Readings> a = attention_readings(session, "dense", *dense, Path::kDense),
                         b = attention_readings(session, "blocks", *blocks, Path::kDirect);
  ASSERT_TRUE(a.ok()) << a.status().message();
  ASSERT_TRUE(b.ok()) << b.status().message();
  EXPECT_LT(*named(*a, "dense").max_error, 1e-5);
  EXPECT_LT(*named(*b, "blocks").max_error, 1e-5);
  EXPECT_EQ(named(*b, "blocks").ceiling, "gemm_f32");
}

TEST(Cases, IndexReadingsAreCheckedAgainstTheReference) {
  Session session = small_session();
  for (const Work& work : {page_lists_work(2, 1), token_lists_work(2, 1)}) {
    const Result<Readings> readings = normalize_reading(session, "n", work);
    ASSERT_TRUE(readings.ok()) << readings.status().message();
    EXPECT_EQ(readings->front().max_error, 0.0);
    EXPECT_EQ(readings->front().checked_rows, 8);
  }
  const Work work = page_lists_work(2, 1);
  EXPECT_TRUE(plan_reading(session, "p", work).ok());
  const Result<Readings> reuse = reuse_reading(session, "r", work, 32);
  ASSERT_TRUE(reuse.ok()) << reuse.status().message();
  EXPECT_EQ(reuse->front().description["layers"], 32);
}

}  // namespace
}  // namespace tamis::bench
