// Index sets written by hand, so that bundles are judged without normalize.
#pragma once

#include <map>
#include <vector>

#include "index/storage.h"
#include "support/problems.h"
#include "tamis/bundle.h"

namespace tamis::testing {

// One block of a row: its member words, `full`, and which of its pieces (0: the first page of the block, ...)
// the row touches.
struct HandBlock {
  std::vector<uint64_t> words;
  bool full = false;
  std::vector<int> pieces{0};
};
using HandRow = std::map<int32_t, HandBlock>;  // by block

struct HandSpec {
  std::vector<int32_t> kv_len{64}, q_len{1};
  int64_t q_heads = 1, kv_heads = 1, index_heads = 1, query_block = 1;
  int64_t page_size = 16;
  int32_t block = 16;
  int64_t head_dim = 4;
  int64_t gap = 0;  // unused entries after each row, as rows of fixed capacity have them
};

// Where piece `i` of a block lies: cut by block, page and kv_len.
inline Span piece_of(TestProblem* t, int64_t request, int64_t kv_len, int64_t page_size, int32_t bk,
                     int32_t block, int i) {
  int64_t begin = int64_t{block} * bk;
  const int64_t end = std::min<int64_t>(begin + bk, kv_len);
  for (;; --i) {
    const int64_t stop = std::min(end, (begin / page_size + 1) * page_size);
    if (i == 0)
      return {static_cast<int32_t>(begin), static_cast<int32_t>(stop - begin), t->slot(request, begin)};
    begin = stop;
  }
}

// How many pieces a block has.
inline int pieces_of(int64_t kv_len, int64_t page_size, int32_t bk, int32_t block) {
  const int64_t begin = int64_t{block} * bk, end = std::min<int64_t>(begin + bk, kv_len);
  return static_cast<int>((end - 1) / page_size - begin / page_size + 1);
}

// A problem, its rows and the index set that holds them.
struct Hand {
  HandSpec spec;
  TestProblem made;
  IndexSet set;

  Hand(HandSpec s, const std::vector<HandRow>& rows)
      : spec(s),
        made({.kv_len = s.kv_len,
              .q_len = s.q_len,
              .q_heads = s.q_heads,
              .kv_heads = s.kv_heads,
              .head_dim = s.head_dim,
              .v_head_dim = s.head_dim,
              .page_size = s.page_size}) {
    made.problem.candidates.query_block = s.query_block;
    made.problem.candidates.index_heads = s.index_heads;
    IndexSet::Storage& out = set.storage();
    out.block = s.block;
    out.words = s.block > 64 ? 2 : 1;
    out.span_begin = {0};
    size_t next = 0;
    int64_t query = 0;
    for (size_t b = 0; b < s.q_len.size(); query += s.q_len[b++])
      for (int64_t q = 0; q < s.q_len[b]; q += s.query_block)
        for (int32_t g = 0; g < s.index_heads; ++g)
          add(rows.at(next++),
              {static_cast<int32_t>(b), g, static_cast<int32_t>(query + q),
               static_cast<int32_t>(query + std::min<int64_t>(q + s.query_block, s.q_len[b]))});
    if (next != rows.size()) throw std::logic_error("more rows than the problem has");
  }

  Result<Bundles> bundle(BundlePolicy policy, int32_t neighbours = 4) const {
    return tamis::bundle(made.problem, set, {.policy = policy, .neighbours = neighbours});
  }

 private:
  void add(const HandRow& row, RowInfo info) {
    IndexSet::Storage& out = set.storage();
    out.row.push_back(info);
    out.begin.push_back(static_cast<int64_t>(out.blocks.size()));
    out.count.push_back(static_cast<int32_t>(row.size()));
    for (const auto& [block, b] : row) {
      out.blocks.push_back(block);
      for (int w = 0; w < out.words; ++w) out.members.push_back(b.words.at(w));
      out.full.push_back(b.full);
      for (const int i : b.pieces)
        out.spans.push_back(
            piece_of(&made, info.request, spec.kv_len[info.request], spec.page_size, spec.block, block, i));
      out.span_begin.push_back(static_cast<int64_t>(out.spans.size()));
    }
    for (int64_t i = 0; i < spec.gap; ++i) {  // garbage that belongs to no row
      out.blocks.push_back(-77);
      out.members.insert(out.members.end(), out.words, ~uint64_t{0});
      out.full.push_back(1);
      out.span_begin.push_back(out.span_begin.back());
    }
  }
};

// A row of one-word blocks that share nothing but their numbers: word 1 << block % 16.
inline HandRow row_of(std::initializer_list<int32_t> blocks) {
  HandRow row;
  for (const int32_t b : blocks) row[b] = {.words = {uint64_t{1} << (b % 16)}};
  return row;
}

// The member words of a bundle: [block][list][word].
inline std::vector<uint64_t> words_of(const BundleView& v, const Bundle& b) {
  return {v.members + b.members_at, v.members + b.members_at + int64_t{b.count} * b.lists * v.words};
}
inline std::vector<int32_t> blocks_of(const BundleView& v, const Bundle& b) {
  return {v.blocks + b.begin, v.blocks + b.begin + b.count};
}
inline std::vector<int32_t> rows_of(const BundleView& v, const Bundle& b) {
  return {v.rows + b.first_list, v.rows + b.first_list + b.lists};
}
// The first tokens of the spans of entry e.
inline std::vector<int32_t> tokens_of(const BundleView& v, int64_t e) {
  std::vector<int32_t> tokens;
  for (int64_t s = v.span_begin[e]; s < v.span_begin[e + 1]; ++s) tokens.push_back(v.spans[s].token);
  return tokens;
}

}  // namespace tamis::testing
