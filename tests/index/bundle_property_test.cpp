// Bundles against their definition: whatever was joined, the rows can be read back, and nothing else is
// there.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <set>
#include <tuple>

#include "index/bundle_support.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

int pick(int first, int last) { return *rc::gen::inRange(first, last + 1); }

std::vector<HandRow> draw_rows(const HandSpec& s) {
  std::vector<HandRow> rows;
  for (size_t b = 0; b < s.q_len.size(); ++b) {
    const int blocks = (s.kv_len[b] + s.block - 1) / s.block;
    const int64_t count = (s.q_len[b] + s.query_block - 1) / s.query_block * s.index_heads;
    for (int64_t r = 0; r < count; ++r) {
      HandRow row;
      const int share = pick(0, 3);
      for (int32_t j = 0; j < blocks; ++j) {
        if (pick(0, 3) > share) continue;
        HandBlock block{.words = {}, .full = pick(0, 1) == 1, .pieces = {}};
        for (int w = 0; w < (s.block > 64 ? 2 : 1); ++w)
          block.words.push_back(pick(0, 3) == 0 ? 0 : *rc::gen::arbitrary<uint64_t>());
        const int pieces = pieces_of(s.kv_len[b], s.page_size, s.block, j);
        const int sure = pick(0, pieces - 1);
        for (int i = 0; i < pieces; ++i)
          if (i == sure || pick(0, 1) == 1) block.pieces.push_back(i);
        row[j] = block;
      }
      rows.push_back(row);
    }
  }
  return rows;
}

HandSpec draw_spec() {
  HandSpec s;
  s.kv_len.clear();
  s.q_len.clear();
  s.block = *rc::gen::element(16, 32, 64, 128, 128);
  for (int b = pick(1, 3); b > 0; --b) {
    s.kv_len.push_back(pick(0, 6 * s.block));
    s.q_len.push_back(pick(0, 7));
  }
  s.kv_heads = pick(1, 3);
  s.q_heads = s.kv_heads * pick(1, 3);
  s.index_heads = *rc::gen::element<int64_t>(1, s.kv_heads, s.q_heads, s.q_heads);
  s.query_block = pick(1, 3);
  s.page_size = *rc::gen::element<int64_t>(1, 4, 16, 48, 64, 256);
  s.gap = pick(0, 1) * pick(0, 3);
  s.head_dim = 1;
  return s;
}

using Piece = std::tuple<int32_t, int32_t, int64_t>;  // token, length, slot

// What the index says of one entry, by row and block.
struct Entry {
  std::vector<uint64_t> words;
  bool full;
  std::set<Piece> pieces;
};
std::map<int32_t, Entry> entries_of(const IndexView& index, int64_t row) {
  std::map<int32_t, Entry> entries;
  for (int64_t e = index.begin[row]; e < index.begin[row] + index.count[row]; ++e) {
    Entry& x = entries[index.blocks[e]];
    x.words.assign(index.members + e * index.words, index.members + (e + 1) * index.words);
    x.full = index.full[e];
    for (int64_t s = index.span_begin[e]; s < index.span_begin[e + 1]; ++s)
      x.pieces.insert({index.spans[s].token, index.spans[s].length, index.spans[s].slot});
  }
  return entries;
}

// One bundle holds the union of its rows and nothing else.
void check_bundle(const IndexView& index, const BundleView& v, const Bundle& b) {
  std::vector<std::map<int32_t, Entry>> lists;
  std::set<int32_t> blocks;
  for (const int32_t row : rows_of(v, b)) {
    RC_ASSERT(v.row[row].request == b.request);
    lists.push_back(entries_of(index, row));
    for (const auto& [block, entry] : lists.back()) blocks.insert(block);
  }
  RC_ASSERT(blocks_of(v, b) == std::vector<int32_t>(blocks.begin(), blocks.end()));
  for (int64_t j = 0; j < b.count; ++j) {
    const int64_t e = b.begin + j;
    bool full = true;
    std::set<Piece> pieces;
    for (int64_t l = 0; l < b.lists; ++l) {
      const auto found = lists[l].find(v.blocks[e]);
      full = full && found != lists[l].end() && found->second.full;
      for (int w = 0; w < v.words; ++w)
        RC_ASSERT(v.members[b.members_at + (j * b.lists + l) * v.words + w] ==
                  (found == lists[l].end() ? 0 : found->second.words[w]));
      if (found != lists[l].end()) pieces.insert(found->second.pieces.begin(), found->second.pieces.end());
    }
    RC_ASSERT((v.full[e] != 0) == full);
    std::vector<Piece> spans;
    for (int64_t s = v.span_begin[e]; s < v.span_begin[e + 1]; ++s)
      spans.emplace_back(v.spans[s].token, v.spans[s].length, v.spans[s].slot);
    RC_ASSERT(spans == std::vector<Piece>(pieces.begin(), pieces.end()));  // ascending, each once
  }
}

