// Planted changes between two records.
#include "bench/compare.h"

#include <gtest/gtest.h>

#include "bench/environment.h"

namespace tamis::bench {
namespace {

Reading reading(const std::string& name, double median, double spread = 0.01) {
  Reading r{.name = name};
  r.description = {{"dtype", "bf16"}, {"threads", 2}};
  r.time = {.samples = 1000,
            .min = median * (1 - 2 * spread),
            .p25 = median * (1 - spread),
            .median = median,
            .p75 = median * (1 + spread),
            .p95 = median * (1 + 3 * spread),
            .p99 = median * (1 + 4 * spread),
            .max = median * 2,
            .mean = median};
  return r;
}

Json record(std::vector<Reading> readings) {
  return to_json(
      Record{.environment = environment("plain", 2), .readings = std::move(readings), .skipped = {}});
}

// The one change between two records of one reading.
Change change(const Reading& before, const Reading& after, double threshold = 0.05) {
  const auto changes = compare(record({before}), record({after}), threshold);
  EXPECT_TRUE(changes.ok());
  EXPECT_EQ(changes->size(), 1u);
  return changes->front();
}

TEST(Compare, FlagsAPlantedChangeAndNothingElse) {
  const Json before = record({reading("a", 100), reading("b", 100), reading("c", 100)});
  const Json after = record({reading("a", 101), reading("b", 120), reading("c", 80)});
  const auto changes = compare(before, after, 0.05);
  ASSERT_TRUE(changes.ok());
  ASSERT_EQ(changes->size(), 3u);
  EXPECT_EQ((*changes)[0].verdict, Verdict::kSame);
  EXPECT_EQ((*changes)[1].verdict, Verdict::kSlower);
  EXPECT_EQ((*changes)[2].verdict, Verdict::kFaster);
  EXPECT_DOUBLE_EQ((*changes)[1].ratio, 1.2);
}

TEST(Compare, ARecordIsTheSameAsItself) {
  const Json same = record({reading("a", 100), reading("b", 3)});
  const auto changes = compare(same, same, 0);
  ASSERT_TRUE(changes.ok());
  for (const Change& c : *changes) EXPECT_EQ(c.verdict, Verdict::kSame);
}

TEST(Compare, NoiseIsNoChange) {
  // 20 % apart, but the middle halves of the samples overlap.
  EXPECT_EQ(change(reading("a", 100, 0.15), reading("a", 120, 0.15)).verdict, Verdict::kSame);
  EXPECT_EQ(change(reading("a", 120, 0.15), reading("a", 100, 0.15)).verdict, Verdict::kSame);
}

TEST(Compare, TheThresholdDecides) {
  EXPECT_EQ(change(reading("a", 100), reading("a", 120), 0.3).verdict, Verdict::kSame);
  EXPECT_EQ(change(reading("a", 100), reading("a", 120), 0.1).verdict, Verdict::kSlower);
}

TEST(Compare, ACeilingThatMovedIsTakenOut) {
  Reading before = reading("a", 100), after = reading("a", 150);
  before.ceiling_us = 90;
  after.ceiling_us = 135;  // the memory was half as slow again
  const Change drifted = change(before, after);
  EXPECT_TRUE(drifted.scaled);
  EXPECT_EQ(drifted.verdict, Verdict::kSame);
  EXPECT_DOUBLE_EQ(drifted.ratio, 1.5);
  EXPECT_NEAR(drifted.scaled_ratio, 1, 1e-12);
  after.ceiling_us = 90;
  EXPECT_EQ(change(before, after).verdict, Verdict::kSlower);
}

TEST(Compare, ReadingsComeAndGo) {
  const auto changes = compare(record({reading("gone", 5)}), record({reading("new", 6)}), 0.05);
  ASSERT_TRUE(changes.ok());
  ASSERT_EQ(changes->size(), 2u);
  EXPECT_EQ((*changes)[0].verdict, Verdict::kOnlyNew);
  EXPECT_EQ((*changes)[1].verdict, Verdict::kOnlyOld);
}

TEST(Compare, AnotherCaseUnderTheSameNameIsNotCompared) {
  Reading after = reading("a", 300);
  after.description["threads"] = 4;
  EXPECT_EQ(change(reading("a", 100), after).verdict, Verdict::kOtherCase);
}

TEST(Compare, APeerIsAReadingOfItsOwn) {
  Reading peer = reading("a", 300);
  peer.peer = "torch";
  const Json both = record({reading("a", 100), peer});
  const auto changes = compare(both, both, 0.05);
  ASSERT_TRUE(changes.ok());
  ASSERT_EQ(changes->size(), 2u);
  EXPECT_EQ((*changes)[0].old_us, 100);
  EXPECT_EQ((*changes)[1].old_us, 300);
}

TEST(Compare, RefusesAnotherMachine) {
  const Json here = record({reading("a", 100)});
  Json there = here;
  there["cpu"]["model"] = "another cpu";
  Status s = compare(here, there, 0.05).status();
  EXPECT_EQ(s.code(), Code::kUnsupported);
  EXPECT_NE(s.message().find("another cpu"), std::string::npos);
  there = here;
  there["cpu"]["cores"] = 1024;
  EXPECT_EQ(compare(here, there, 0.05).status().code(), Code::kUnsupported);
  there = here;
  there["gpu"] = "some gpu";
  EXPECT_EQ(compare(here, there, 0.05).status().code(), Code::kUnsupported);
}

}  // namespace
}  // namespace tamis::bench
