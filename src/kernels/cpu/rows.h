// The query rows of one task, in chunks: which (query, query head) each is, its query as f32, and which of
// them share a set.
#pragma once

#include "kernels/cpu/args.h"
#include "plan/rows.h"
#include "tamis/problem.h"

namespace tamis::cpu {

struct QueryRow {
  int32_t query, head;
};

struct RowChunk {
  QueryRow rows[kRowChunk];
  MaskGroup groups[kRowChunk];
  int16_t group_of[kRowChunk];
  uint32_t heads[kRowChunk];
  float slopes[kRowChunk];
  int64_t positions[kRowChunk];
  int32_t count = 0, group_count = 0;
};

// Fills *chunk with the rows of one (bundle, KV head) from row `first` on, in the order of plan/rows.h: as
// many as there are and fit.
inline void fill_chunk(const Problem& p, const Shape& s, const BundleView& view, const Bundle& bundle,
                       int64_t kv_head, int64_t first, RowChunk* chunk) {
  const HeadRuns runs = head_runs(s.q_heads, s.kv_heads, s.index_heads);
  const int64_t kv_len = p.cache.kv_len.at<int32_t>({bundle.request});
  const int64_t end = p.query.cu_q.at<int32_t>({bundle.request + 1});
  const Mask& m = p.mask;
  chunk->count = chunk->group_count = 0;
  for (int32_t list = 0; list < bundle.lists && chunk->count < kRowChunk; ++list) {
    const RowInfo& row = view.row[view.rows[bundle.first_list + list]];
    const HeadRange heads = heads_of(runs, row.index_head, kv_head);
    const int64_t rows = (row.last_query - row.first_query) * heads.count;
    if (first >= rows) {
      first -= rows;
      continue;
    }
    int64_t skipped = first % heads.count;  // heads of the first query that an earlier chunk has
    for (auto i = static_cast<int32_t>(row.first_query + first / heads.count);
         i < row.last_query && chunk->count < kRowChunk; ++i, skipped = 0) {
      const int64_t pos = p.query.q_pos.present() ? p.query.q_pos.at<int32_t>({i}) : kv_len - end + i;
      const Sight sight = sight_of(pos, kv_len, m.causal, m.window, m.sink);
      for (int64_t h = heads.first + skipped; h < heads.first + heads.count && chunk->count < kRowChunk;
           ++h) {
        const int32_t at = chunk->count++;
        chunk->rows[at] = {i, static_cast<int32_t>(h)};
        chunk->heads[at] = static_cast<uint32_t>(h);
        chunk->positions[at] = pos;
        chunk->slopes[at] = p.score.alibi_slopes.present() ? p.score.alibi_slopes.at<float>({h}) : 0;
        const MaskGroup* last = chunk->group_count > 0 ? &chunk->groups[chunk->group_count - 1] : nullptr;
        if (last == nullptr || last->list != list || !same_sight(last->sight, sight))
          chunk->groups[chunk->group_count++] = {list, sight};
        chunk->group_of[at] = static_cast<int16_t>(chunk->group_count - 1);
      }
    }
    first = 0;
  }
}

// Calls f(chunk, first row of the chunk within the group) for all rows of one (bundle, KV head).
template <class F>
void for_each_chunk(const Problem& p, const Shape& s, const BundleView& view, const Bundle& bundle,
                    int64_t kv_head, RowChunk* chunk, const F& f) {
  for (int64_t first = 0;; first += kRowChunk) {
    fill_chunk(p, s, view, bundle, kv_head, first, chunk);
    if (chunk->count > 0) f(*chunk, first);
    if (chunk->count < kRowChunk) return;
  }
}

}  // namespace tamis::cpu
