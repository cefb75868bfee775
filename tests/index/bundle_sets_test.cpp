// From raw candidates to bundles: every list of every bundle amounts to the sets of the reference, and the
// bundle's spans say where each of their tokens lies.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <map>

#include "support/expect.h"
#include "support/problems.h"
#include "tamis/bundle.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

int pick(int first, int last) { return *rc::gen::inRange(first, last + 1); }

struct Drawn {
  Spec spec;
  Rows rows;
  int64_t query_block, index_heads;
  Mask mask;
};

Drawn draw() {
  Drawn d;
  d.spec.kv_len.clear();
  for (int b = pick(1, 3); b > 0; --b) {
    d.spec.kv_len.push_back(pick(1, 300));
    d.spec.q_len.push_back(pick(0, std::min(6, d.spec.kv_len.back())));
  }
  d.spec.kv_heads = pick(1, 2);
  d.spec.q_heads = d.spec.kv_heads * pick(1, 3);
  d.spec.head_dim = d.spec.v_head_dim = 1;
  d.spec.page_size = *rc::gen::element<int64_t>(0, 1, 8, 48, 64);
  d.query_block = pick(1, 3);
  d.index_heads = *rc::gen::element<int64_t>(1, d.spec.kv_heads, d.spec.q_heads);
  d.mask = {.causal = pick(0, 1) == 1, .window = pick(0, 1) * pick(0, 40), .sink = pick(0, 1) * pick(0, 20)};
  for (size_t b = 0; b < d.spec.q_len.size(); ++b) {
    const int64_t count = (d.spec.q_len[b] + d.query_block - 1) / d.query_block * d.index_heads;
    for (int64_t r = 0; r < count; ++r) {
      std::vector<int32_t> row(pick(0, 30));
      for (int32_t& e : row) e = pick(0, d.spec.kv_len[b] - 1);
      d.rows.push_back(row);
    }
  }
  return d;
}

// The set of one query, read off the words of list l and the positions; `at` receives each token's slot.
std::vector<int32_t> set_from(const BundleView& v, const Bundle& b, int l, const Mask& m, int64_t q_pos,
                              int64_t kv_len, std::map<int32_t, int64_t>* at) {
  std::vector<int32_t> set;
  for (int64_t j = 0; j < b.count; ++j) {
    const uint64_t* words = v.members + b.members_at + (j * b.lists + l) * v.words;
    for (int64_t s = v.span_begin[b.begin + j]; s < v.span_begin[b.begin + j + 1]; ++s)
      for (int32_t i = 0; i < v.spans[s].length; ++i) (*at)[v.spans[s].token + i] = v.spans[s].slot + i;
    for (int64_t c = 0; c < v.block; ++c) {
      const int64_t t = int64_t{v.blocks[b.begin + j]} * v.block + c;
      const bool listed = v.full[b.begin + j] || (words[c / 64] >> (c % 64) & 1);
      const bool windowed = m.window > 0 && t > q_pos - m.window && t <= q_pos;
      if (q_pos >= 0 && t < kv_len && (!m.causal || t <= q_pos) && (listed || t < m.sink || windowed))
        set.push_back(static_cast<int32_t>(t));
    }
  }
  return set;
}

TEST(BundleSets, AreThoseOfTheReference) {
  EXPECT_TRUE(rc::check("bundles hold the sets", [] {
    const Drawn d = draw();
    TestProblem t(d.spec);
    t.csr(d.rows);
    t.problem.mask = d.mask;
    t.problem.candidates.query_block = d.query_block;
    t.problem.candidates.index_heads = d.index_heads;
    const auto sets = reference::build_sets(t.problem);
    RC_ASSERT(sets.ok());
    const auto index = normalize(t.problem, {.block = *rc::gen::element(16, 64, 128)});
    RC_ASSERT(index.ok());
    const auto policy = *rc::gen::element(BundlePolicy::kAuto, BundlePolicy::kRows, BundlePolicy::kHeads,
                                          BundlePolicy::kNeighbours);
    const auto made = bundle(t.problem, *index, {.policy = policy, .neighbours = pick(1, 4)});
    RC_ASSERT(made.ok());
    const BundleView v = made->view();
    int64_t seen = 0;
    for (int64_t i = 0; i < v.bundles; ++i) {
      const Bundle& b = v.bundle[i];
      for (int l = 0; l < b.lists; ++l) {
        const RowInfo& row = v.row[v.rows[b.first_list + l]];
        for (int64_t q = row.first_query; q < row.last_query; ++q, ++seen) {
          const int64_t kv_len = d.spec.kv_len[b.request], q_pos = kv_len - t.cu_q()[b.request + 1] + q;
          std::map<int32_t, int64_t> at;
          const auto set = set_from(v, b, l, d.mask, q_pos, kv_len, &at);
          RC_ASSERT(set == set_of(*sets, q * d.index_heads + row.index_head));
          for (const int32_t token : set) RC_ASSERT(at.count(token) && at[token] == t.slot(b.request, token));
        }
      }
    }
    RC_ASSERT(seen == t.cu_q().back() * d.index_heads);
  }));
}

}  // namespace
}  // namespace tamis
