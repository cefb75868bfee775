// Bundles and problems made by hand, for tests of plan and schedule. No K, no V, no candidates: a plan reads
// shapes, and a schedule reads how many blocks and which rows a bundle has.
#pragma once

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <functional>
#include <numeric>
#include <vector>

#include "plan/rows.h"
#include "tamis/plan.h"

namespace tamis::testing {

struct Grid {
  std::vector<int32_t> q_len{1};  // queries of each request
  int64_t query_block = 1;
  int64_t q_heads = 1, kv_heads = 1, index_heads = 1;
  int64_t neighbours = 1;  // query blocks that a bundle joins
  int32_t block = 64;
  int64_t head_dim = 128, v_head_dim = 128;
  int64_t page_size = 16, max_pages = 1 << 20;  // page_size 0: contiguous
  DType dtype = DType::kBF16;

  int64_t queries() const { return std::accumulate(q_len.begin(), q_len.end(), int64_t{0}); }
  int64_t requests() const { return static_cast<int64_t>(q_len.size()); }
};

// Every view but no memory: planning reads none.
inline Problem problem_of(const Grid& g) {
  Problem p;
  p.query.q = dense_view(nullptr, g.dtype, {g.queries(), g.q_heads, g.head_dim});
  p.query.cu_q = dense_view(nullptr, DType::kI32, {g.requests() + 1});
  p.cache.kv_len = dense_view(nullptr, DType::kI32, {g.requests()});
  if (g.page_size > 0) {
    p.cache.k = dense_view(nullptr, g.dtype, {8, g.page_size, g.kv_heads, g.head_dim});
    p.cache.v = dense_view(nullptr, g.dtype, {8, g.page_size, g.kv_heads, g.v_head_dim});
    p.cache.page_table = dense_view(nullptr, DType::kI32, {g.requests(), g.max_pages});
  } else {
    const int64_t tokens = g.requests() * g.max_pages;
    p.cache.k = dense_view(nullptr, g.dtype, {tokens, g.kv_heads, g.head_dim});
    p.cache.v = dense_view(nullptr, g.dtype, {tokens, g.kv_heads, g.v_head_dim});
    p.cache.cu_kv = dense_view(nullptr, DType::kI32, {g.requests() + 1});
  }
  p.candidates.query_block = g.query_block;
  p.candidates.index_heads = g.index_heads;
  return p;
}

// Every (query, query head) is in exactly one bundle. Order: requests, query blocks, KV heads.
class HandBundles {
 public:
  // blocks(b): how many blocks bundle b has.
  HandBundles(const Grid& g, const std::function<int32_t(int64_t)>& blocks) : block_(g.block) {
    int32_t query = 0;
    for (int32_t request = 0; request < g.requests(); ++request) {
      const int32_t end = query + g.q_len[request];
      while (query < end) {
        const int32_t first = query;
        const int64_t wanted = first + g.query_block * g.neighbours;
        query = static_cast<int32_t>(std::min<int64_t>(end, wanted));
        const int32_t bundles = static_cast<int32_t>(g.index_heads == 1 ? 1 : g.kv_heads);
        for (int32_t h = 0; h < bundles; ++h) {
          Bundle b{};
          b.request = request;
          b.kv_head = h;
          b.kv_heads = static_cast<int32_t>(g.index_heads == 1 ? g.kv_heads : 1);
          b.first_list = static_cast<int32_t>(rows_.size());
          const int64_t per = g.index_heads == 1 ? 1 : g.index_heads / g.kv_heads;
          for (int64_t at = first; at < query; at += g.query_block)
            for (int64_t head = h * per; head < (h + 1) * per; ++head) {
              rows_.push_back(static_cast<int32_t>(row.size()));
              row.push_back({request, static_cast<int32_t>(head), static_cast<int32_t>(at),
                             static_cast<int32_t>(std::min<int64_t>(query, at + g.query_block))});
            }
          b.lists = static_cast<int32_t>(rows_.size()) - b.first_list;
          b.count = blocks(static_cast<int64_t>(bundle.size()));
          b.begin = entries_;
          entries_ += b.count;
          bundle.push_back(b);
        }
      }
    }
  }

