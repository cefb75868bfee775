// Tier edges by dynamic programming over the different lengths, from the longest down.
//
// best[i] is the best way to serve lengths i .. n - 1 as (cost, tiers). A first tier that ends at length j
// holds i .. j, all padded to edge[j]:
//
//     best[i] = min over j >= i of  (rows[i .. j] * edge[j] + price, 1) + best[j + 1]
//
// The smallest j among equals gives the smallest edges: pairs add up, so a choice is best only if its rest
// is. The price in entries makes per_entry and the number of rows drop out of the comparison.
#include "tamis/tiers.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/checks.h"
#include "tamis/convert.h"

namespace tamis {
namespace {

// Costs in 2^-20 entries. Below 2^62 rows of edges below 2^31 they stay below 2^113.
__extension__ typedef __int128 Wide;
constexpr int kFraction = 20;
constexpr Wide kMostPrice = Wide{1} << 114;  // dearer than any padding: one tier
// So that an edge rounded up is still a width.
constexpr int64_t kMostLength = int64_t{1} << 30, kMostWeight = int64_t{1} << 62;
constexpr size_t kMostEdges = 16384;   // n: n^2 steps take less than a second
constexpr double kMostSteps = 0x1p33;  // of most * n^2: seconds

Status check_cost(const char* name, double x) {
  if (std::isfinite(x) && x >= 0) return {};
  return invalid(name, x, " is not finite and at least 0");
}

// Checks everything and returns the lengths that occur, ascending, each once.
Result<std::vector<LengthWeight>> distribution(std::span<const LengthWeight> lengths, const TierCost& cost) {
  TAMIS_RETURN_IF_ERROR(check_cost("price", cost.price));
  TAMIS_RETURN_IF_ERROR(check_cost("per_row", cost.per_row));
  TAMIS_RETURN_IF_ERROR(check_cost("per_entry", cost.per_entry));
  std::vector<LengthWeight> sorted;
  int64_t rows = 0;
  for (const LengthWeight& x : lengths) {
    if (x.length < 0 || x.length > kMostLength)
      return Status(Code::kInvalidArgument, text("length: ", x.length, " is outside [0, ", kMostLength, "]"),
                    {.value = x.length, .limit = kMostLength + 1});
    if (x.weight < 0)
      return Status(Code::kInvalidArgument,
                    text("weight: ", x.weight, " of length ", x.length, " is negative"), {.value = x.weight});
    if (x.weight >= kMostWeight - rows) return invalid("weight", "all together are not below 2^62");
    rows += x.weight;
    if (x.weight > 0) sorted.push_back(x);
  }
  std::sort(sorted.begin(), sorted.end(),
            [](const LengthWeight& a, const LengthWeight& b) { return a.length < b.length; });
  size_t kept = 0;
  for (const LengthWeight& x : sorted)
    if (kept > 0 && sorted[kept - 1].length == x.length)
      sorted[kept - 1].weight += x.weight;
    else
      sorted[kept++] = x;
  sorted.resize(kept);
  return sorted;
}

// The price of a tier in 2^-20 entries over all rows.
Wide price_in_entries(const TierCost& cost, int64_t rows) {
  if (cost.per_entry == 0) return kMostPrice;  // padding is free, so one tier is the fewest
  const double price =
      std::round(std::ldexp(cost.price / cost.per_entry * static_cast<double>(rows), kFraction));
  return price < static_cast<double>(kMostPrice) ? static_cast<Wide>(price) : kMostPrice;
}

struct Best {
  Wide cost = 0;
  int32_t tiers = 0, end = 0;  // the first tier holds the lengths from here to `end`
  bool possible = false;
};

class Chooser {
 public:
  Chooser(std::vector<int64_t> edges, const std::vector<int64_t>& weights, Wide price)
      : edges_(std::move(edges)), before_(weights.size() + 1, 0), price_(price) {
    for (size_t i = 0; i < weights.size(); ++i) before_[i + 1] = before_[i] + weights[i];
  }

  Result<std::vector<int64_t>> choose(int64_t most) const {
    const size_t n = edges_.size();
    std::vector<Best> best(n + 1);
    best[n].possible = true;
    for (size_t i = n; i-- > 0;) best[i] = first_tier(i, best);
    if (most == 0 || best[0].tiers <= most) {
      std::vector<int64_t> chosen;
      for (size_t i = 0; i < n; i = best[i].end) chosen.push_back(edges_[best[i].end - 1]);
      return chosen;
    }
    return choose_at_most(most);
  }

 private:
  // The best first tier from length i on, when what follows is served as `rest` says.
  Best first_tier(size_t i, const std::vector<Best>& rest) const {
    Best best;
    for (size_t end = i + 1; end <= edges_.size(); ++end) {
      const Wide own = ((Wide{before_[end] - before_[i]} * edges_[end - 1]) << kFraction) + price_;
      if (best.possible && own > best.cost) break;  // longer first tiers cost only more
      if (!rest[end].possible) continue;
      const Wide cost = own + rest[end].cost;
      const int32_t tiers = 1 + rest[end].tiers;
      if (!best.possible || cost < best.cost || (cost == best.cost && tiers < best.tiers))
        best = {cost, tiers, static_cast<int32_t>(end), true};
    }
    return best;
  }

