#include "index_work.h"

#include "keep.h"
#include "problem64k.h"

namespace tamis::bench {
namespace {

Work lists_work(int64_t turns, uint64_t seed, int64_t unit, int64_t listed) {
  using H = Heads64k;
  const Scale scale;
  const int64_t pages = scale.pages();
  auto keep = std::make_shared<Keep>();
  Random random(seed);
  std::vector<uint64_t> stamps(pages), of_table(pages);
  for (uint64_t& stamp : stamps) stamp = random.next() | 1;
  const std::vector<int32_t> table = random.sample(pages, pages);
  for (int64_t p = 0; p < pages; ++p) of_table[p] = stamps[table[p]];
  Problem p;
  p.index_only = IndexOnly{.q_heads = H::kQuery,
                           .kv_heads = H::kKv,
                           .head_dim = H::kDim,
                           .v_head_dim = H::kDim,
                           .page_size = Scale::kPage,
                           .num_pages = pages};
  p.query.cu_q = keep->ints({0, 1});
  p.cache.kv_len = keep->ints({static_cast<int32_t>(scale.kv_len())});
  p.cache.page_table = keep->ints(table, {1, pages});
  p.cache.page_stamps = keep->words(std::move(stamps), {pages});
  p.cache.table_stamps = keep->words(std::move(of_table), {1, pages});
  Work work;
  for (int64_t t = 0; t < turns; ++t) {
    std::vector<int32_t> indptr{0}, indices;
    for (int64_t h = 0; h < H::kKv; ++h) {
      const std::vector<int32_t> row = random.sample(scale.kv_len() / unit, listed);
      indices.insert(indices.end(), row.begin(), row.end());
      indptr.push_back(static_cast<int32_t>(indices.size()));
    }
    p.candidates = {.form = CandidateForm::kCsr,
                    .indptr = keep->ints(std::move(indptr)),
                    .indices = keep->ints(std::move(indices)),
                    .unit = unit,
                    .index_heads = H::kKv};
    work.turns.push_back(p);
  }
  work.description = {{"requests", 1},
                      {"kv_heads", H::kKv},
                      {"kv_len", scale.kv_len()},
                      {"rows", H::kKv},
                      {"listed_per_row", listed},
                      {"unit", unit},
                      {"page_size", Scale::kPage},
                      {"stamps", true},
                      {"distribution", "uniform"},
                      {"turns", turns}};
  work.storage = keep;
  return work;
}

}  // namespace

Work page_lists_work(int64_t turns, uint64_t seed) { return lists_work(turns, seed, Scale::kPage, 264); }
Work token_lists_work(int64_t turns, uint64_t seed) { return lists_work(turns, seed, 1, 2048); }

}  // namespace tamis::bench
