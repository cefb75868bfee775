// docs/semantics.md sections 1 and 9: logical pages, physical pages, and which of them a request may touch.
#include <set>

#include "core/checks.h"
#include "kernels/reference/rows.h"
#include "tamis/reference.h"

namespace tamis::reference {
namespace {

Status check_page(const Problem& p, const Shape& s, int64_t b, int64_t page) {
  const CacheView& c = p.cache;
  const int64_t entry = c.page_table.at<int32_t>({b, page});
  const Where where{.request = b, .page = page, .value = entry};
  if (entry == -1)
    return {Code::kPageUnmapped,
            text("page_table: page ", page, " of request ", b, " is touched but unmapped"), where};
  if (entry < 0 || entry >= s.pages)
    return {Code::kPageOutOfRange,
            text("page_table: page ", page, " of request ", b, " is ", entry, ", outside [0, ", s.pages, ")"),
            {.request = b, .page = page, .value = entry, .limit = s.pages}};
  if (!c.page_stamps.present()) return {};
  const uint64_t mapped = c.table_stamps.at<uint64_t>({b, page}), now = c.page_stamps.at<uint64_t>({entry});
  if (mapped == now) return {};
  return {Code::kForeignPage,
          text("table_stamps: page ", page, " of request ", b, " was mapped with stamp ", mapped,
               "; physical page ", entry, " now has ", now),
          where};
}

}  // namespace

Status check_pages(const Problem& problem, const Sets& sets) {
  const Result<Shape> shape = describe(problem);
  if (!shape.ok()) return shape.status();
  if (shape->index_only || shape->page_size == 0) return {};
  const int64_t heads = problem.candidates.index_heads;
  std::set<std::pair<int64_t, int64_t>> touched;  // (request, logical page)
  for_each_query(problem, [&](int64_t b, int64_t i) {
    int64_t previous = -1;
    for (int64_t at = sets.indptr[i * heads]; at < sets.indptr[(i + 1) * heads]; ++at) {
      const int64_t page = sets.tokens[at] / shape->page_size;
      if (page != previous) touched.insert({b, page});
      previous = page;
    }
  });
  for (const auto& [b, page] : touched) TAMIS_RETURN_IF_ERROR(check_page(problem, *shape, b, page));
  return {};
}

std::vector<int64_t> physical_slots(const Problem& problem, const Sets& sets) {
  const CacheView& c = problem.cache;
  const int64_t heads = problem.candidates.index_heads;
  const int64_t page_size = c.page_table.present() ? c.k.shape[c.layout == Layout::kNHD ? 1 : 2] : 0;
  std::vector<int64_t> slots(sets.tokens.size());
  for_each_query(problem, [&](int64_t b, int64_t i) {
    for (int64_t at = sets.indptr[i * heads]; at < sets.indptr[(i + 1) * heads]; ++at) {
      const int64_t t = sets.tokens[at];
      slots[at] = page_size == 0 ? c.cu_kv.at<int32_t>({b}) + t
                                 : c.page_table.at<int32_t>({b, t / page_size}) * page_size + t % page_size;
    }
  });
  return slots;
}

}  // namespace tamis::reference