  // The same with one table for each number of tiers still allowed; only where the best choice has too many.
  Result<std::vector<int64_t>> choose_at_most(int64_t most) const {
    const size_t n = edges_.size();
    if (static_cast<double>(most) * static_cast<double>(n) * static_cast<double>(n) > kMostSteps)
      return Status(Code::kCapacityExceeded,
                    text("most: at most ", most, " tiers of ", n,
                         " different lengths take too long to find; lower it or raise multiple_of"),
                    {.value = most});
    std::vector<Best> fewer(n + 1), best(n + 1);
    fewer[n].possible = best[n].possible = true;
    std::vector<std::vector<int32_t>> ends(static_cast<size_t>(most) + 1, std::vector<int32_t>(n));
    for (int64_t left = 1; left <= most; ++left, std::swap(fewer, best))
      for (size_t i = n; i-- > 0;) {
        best[i] = first_tier(i, fewer);
        ends[left][i] = best[i].end;
      }
    std::vector<int64_t> chosen;
    int64_t left = most;
    for (size_t i = 0; i < n; i = ends[left--][i]) chosen.push_back(edges_[ends[left][i] - 1]);
    return chosen;
  }

  std::vector<int64_t> edges_;   // ascending
  std::vector<int64_t> before_;  // rows of all shorter lengths
  Wide price_;
};

int64_t narrow(Wide x) {
  return static_cast<int64_t>(std::min(x, static_cast<Wide>(std::numeric_limits<int64_t>::max())));
}

// Lengths of one tier, exact.
struct Sums {
  int64_t rows = 0;
  Wide used = 0, allocated = 0;
  void add(const LengthWeight& x, int64_t edge) {
    rows += x.weight;
    used += Wide{x.weight} * x.length;
    allocated += Wide{x.weight} * edge;
  }
  double utilization() const {
    return allocated == 0 ? 0 : static_cast<double>(used) / static_cast<double>(allocated);
  }
  TierUse use(int64_t edge) const { return {edge, rows, narrow(used), narrow(allocated), utilization()}; }
  double expected_cost(const TierCost& cost) const {
    return rows == 0
               ? 0
               : cost.per_row + cost.per_entry * static_cast<double>(allocated) / static_cast<double>(rows);
  }
};

}  // namespace

Result<std::vector<int64_t>> choose_tiers(std::span<const LengthWeight> lengths, const TierCost& cost,
                                          const TierOptions& options) {
  return guarded([&]() -> Result<std::vector<int64_t>> {
    const int64_t step = options.multiple_of;
    if (step < 1 || step > kMostLength)
      return invalid("multiple_of", step, " is outside [1, ", kMostLength, "]");
    if (options.most < 0) return invalid("most", options.most, " is negative");
    const Result<std::vector<LengthWeight>> found = distribution(lengths, cost);
    if (!found.ok()) return found.status();
    std::vector<int64_t> edges, weights;
    int64_t rows = 0;
    for (const LengthWeight& x : *found) {
      const int64_t edge = (x.length + step - 1) / step * step;
      if (edges.empty() || edges.back() != edge) {
        edges.push_back(edge);
        weights.push_back(0);
      }
      weights.back() += x.weight;
      rows += x.weight;
    }
    if (edges.size() > kMostEdges)
      return Status(Code::kCapacityExceeded,
                    text("multiple_of: rounded up to multiples of ", step, " there are ", edges.size(),
                         " different lengths, more than ", kMostEdges),
                    {.value = step, .limit = kMostEdges + 1});
    return Chooser(std::move(edges), weights, price_in_entries(cost, rows)).choose(options.most);
  });
}

Result<TierReport> evaluate_tiers(std::span<const LengthWeight> lengths, std::span<const int64_t> edges,
                                  const TierCost& cost) {
  return guarded([&]() -> Result<TierReport> {
    const Result<std::vector<LengthWeight>> found = distribution(lengths, cost);
    if (!found.ok()) return found.status();
    if (!found->empty() || !edges.empty())
      TAMIS_RETURN_IF_ERROR(tier_of(edges, found->empty() ? 0 : found->back().length).status());
    std::vector<Sums> sums(edges.size());
    Sums all, fixed;
    for (const LengthWeight& x : *found) {
      const auto tier = std::lower_bound(edges.begin(), edges.end(), x.length) - edges.begin();
      sums[tier].add(x, edges[tier]);
      all.add(x, edges[tier]);
      fixed.add(x, edges.back());
    }
    TierReport report{.tiers = {}, .rows = all.rows, .utilization = all.utilization(), .fixed = {}};
    for (size_t n = 0; n < edges.size(); ++n) report.tiers.push_back(sums[n].use(edges[n]));
    report.expected_cost = all.expected_cost(cost);
    report.total_cost = report.expected_cost + cost.price * static_cast<double>(edges.size());
    if (!edges.empty()) {
      report.fixed = fixed.use(edges.back());
      report.fixed_expected_cost = fixed.expected_cost(cost);
      report.fixed_total_cost = report.fixed_expected_cost + cost.price;
    }
    return report;
  });
}

}  // namespace tamis