// The bundles together hold every row once, in order, on the right heads.
void check(const Hand& h, const Bundles& made) {
  const HandSpec& s = h.spec;
  const IndexView index = h.set.view();
  const BundleView v = made.view();
  RC_ASSERT(v.block == index.block && v.words == index.words && v.row == index.row);
  const bool shared = made.stats().policy == BundlePolicy::kRows;
  int64_t lists = 0, entries = 0, words = 0, listed = 0, most = 0, last_row = -1;
  for (int64_t i = 0; i < v.bundles; ++i) {
    const Bundle& b = v.bundle[i];
    RC_ASSERT(b.first_list == lists && b.lists > 0);
    if (!shared) RC_ASSERT(b.begin == entries && b.members_at == words);
    lists += b.lists;
    entries += b.count;
    words += int64_t{b.count} * b.lists * v.words;
    most = std::max<int64_t>(most, b.lists);
    RC_ASSERT(v.rows[b.first_list] > last_row);
    last_row = v.rows[b.first_list];
    for (const int32_t row : rows_of(v, b)) {
      const int64_t g = index.row[row].index_head;
      RC_ASSERT(b.kv_heads == (s.index_heads == s.kv_heads || s.index_heads == s.q_heads ? 1 : s.kv_heads));
      RC_ASSERT(b.kv_head == (s.index_heads == s.q_heads    ? g / (s.q_heads / s.kv_heads)
                              : s.index_heads == s.kv_heads ? g
                                                            : 0));
      listed += index.count[row];
    }
    check_bundle(index, v, b);
  }
  std::vector<int32_t> rows(v.rows, v.rows + lists);
  std::sort(rows.begin(), rows.end());
  for (int64_t r = 0; r < index.rows; ++r) RC_ASSERT(rows.at(r) == r);
  RC_ASSERT(lists == index.rows && most == v.max_lists);
  RC_ASSERT(made.stats().union_blocks == entries && made.stats().listed_blocks == listed);
  RC_ASSERT(v.entries == (shared ? index.entries : entries));
  RC_ASSERT(v.span_begin[0] == 0);
}

int64_t expected_bundles(const HandSpec& s, int64_t heads, int64_t neighbours) {
  int64_t bundles = 0;
  for (const int32_t n : s.q_len) {
    const int64_t query_blocks = (n + s.query_block - 1) / s.query_block;
    bundles += (query_blocks + neighbours - 1) / neighbours * (s.index_heads / heads);
  }
  return bundles;
}

TEST(BundleProperty, EveryPolicyGivesTheRowsBack) {
  EXPECT_TRUE(rc::check("a bundle is the union of its rows", [] {
    const HandSpec s = draw_spec();
    const Hand h(s, draw_rows(s));
    const int64_t joined = s.index_heads == s.q_heads ? s.q_heads / s.kv_heads : 1;

    const auto rows = h.bundle(BundlePolicy::kRows);
    check(h, *rows);
    RC_ASSERT(rows->view().bundles == h.set.view().rows && rows->view().blocks == h.set.view().blocks);

    const auto heads = h.bundle(BundlePolicy::kHeads);
    check(h, *heads);
    RC_ASSERT(heads->view().bundles == expected_bundles(s, joined, 1));

    const int n = pick(1, 5);
    const auto neighbours = h.bundle(BundlePolicy::kNeighbours, n);
    check(h, *neighbours);
    RC_ASSERT(neighbours->view().bundles == expected_bundles(s, joined, n));

    const auto chosen = h.bundle(BundlePolicy::kAuto);
    check(h, *chosen);
    const BundleStats& stats = chosen->stats();
    const auto again = h.bundle(stats.policy, stats.neighbours);
    RC_ASSERT(again->view().bundles == chosen->view().bundles);
    RC_ASSERT(again->stats().union_blocks == stats.union_blocks);
  }));
}

}  // namespace
}  // namespace tamis
