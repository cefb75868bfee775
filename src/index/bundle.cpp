#include "tamis/bundle.h"

#include <utility>

#include "core/checks.h"
#include "core/source.h"
#include "index/bundle_cut.h"
#include "index/bundle_merge.h"
#include "index/bundle_policy.h"
#include "index/bundle_storage.h"

namespace tamis {
namespace {

using index::Cut;
using index::Group;
using index::Heads;

// A kernel tile holds 128 rows; wider bundles would save no load and only fill memory with empty words.
constexpr int32_t kMostNeighbours = 128;

Status check_options(const BundleOptions& o) {
  if (o.policy > BundlePolicy::kNeighbours)
    return invalid("policy", static_cast<int>(o.policy), " is not a bundle policy");
  if (o.neighbours < 1 || o.neighbours > kMostNeighbours)
    return {Code::kInvalidArgument,
            text("neighbours: ", o.neighbours, " is outside [1, ", kMostNeighbours, "]"),
            {.value = o.neighbours, .limit = kMostNeighbours + 1}};
  return {};
}

// The index has to be that of the problem: rows are found by counting.
Status check_index(const Problem& problem, const Shape& shape, const IndexView& index) {
  const int64_t rows = count_query_blocks(problem) * shape.index_heads;
  if (index.rows != rows) return invalid("index", index.rows, " rows, the problem has ", rows);
  // 0: made by hand, without a stamp.
  if (index.source != 0 && index.source != source_stamp(problem, shape))
    return {Code::kStalePlan, "index: was made from other lengths, positions or sizes than this problem's"};
  if (rows > INT32_MAX)
    return {Code::kCapacityExceeded,
            text("index: ", rows, " rows, bundles number them in 32 bits"),
            {.value = rows, .limit = int64_t{INT32_MAX} + 1}};
  return {};
}

Cut cut_of(const Shape& shape, const IndexView& index, const BundleOptions& o) {
  const int32_t joined = Heads(shape).lists_of_kv_head();
  switch (o.policy) {
    case BundlePolicy::kAuto:
      return index::cheapest_cut(shape, index);
    case BundlePolicy::kRows:
      break;
    case BundlePolicy::kHeads:
      return {joined, 1};
    case BundlePolicy::kNeighbours:
      return {joined, o.neighbours};
  }
  return {1, 1};
}

// What the cut amounts to: in decode no request has neighbours to join, and the rows can stay where they are.
Cut plainest(Cut cut, const IndexView& index, int32_t index_heads) {
  if (cut.query_blocks == 1) return cut;
  const int64_t query_blocks = index.rows / index_heads;
  for (int64_t q = 0; q + 1 < query_blocks; ++q)
    if (index.row[q * index_heads].request == index.row[(q + 1) * index_heads].request) return cut;
  return {cut.heads, 1};
}

// One row a bundle, on the arrays of the index.
void share(const IndexView& index, const Heads& heads, Bundles::Storage* out) {
  const int32_t rows = static_cast<int32_t>(index.rows);
  out->bundle.reserve(rows);
  out->rows.reserve(rows);
  for (int32_t r = 0, head = 0; r < rows; ++r, head = head + 1 < heads.index ? head + 1 : 0) {
    out->rows.push_back(r);
    out->bundle.push_back({.request = index.row[r].request,
                           .kv_head = heads.first_kv(head),
                           .kv_heads = heads.kv_heads_served(),
                           .first_list = r,
                           .lists = 1,
                           .count = index.count[r],
                           .begin = index.begin[r],
                           .members_at = index.begin[r] * index.words});
    out->stats.listed_blocks += index.count[r];
  }
  out->stats.union_blocks = out->stats.listed_blocks;
  BundleView& v = out->view;
  v.entries = index.entries;
  v.source = index.source;
  v.slots = index.slots;
  v.max_lists = rows > 0 ? 1 : 0;
  v.blocks = index.blocks;
  v.members = index.members;
  v.full = index.full;
  v.span_begin = index.span_begin;
  v.spans = index.spans;
}

// Bundles of several rows, in arrays of their own. False: too many member words.
bool unite(const IndexView& index, const Heads& heads, Cut cut, size_t most_words, Bundles::Storage* out) {
  BundleView& v = out->view;
  bool fits = true;
  out->rows.reserve(index.rows);
  out->span_begin.push_back(0);
  index::Merger merger(index, most_words, out);
  for_each_group(index, heads, cut, [&](const Group& g) {
    if (!fits) return;
    Bundle b{.request = index.row[g.row_of(0)].request,
             .kv_head = heads.first_kv(g.head),
             .kv_heads = heads.kv_heads_served(),
             .first_list = static_cast<int32_t>(out->rows.size()),
             .lists = g.lists(),
             .count = 0,
             .begin = static_cast<int64_t>(out->blocks.size()),
             .members_at = static_cast<int64_t>(out->members.size())};
    for (int32_t l = 0; l < g.lists(); ++l) {
      out->rows.push_back(static_cast<int32_t>(g.row_of(l)));
      out->stats.listed_blocks += index.count[g.row_of(l)];
    }
    b.count = merger.append(g);
    fits = b.count >= 0;
    v.max_lists = std::max(v.max_lists, b.lists);
    out->bundle.push_back(b);
  });
  v.source = index.source;
  v.slots = index.slots;
  v.entries = out->stats.union_blocks = static_cast<int64_t>(out->blocks.size());
  v.blocks = out->blocks.data();
  v.members = out->members.data();
  v.full = out->full.data();
  v.span_begin = out->span_begin.data();
  v.spans = out->spans.data();
  return fits;
}

// Fills *out, which is empty, by one cut. False: too many member words.
bool build(const IndexView& index, const Heads& heads, Cut cut, size_t most_words, Bundles::Storage* out) {
  const bool apart = cut.heads == 1 && cut.query_blocks == 1;
  if (apart)
    share(index, heads, out);
  else if (!unite(index, heads, cut, most_words, out))
    return false;
  out->stats.policy = apart                  ? BundlePolicy::kRows
                      : cut.query_blocks > 1 ? BundlePolicy::kNeighbours
                                             : BundlePolicy::kHeads;
  out->stats.neighbours = cut.query_blocks;
  BundleView& v = out->view;
  v.bundles = static_cast<int64_t>(out->bundle.size());
  v.block = index.block;
  v.words = index.words;
  v.bundle = out->bundle.data();
  v.rows = out->rows.data();
  v.row = index.row;
  return true;
}

}  // namespace

Bundles::Bundles() : storage_(std::make_unique<Storage>()) {}
Bundles::~Bundles() = default;
Bundles::Bundles(Bundles&&) noexcept = default;
Bundles& Bundles::operator=(Bundles&&) noexcept = default;

BundleView Bundles::view() const { return storage_->view; }
const BundleStats& Bundles::stats() const { return storage_->stats; }

Result<Bundles> index::bundle_within(size_t most_words, const Problem& problem, const IndexSet& set,
                                     const BundleOptions& options) {
  TAMIS_RETURN_IF_ERROR(check_options(options));
  Result<Shape> shape = describe(problem);
  if (!shape.ok()) return shape.status();
  const IndexView view = set.view();
  TAMIS_RETURN_IF_ERROR(check_index(problem, *shape, view));

  const Heads heads(*shape);
  const Cut cut = plainest(cut_of(*shape, view, options), view, heads.index);
  Bundles joined;
  if (build(view, heads, cut, most_words, &joined.storage())) return joined;
  if (options.policy != BundlePolicy::kAuto)
    return Status(Code::kCapacityExceeded,
                  text("policy: bundles of ", cut.heads * cut.query_blocks, " lists need more than ",
                       most_words, " member words"),
                  {.value = cut.heads * cut.query_blocks});
  Bundles apart;
  build(view, heads, {1, 1}, most_words, &apart.storage());
  return apart;
}

namespace {

Result<Bundles> bundle_unguarded(const Problem& problem, const IndexSet& index,
                                 const BundleOptions& options) {
  return index::bundle_within(index::kMostMemberWords, problem, index, options);
}

}  // namespace

Result<Bundles> bundle(const Problem& problem, const IndexSet& index, const BundleOptions& options) {
  return guarded([&] { return bundle_unguarded(problem, index, options); });
}

}  // namespace tamis
