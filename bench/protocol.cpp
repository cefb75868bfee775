#include "protocol.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "data.h"

namespace tamis::bench {
namespace {

using Clock = std::chrono::steady_clock;

struct Counts {
  int64_t warmup, samples;
  std::string note;
};

std::string number(double x) {
  std::string text = std::to_string(x);
  return text.substr(0, text.find('.') + 2);
}

// `longest` is the time of the slowest contender: they share the rounds, so they share the counts.
Counts choose_counts(const Protocol& p, double longest) {
  if (longest <= p.long_event_us || p.samples <= p.long_least)
    return {std::min(p.warmup, p.samples), p.samples, ""};
  const auto fitting = static_cast<int64_t>(p.long_budget_s * 1e6 / longest);
  const int64_t samples = std::clamp(fitting, p.long_least, p.samples);
  return {std::clamp<int64_t>(samples / 10, 3, p.warmup), samples,
          "fewer samples: one event of this loop takes " + number(longest / 1000) + " ms"};
}

class Loop {
 public:
  explicit Loop(const std::vector<Contender>& contenders, const Protocol& protocol)
      : contenders_(contenders), random_(protocol.seed), order_(contenders.size()) {
    std::iota(order_.begin(), order_.end(), size_t{0});
  }

  // One event of each contender; `keep` adds it to the series.
  Status round(bool keep) {
    random_.shuffle(order_);
    for (const size_t i : order_) {
      double us = 0;
      Parts parts;
      if (Status s = event(contenders_[i], &us, &parts); !s.ok()) return s;
      longest_ = std::max(longest_, us);
      if (!keep) continue;
      add(i, contenders_[i].name, us);
      for (const Part& part : parts) add(i, contenders_[i].name + "." + part.name, part.us);
    }
    return {};
  }

  double take_longest() { return std::exchange(longest_, 0); }

  std::vector<Series> finish(const Counts& counts) {
    // In the order of the contenders, each followed by its parts.
    std::stable_sort(found_.begin(), found_.end(),
                     [](const Found& a, const Found& b) { return a.contender < b.contender; });
    std::vector<Series> out;
    for (Found& f : found_) {
      f.series.warmup = counts.warmup;
      f.series.note = counts.note;
      f.series.whole_us = std::accumulate(f.series.us.begin(), f.series.us.end(), 0.0);
      out.push_back(std::move(f.series));
    }
    return out;
  }

 private:
  struct Found {
    size_t contender;
    Series series;
  };

  Status event(const Contender& contender, double* us, Parts* parts) {
    const int64_t turn = contender.takes_turn ? turn_++ : turn_;
    const auto start = Clock::now();
    Status status = contender.call(turn, parts);
    *us = std::chrono::duration<double, std::micro>(Clock::now() - start).count();
    if (status.ok()) return status;
    return {status.code(), contender.name + ": " + status.message(), status.where()};
  }

  void add(size_t contender, const std::string& name, double us) {
    auto at =
        std::find_if(found_.begin(), found_.end(), [&](const Found& f) { return f.series.name == name; });
    if (at == found_.end())
      at = found_.insert(found_.end(), {contender, {.name = name, .us = {}, .note = {}}});
    at->series.us.push_back(us);
  }

  const std::vector<Contender>& contenders_;
  Random random_;
  std::vector<size_t> order_;
  std::vector<Found> found_;
  int64_t turn_ = 0;
  double longest_ = 0;
};

}  // namespace

double percentile(const std::vector<double>& ascending, double share) {
  if (ascending.empty()) return 0;
  const auto n = static_cast<double>(ascending.size());
  // The small step back keeps 0.95 * 100 at rank 95, whatever the last bit of the product.
  const auto rank = static_cast<int64_t>(std::ceil(share * n - 1e-9));
  return ascending[std::clamp<int64_t>(rank, 1, static_cast<int64_t>(ascending.size())) - 1];
}

Summary summarize(std::vector<double> samples) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  return {.samples = static_cast<int64_t>(samples.size()),
          .min = samples.front(),
          .p25 = percentile(samples, 0.25),
          .median = percentile(samples, 0.5),
          .p75 = percentile(samples, 0.75),
          .p95 = percentile(samples, 0.95),
          .p99 = percentile(samples, 0.99),
          .max = samples.back(),
          .mean = std::accumulate(samples.begin(), samples.end(), 0.0) / static_cast<double>(samples.size())};
}

Result<std::vector<Series>> measure(const std::vector<Contender>& contenders, const Protocol& protocol) {
  Loop loop(contenders, protocol);
  // Two rounds tell how long events are; the first also pays for page faults, so only the second counts.
  for (int i = 0; i < 2; ++i) {
    loop.take_longest();
    if (Status s = loop.round(false); !s.ok()) return s;
  }
  const Counts counts = choose_counts(protocol, loop.take_longest());
  for (int64_t i = 2; i < counts.warmup; ++i)
    if (Status s = loop.round(false); !s.ok()) return s;
  for (int64_t i = 0; i < counts.samples; ++i)
    if (Status s = loop.round(true); !s.ok()) return s;
  return loop.finish(counts);
}

}  // namespace tamis::bench
