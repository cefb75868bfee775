// Percentiles of known samples, and what a loop does with its contenders. Nothing here looks at a time.
#include "bench/protocol.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace tamis::bench {
namespace {

std::vector<double> one_to(int n) {
  std::vector<double> x(n);
  std::iota(x.begin(), x.end(), 1.0);
  return x;
}

TEST(Percentile, IsTheNearestRank) {
  EXPECT_EQ(percentile(one_to(100), 0.5), 50);
  EXPECT_EQ(percentile(one_to(100), 0.95), 95);
  EXPECT_EQ(percentile(one_to(100), 0.99), 99);
  EXPECT_EQ(percentile(one_to(1000), 0.99), 990);
  EXPECT_EQ(percentile(one_to(7), 0.5), 4);
  EXPECT_EQ(percentile(one_to(10), 0.95), 10);
  EXPECT_EQ(percentile({3.5}, 0.5), 3.5);
  EXPECT_EQ(percentile({3.5}, 0), 3.5);
  EXPECT_EQ(percentile({}, 0.5), 0);
}

TEST(Summary, OfShuffledSamples) {
  std::vector<double> x = one_to(200);
  std::reverse(x.begin() + 17, x.end());
  const Summary s = summarize(x);
  EXPECT_EQ(s.samples, 200);
  EXPECT_EQ(s.min, 1);
  EXPECT_EQ(s.p25, 50);
  EXPECT_EQ(s.median, 100);
  EXPECT_EQ(s.p75, 150);
  EXPECT_EQ(s.p95, 190);
  EXPECT_EQ(s.p99, 198);
  EXPECT_EQ(s.max, 200);
  EXPECT_EQ(s.mean, 100.5);
  EXPECT_EQ(summarize({}).samples, 0);
}

struct Log {
  std::vector<std::pair<std::string, int64_t>> events;
  Contender contender(const std::string& name, bool takes_turn = true) {
    return {.name = name,
            .call =
                [this, name](int64_t turn, Parts* parts) {
                  events.emplace_back(name, turn);
                  parts->push_back({"half", 0.5});
                  return Status();
                },
            .takes_turn = takes_turn};
  }
};

TEST(Measure, EveryContenderOnceARoundInChangingOrder) {
  Log log;
  const auto series = measure({log.contender("a"), log.contender("b"), log.contender("c")},
                              {.warmup = 10, .samples = 50, .long_event_us = 1e12});
  ASSERT_TRUE(series.ok());
  ASSERT_EQ(log.events.size(), 3u * 60);
  std::set<std::string> orders;
  for (size_t round = 0; round < 60; ++round) {
    std::set<std::string> seen;
    std::string order;
    for (size_t i = 0; i < 3; ++i) {
      seen.insert(log.events[3 * round + i].first);
      order += log.events[3 * round + i].first;
    }
    EXPECT_EQ(seen.size(), 3u);
    orders.insert(order);
  }
  EXPECT_EQ(orders.size(), 6u);
}

TEST(Measure, SeriesFollowTheirContenderAndPartsFollowIt) {
  Log log;
  const auto series =
      measure({log.contender("a"), log.contender("b")}, {.warmup = 4, .samples = 8, .long_event_us = 1e12});
  ASSERT_TRUE(series.ok());
  std::vector<std::string> names;
  for (const Series& s : *series) {
    names.push_back(s.name);
    EXPECT_EQ(s.us.size(), 8u);
    EXPECT_EQ(s.warmup, 4);
    EXPECT_EQ(s.note, "");
  }
  EXPECT_EQ(names, (std::vector<std::string>{"a", "a.half", "b", "b.half"}));
  EXPECT_EQ((*series)[1].us, std::vector<double>(8, 0.5));
  EXPECT_EQ((*series)[1].whole_us, 4);
}

TEST(Measure, NoTurnIsReadTwice) {
  Log log;
  ASSERT_TRUE(
      measure({log.contender("a"), log.contender("b"), log.contender("index", false)}, {.samples = 40}).ok());
  std::map<int64_t, int> uses;
  for (const auto& [name, turn] : log.events)
    if (name != "index") ++uses[turn];
  int64_t expected = 0;
  for (const auto& [turn, count] : uses) {
    EXPECT_EQ(turn, expected++);
    EXPECT_EQ(count, 1);
  }
}

TEST(Measure, SameSeedSameOrder) {
  Log first, second;
  for (Log* log : {&first, &second})
    ASSERT_TRUE(measure({log->contender("a"), log->contender("b")}, {.warmup = 2, .samples = 20}).ok());
  EXPECT_EQ(first.events, second.events);
}

TEST(Measure, LongEventsAreFewerAndSaySo) {
  Log log;
  // Any event is long here, and none fits in the budget: the least count is taken.
  const auto series =
      measure({log.contender("a")},
              {.warmup = 100, .samples = 1000, .long_event_us = 0, .long_budget_s = 0, .long_least = 30});
  ASSERT_TRUE(series.ok());
  EXPECT_EQ(series->front().us.size(), 30u);
  EXPECT_EQ(series->front().warmup, 3);
  EXPECT_NE(series->front().note.find("fewer samples"), std::string::npos);
  EXPECT_EQ(log.events.size(), 33u);
}

TEST(Measure, FailureNamesTheContender) {
  const Contender bad{.name = "broken",
                      .call = [](int64_t, Parts*) { return Status(Code::kUnsupported, "no such luck"); }};
  const auto series = measure({bad}, {});
  ASSERT_FALSE(series.ok());
  EXPECT_EQ(series.status().code(), Code::kUnsupported);
  EXPECT_EQ(series.status().message(), "broken: no such luck");
}

}  // namespace
}  // namespace tamis::bench
