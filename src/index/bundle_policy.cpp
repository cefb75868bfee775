#include "index/bundle_policy.h"

#include <numeric>
#include <vector>

namespace tamis::index {
namespace {

class Measure {
 public:
  Measure(const IndexView& index, const Heads& heads, double load)
      : index_(index), heads_(heads), load_(load) {}

  // Of one KV head's rows `run`, cut up.
  double cost(const Group& run, Cut cut) {
    double sum = 0;
    for (int64_t q = run.first; q < run.last; q += cut.query_blocks) {
      const int64_t last = std::min(run.last, q + cut.query_blocks);
      for (int32_t h = run.head; h < run.head + run.heads; h += cut.heads)
        sum += cost(Group{q, last, h, cut.heads, run.index_heads});
    }
    return sum;
  }

 private:
  double cost(const Group& bundle) {
    int64_t queries = 0;
    for (int32_t l = 0; l < bundle.lists(); ++l) {
      const RowInfo& info = index_.row[bundle.row_of(l)];
      queries += info.last_query - info.first_query;
    }
    const int64_t blocks = bundle.lists() == 1 ? index_.count[bundle.row_of(0)] : distinct(bundle);
    return bundle_cost(blocks, queries * heads_.queries_of_list(), load_);
  }

  // Clears what it set, so that a long context costs memory once and no time.
  int64_t distinct(const Group& bundle) {
    int64_t found = 0;
    for_each_block(bundle, [&](uint64_t& word, uint64_t bit) {
      found += (word & bit) == 0;
      word |= bit;
    });
    for_each_block(bundle, [](uint64_t& word, uint64_t) { word = 0; });
    return found;
  }

  template <class Visit>
  void for_each_block(const Group& bundle, Visit visit) {
    for (int32_t l = 0; l < bundle.lists(); ++l) {
      const int64_t row = bundle.row_of(l);
      if (index_.count[row] == 0) continue;
      const int32_t* blocks = index_.blocks + index_.begin[row];
      const size_t words = blocks[index_.count[row] - 1] / 64 + 1;
      if (words > bitmap_.size()) bitmap_.resize(words);
      for (int32_t j = 0; j < index_.count[row]; ++j)
        visit(bitmap_[blocks[j] / 64], uint64_t{1} << (blocks[j] % 64));
    }
  }

  const IndexView& index_;
  const Heads& heads_;
  const double load_;
  std::vector<uint64_t> bitmap_;
};

// Multiples of it, modulo `total`, spread evenly and come back only after all numbers below `total` were met:
// near the golden section, and without a common divisor. A plain stride could be a multiple of the number of
// heads and then measure one head only.
int64_t sample_step(int64_t total) {
  int64_t step = total * 987 / 1597 | 1;
  while (std::gcd(step, total) != 1) step += 2;
  return step;
}

struct Trial {
  Cut cut;
  double cost = 0;
};

std::vector<Trial> trials_for(const Heads& heads, bool neighbours) {
  std::vector<Trial> trials{{.cut = {1, 1}}};
  const int32_t joined = heads.lists_of_kv_head();
  if (joined > 1) trials.push_back({.cut = {joined, 1}});
  for (int32_t n = 2; neighbours && n <= kMostTried; n *= 2) trials.push_back({.cut = {joined, n}});
  return trials;
}

}  // namespace

double bundle_cost(int64_t union_blocks, int64_t rows, double load) {
  const int64_t passes = (rows + kTileRows - 1) / kTileRows;
  return static_cast<double>(union_blocks) * (static_cast<double>(passes) * load + static_cast<double>(rows));
}

double load_of_block(const Shape& s) {
  const double bits =
      static_cast<double>(s.head_dim) * s.k_bits + static_cast<double>(s.v_head_dim) * s.v_bits;
  return kLoadRows * bits / (16 * static_cast<double>(s.head_dim + s.v_head_dim));
}

Cut cheapest_cut(const Shape& shape, const IndexView& index) {
  const Heads heads(shape);
  std::vector<int64_t> runs;  // first query block of each run of kMostTried
  const int64_t query_blocks = index.rows / heads.index;
  bool neighbours = false;
  for (int64_t first = 0, last = 0; first < query_blocks; first = last) {
    last = run_end(index, heads.index, first, kMostTried);
    neighbours = neighbours || last - first > 1;
    runs.push_back(first);
  }
  std::vector<Trial> trials = trials_for(heads, neighbours);
  if (runs.empty() || trials.size() == 1) return trials.front().cut;

  const int32_t joined = heads.lists_of_kv_head(), units = heads.index / joined;
  const int64_t total = static_cast<int64_t>(runs.size()) * units, step = sample_step(total);
  Measure measure(index, heads, load_of_block(shape));
  int64_t at = 0;
  for (int64_t i = 0; i < std::min(total, kMostSamples); ++i, at = (at + step) % total) {
    const int64_t first = runs[at / units], last = run_end(index, heads.index, first, kMostTried);
    const Group run{first, last, static_cast<int32_t>(at % units) * joined, joined, heads.index};
    for (Trial& t : trials) t.cost += measure.cost(run, t.cut);
  }
  Trial best = trials.front();
  for (const Trial& t : trials)
    if (t.cost < kWorthwhile * best.cost) best = t;
  return best.cut;
}

}  // namespace tamis::index