  BundleView view() const {
    BundleView v;
    v.bundles = static_cast<int64_t>(bundle.size());
    v.entries = entries_;
    v.block = block_;
    v.words = block_ > 64 ? 2 : 1;
    v.bundle = bundle.data();
    v.rows = rows_.data();
    v.row = row.data();
    return v;
  }

  std::vector<Bundle> bundle;  // open to tests that bend them
  std::vector<RowInfo> row;

 private:
  int32_t block_;
  int64_t entries_ = 0;
  std::vector<int32_t> rows_;
};

// One query a request, one KV head with one list, one query head: row i is bundle i.
inline Grid decode(size_t requests, int32_t block = 64) {
  Grid g;
  g.q_len.assign(requests, 1);
  g.block = block;
  return g;
}

inline Plan must_plan(const Problem& problem, const Capacities& capacities, int32_t block,
                      const PlanOptions& options) {
  Result<Plan> plan = make_plan(problem, capacities, block, options);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return plan.ok() ? std::move(*plan) : Plan{};
}

// A plan that just holds these bundles.
inline Plan plan_for(const Grid& g, const HandBundles& bundles, const PlanOptions& options = {}) {
  const Problem problem = problem_of(g);
  return must_plan(problem, capacities_of(problem, bundles.view()), g.block, options);
}

inline Schedule must_schedule(const Plan& plan, const BundleView& bundles) {
  Result<Schedule> s = schedule(plan, bundles);
  EXPECT_TRUE(s.ok()) << s.status().message();
  return s.ok() ? std::move(*s) : Schedule{};
}

inline auto key(const Task& t) { return std::tuple(t.bundle, t.kv_head, t.begin, t.end, t.part); }
inline auto key(const MergeItem& m) { return std::tuple(m.bundle, m.kv_head, m.first_part, m.parts); }

template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const T& x, const T& y) { return key(x) == key(y); });
}

// From the whole range from the first case on.
inline int pick(int first, int last) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(first, last + 1));
}

// A random step: shapes, row lengths with a long tail, options.
struct Step {
  Grid grid;
  std::vector<int32_t> blocks;  // of bundle i, repeated
  PlanOptions options;

  HandBundles bundles() const {
    return {grid, [this](int64_t b) { return blocks[static_cast<size_t>(b) % blocks.size()]; }};
  }
};

inline Step draw_step() {
  Step s;
  Grid& g = s.grid;
  g.q_len.clear();
  for (int b = pick(0, 6); b > 0; --b) g.q_len.push_back(pick(0, 5));
  g.query_block = *rc::gen::element<int64_t>(1, 1, 2, 3, 64);
  g.neighbours = *rc::gen::element<int64_t>(1, 1, 2, 4);
  g.kv_heads = pick(1, 4);
  g.q_heads = g.kv_heads * pick(1, 4);
  g.index_heads = *rc::gen::element(int64_t{1}, g.kv_heads, g.q_heads);
  g.block = *rc::gen::element(16, 32, 64, 128);
  g.v_head_dim = pick(1, 40);
  for (int i = pick(1, 7); i > 0; --i)
    s.blocks.push_back(*rc::gen::element(0, 1, pick(0, 9), pick(0, 60), pick(0, 2000)));
  s.options.backend = *rc::gen::element(Backend::kCpu, Backend::kCuda);
  s.options.path = Path::kDirect;
  s.options.min_tiles = *rc::gen::element(0, 1, 1, 2, 8);
  s.options.shares = *rc::gen::element(0, 1, 2, 7, 64, 1000);
  switch (pick(0, 3)) {
    case 0:
      s.options.splits = pick(1, 9);
      break;
    case 1:
      s.options.batch_invariant = true;
      break;
    default:
      break;
  }
  return s;
}

}  // namespace tamis::testing
