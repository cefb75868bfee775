// Small work through the whole loop of the device benches; skipped where there is no device.
#include "bench/device_decode.h"

#include <gtest/gtest.h>

#include "bench/device_cases.h"
#include "tamis/device.h"

namespace tamis::bench {
namespace {

class CudaBench : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!cuda_devices().ok()) GTEST_SKIP() << "no CUDA device";
    auto made = DeviceLab::make();
    ASSERT_TRUE(made.ok()) << made.status().message();
    lab_ = std::move(*made);
    session_.device = lab_.get();
    session_.device_read_tb_s = 1;
  }

  Readings readings(const Result<Readings>& found) {
    EXPECT_TRUE(found.ok()) << found.status().message();
    return found.ok() ? *found : Readings{};
  }

  std::unique_ptr<DeviceLab> lab_;
  Session session_{.context = Context(1),
                   .protocol = {.warmup = 2, .samples = 3},
                   .ceilings = {},
                   .trace = {},
                   .progress = {}};
};

const Reading* named(const Readings& readings, const std::string& name) {
  for (const Reading& r : readings)
    if (r.name == name) return &r;
  return nullptr;
}

void expect_right(const Readings& readings, const std::string& name, double most) {
  const Reading* r = named(readings, name);
  ASSERT_NE(r, nullptr) << name;
  EXPECT_EQ(r->time.samples, 3);
  ASSERT_TRUE(r->max_error.has_value()) << name;
  EXPECT_LE(*r->max_error, most) << name;
  EXPECT_GT(r->checked_rows, 0);
  const Json json = to_json(*r);
  for (const std::string& key : reading_keys()) EXPECT_TRUE(json.contains(key)) << key;
}

// Results of 500 and more tokens are about 0.05; half a step of bf16 there is 1e-4.
constexpr double kMost = 1e-3;

TEST_F(CudaBench, StepsGivePartsAndWholeWithCheckedErrors) {
  for (const StepWork& work :
       {StepWork{.requests = 2, .kv_len = 8192, .listed = 32},
        StepWork{.requests = 2, .kv_len = 8192, .page = 64, .listed = 16, .unit = 64},
        StepWork{.requests = 2, .kv_len = 8192, .listed = 32, .spread = Spread::kHot, .layout = Layout::kHND},
        StepWork{.requests = 2, .kv_len = 8192, .listed = 512, .unit = 1, .window = 0}}) {
    const Readings found = readings(step_readings(session_, "x", work, true));
    expect_right(found, "x.attend", kMost);
    expect_right(found, "x.index_attend", kMost);
    for (const char* name : {"x.reader", "x.step_parts", "x.step_parts.normalize", "x.step_parts.schedule"})
      EXPECT_NE(named(found, name), nullptr) << name;
    const Reading* attend = named(found, "x.attend");
    if (attend == nullptr) continue;
    EXPECT_EQ(attend->more["counters"]["tokens_selected"], attend->more["counters"]["tokens_loaded"]);
    EXPECT_EQ(attend->more["counters"]["stale_rows"], 0);
    EXPECT_TRUE(named(found, "x.step_parts")->more.contains("overlap_us"));
  }
}

TEST_F(CudaBench, DenseStepsAreCheckedToo) {
  const Readings found =
      readings(step_readings(session_, "d", {.requests = 2, .kv_len = 2048, .dense = true}, false));
  expect_right(found, "d", kMost);
  EXPECT_NE(named(found, "d.reader"), nullptr);
}

TEST_F(CudaBench, IndexReadingsAreCheckedAgainstTheLists) {
  const StepWork pages{.requests = 2, .kv_len = 8192, .listed = 40, .window = 0, .index_only = true},
      tokens{.requests = 2, .kv_len = 8192, .listed = 256, .unit = 1, .window = 0, .index_only = true};
  for (const StepWork& work : {pages, tokens})
    expect_right(readings(device_normalize_reading(session_, "n", work)), "n", 0);
  const Readings plan = readings(device_plan_reading(session_, "p", pages));
  for (const char* name : {"p.graph", "p.host", "p.host.plan_step", "p.host.launch"})
    EXPECT_NE(named(plan, name), nullptr) << name;
}

}  // namespace
}  // namespace tamis::bench
