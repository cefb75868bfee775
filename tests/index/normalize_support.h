// Random problems for normalize, and what the canonical form of one must be: section 4 of docs/semantics.md
// and the comments of tamis/index.h, token by token.
#pragma once

#include <rapidcheck.h>

#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "support/problems.h"
#include "tamis/index.h"

namespace tamis::testing {

inline int pick(int first, int last) { return *rc::gen::inRange(first, last + 1); }

// A copy of an index tensor with garbage between its elements, or its first elements last.
inline void restride(TensorView* t, int64_t step, bool reversed,
                     std::vector<std::vector<unsigned char>>* keep) {
  if (!t->present() || t->elements() == 0) return;
  const int64_t size = dtype_bytes(t->dtype), n = t->elements();
  std::vector<unsigned char>& copy = keep->emplace_back(n * step * size, 0x6B);
  TensorView out = *t;
  int64_t stride = step;
  for (int axis = t->rank - 1; axis >= 0; --axis) {
    out.stride[axis] = reversed ? -stride : stride;
    stride *= t->shape[axis];
  }
  const unsigned char* from = static_cast<const unsigned char*>(t->data);
  for (int64_t i = 0; i < n; ++i) {
    int64_t rest = i, at = 0;
    for (int axis = t->rank - 1; axis >= 0; rest /= t->shape[axis--])
      at += rest % t->shape[axis] * t->stride[axis];
    std::memcpy(&copy[(reversed ? n - 1 - i : i) * step * size], from + at * size, size);
  }
  out.data = copy.data() + (reversed ? (n - 1) * step * size : 0);
  *t = out;
}

struct Drawn {
  TestProblem made;
  Rows rows;  // raw entries, as far as they are listed
  std::vector<std::vector<unsigned char>> copies{};
  const Problem& problem() const { return made.problem; }
};

// `strict` draws also problems that must be refused: entries out of range, duplicates, wrong pages, stamps.
inline Drawn draw_problem(bool strict) {
  Spec s{.kv_len = {}, .q_len = {}, .head_dim = 1, .v_head_dim = 1};
  for (int b = pick(1, 3); b > 0; --b) {
    s.kv_len.push_back(pick(0, 2) == 0 ? pick(0, 20) : *rc::gen::element(64, 127, 128, 129, pick(0, 400)));
    s.q_len.push_back(pick(0, 4));
  }
  s.kv_heads = pick(1, 2);
  s.q_heads = s.kv_heads * pick(1, 3);
  s.page_size = *rc::gen::element<int64_t>(0, 1, 4, 16, 24, 48, 64, 100, 128, 256);
  s.layout = *rc::gen::element(Layout::kNHD, Layout::kHND);
  const auto kv_len = s.kv_len, q_len = s.q_len;
  const int64_t page_size = s.page_size;
  CandidateView c;
  c.unit = *rc::gen::element<int64_t>(1, 1, 1, 2, 3, 7, 16, 24, 64, 100, 128, 1000);
  c.query_block = *rc::gen::element<int64_t>(1, 1, 2, 3, 100);
  c.index_heads = *rc::gen::element<int64_t>(1, s.kv_heads, s.q_heads);
  c.invalid = !strict || pick(0, 2) == 0 ? OnInvalid::kDrop : OnInvalid::kReject;
  c.duplicates = !strict || pick(0, 2) == 0 ? OnDuplicate::kMerge : OnDuplicate::kReject;

  const int width = pick(0, 12);
  const bool fixed = pick(0, 1) == 1, counted = pick(0, 1) == 1;
  Rows rows;
  std::vector<int32_t> counts;
  for (size_t b = 0; b < q_len.size(); ++b)
    for (int64_t r = (q_len[b] + c.query_block - 1) / c.query_block * c.index_heads; r > 0; --r) {
      const int good = kv_len[b] == 0 ? 0 : (kv_len[b] - 1) / static_cast<int>(c.unit);
      std::vector<int32_t> row(fixed ? width : pick(0, 12));
      for (int32_t& e : row)
        e = pick(0, 9) == 0 ? *rc::gen::element(-1, -1, -2, good + 1, INT32_MAX) : pick(0, good);
      if (fixed && counted) {
        counts.push_back(pick(0, width));
        std::fill(row.begin() + counts.back(), row.end(), pick(0, 1) == 1 ? -77 : 0);
      }
      rows.push_back(row);
    }

  Drawn d{TestProblem(std::move(s)), rows};
  TestProblem& t = d.made;
  if (fixed)
    t.fixed(rows, counts);
  else
    pick(0, 1) == 1 ? t.csr(rows) : t.csr64(rows);
  for (size_t r = 0; r < counts.size(); ++r) d.rows[r].resize(counts[r]);
  const CandidateForm form = pick(0, 7) == 0   ? CandidateForm::kAll
                             : pick(0, 7) == 0 ? CandidateForm::kNone
                                               : t.problem.candidates.form;
  c.form = form;
  c.indptr = t.problem.candidates.indptr;
  c.indices = t.problem.candidates.indices;
  c.count = t.problem.candidates.count;
  t.problem.candidates = c;
  if (form == CandidateForm::kAll || form == CandidateForm::kNone) {
    t.problem.candidates.indptr = t.problem.candidates.indices = t.problem.candidates.count = {};
    for (auto& row : d.rows) row.clear();
  }
  t.problem.mask = {
      .causal = pick(0, 1) == 1,
      .window = pick(0, 1) * *rc::gen::element<int64_t>(1, 3, pick(0, 200), int64_t{1} << 40),
      .sink = pick(0, 2) == 0 ? *rc::gen::element<int64_t>(1, pick(0, 200), int64_t{1} << 40) : 0};
  int total = 0;
  for (const int32_t n : q_len) total += n;
  if (pick(0, 1) == 1 && total > 0) {
    std::vector<int32_t> positions(total);
    for (int32_t& p : positions) p = pick(0, 5) == 0 ? pick(-3, 0) : pick(0, 420);
    t.q_pos(positions);
  }
  if (page_size > 0 && pick(0, 2) == 0) {
    std::vector<uint64_t> stamps(t.slots() / page_size);
    for (size_t i = 0; i < stamps.size(); ++i) stamps[i] = 100 + i;
    t.stamps(stamps);
  }
  for (int b = 0; page_size > 0 && b < static_cast<int>(kv_len.size()); ++b) {
    const int64_t pages = (kv_len[b] + page_size - 1) / page_size;
    if (pages > 1 && !t.problem.cache.page_stamps.present() && pick(0, 3) == 0)
      t.table(b, 0) = t.table(b, pages - 1);  // two logical pages, one physical
    for (int64_t p = 0; strict && p < pages; ++p) {
      if (pick(0, 8) != 0) continue;
      if (t.problem.cache.page_stamps.present() && pick(0, 1) == 1)
        ++t.table_stamp(b, p);
      else
        t.table(b, p) =
            *rc::gen::element(-1, -2, static_cast<int>(t.slots() / page_size), INT32_MAX, INT32_MIN);
    }
  }
  if (pick(0, 1) == 1) {
    Problem& p = t.problem;
    for (TensorView* view : {&p.candidates.indptr, &p.candidates.indices, &p.candidates.count, &p.query.q_pos,
                             &p.query.cu_q, &p.cache.kv_len, &p.cache.page_table, &p.cache.cu_kv})
      restride(view, pick(1, 3), pick(0, 2) == 0, &d.copies);
  }
  return d;
}

using Piece = std::tuple<int32_t, int32_t, int64_t>;  // token, length, slot

struct ModelBlock {
  std::vector<uint64_t> words;
  bool full;
  std::vector<Piece> pieces;
};

struct ModelRow {
  int64_t request = 0, head = 0, first = 0, last = 0;  // last: behind the last query
  std::vector<bool> listed, seen;                      // [kv_len]
  int64_t reach = 0;                                   // first token behind all that some query may see
  std::map<int32_t, ModelBlock> blocks;
};

struct Model {
  std::vector<ModelRow> rows;
  int64_t future = 0, empty_rows = 0, gaps = 0, touched_pages = 0, blocks = 0, spans = 0;
};

inline void look(const Problem& p, ModelRow* row) {
  const int64_t kv_len = static_cast<int64_t>(row->listed.size());
  for (int64_t i = row->first; i < row->last; ++i) {
    const int64_t end = p.query.cu_q.at<int32_t>({row->request + 1});
    const int64_t pos = p.query.q_pos.present() ? p.query.q_pos.at<int32_t>({i}) : kv_len - (end - i);
    for (int64_t t = 0; t < kv_len; ++t) {
      if (pos < 0 || (p.mask.causal && t > pos)) continue;
      row->reach = std::max(row->reach, t + 1);
      if (row->listed[t] || t < p.mask.sink || (t <= pos && t > pos - p.mask.window)) row->seen[t] = true;
    }
  }
}

inline ModelBlock block_of(Drawn& d, const ModelRow& row, int64_t base, int64_t block,
                           const std::set<int64_t>& touched, bool all_blocks) {
  const int64_t kv_len = static_cast<int64_t>(row.listed.size()), end = std::min(base + block, kv_len);
  ModelBlock b{.words = std::vector<uint64_t>(block > 64 ? 2 : 1), .full = true, .pieces = {}};
  const CacheView& cache = d.problem().cache;
  const int64_t page =
      cache.page_table.present() ? cache.k.shape[cache.layout == Layout::kNHD ? 1 : 2] : kv_len + block;
  for (int64_t t = base; t < end; ++t) {
    b.words[(t - base) / 64] |= uint64_t{row.listed[t]} << (t - base) % 64;
    b.full = b.full && row.listed[t];
  }
  for (int64_t first = base, last = base; first < end; first = last) {
    last = std::min(end, (first / page + 1) * page);
    bool any = false;
    for (int64_t t = first; t < last; ++t) any = any || row.seen[t];
    if (any || (all_blocks && (!cache.page_table.present() || touched.count(first / page))))
      b.pieces.emplace_back(first, last - first, d.made.slot(row.request, first));
  }
  return b;
}

inline Model model_of(Drawn& d, int64_t block, bool all_blocks) {
  const Problem& p = d.problem();
  const CandidateView& c = p.candidates;
  Model m;
  std::map<int64_t, std::set<int64_t>> touched;  // logical pages by request
  const int64_t page =
      p.cache.page_table.present() ? p.cache.k.shape[p.cache.layout == Layout::kNHD ? 1 : 2] : INT64_MAX;
  for (int64_t b = 0; b + 1 < p.query.cu_q.shape[0]; ++b) {
    const int64_t end = p.query.cu_q.at<int32_t>({b + 1}), kv_len = p.cache.kv_len.at<int32_t>({b});
    for (int64_t first = p.query.cu_q.at<int32_t>({b}); first < end;
         first += std::min(c.query_block, end - first))
      for (int64_t g = 0; g < c.index_heads; ++g) {
        ModelRow row{.request = b,
                     .head = g,
                     .first = first,
                     .last = std::min(end, first + c.query_block),
                     .listed = std::vector<bool>(kv_len, c.form == CandidateForm::kAll),
                     .seen = std::vector<bool>(kv_len),
                     .blocks = {}};
        std::set<int64_t> entries;  // unique and in range
        for (const int32_t e : d.rows.at(m.rows.size()))
          if (e >= 0 && e * c.unit < kv_len) entries.insert(e);
        for (const int64_t e : entries)
          for (int64_t t = e * c.unit; t < std::min(kv_len, (e + 1) * c.unit); ++t) row.listed[t] = true;
        look(p, &row);
        for (const int64_t e : entries) m.future += e * c.unit >= row.reach;
        for (int64_t t = 0; t < kv_len; ++t)
          if (row.seen[t] && p.cache.page_table.present()) touched[b].insert(t / page);
        m.rows.push_back(row);
      }
  }
  for (const auto& [b, pages] : touched) m.touched_pages += static_cast<int64_t>(pages.size());
  for (ModelRow& row : m.rows) {
    for (int64_t base = 0; base < row.reach; base += block) {
      bool any = all_blocks;
      for (int64_t t = base; t < std::min<int64_t>(base + block, row.seen.size()); ++t)
        any = any || row.seen[t];
      if (!any) continue;
      const int32_t number = static_cast<int32_t>(base / block);
      m.gaps += !row.blocks.empty() && row.blocks.rbegin()->first != number - 1;
      row.blocks[number] = block_of(d, row, base, block, touched[row.request], all_blocks);
      m.spans += static_cast<int64_t>(row.blocks[number].pieces.size());
    }
    m.empty_rows += row.blocks.empty();
    m.blocks += static_cast<int64_t>(row.blocks.size());
  }
  return m;
}

// All of an IndexView as one comparable value.
inline auto contents(const IndexView& v) {
  std::vector<std::tuple<int32_t, int32_t, int32_t, int32_t, int64_t, int32_t>> rows;
  for (int64_t r = 0; r < v.rows; ++r)
    rows.emplace_back(v.row[r].request, v.row[r].index_head, v.row[r].first_query, v.row[r].last_query,
                      v.begin[r], v.count[r]);
  std::vector<Piece> spans;
  for (int64_t s = 0; s < v.span_begin[v.entries]; ++s)
    spans.emplace_back(v.spans[s].token, v.spans[s].length, v.spans[s].slot);
  return std::tuple(v.block, v.words, rows, std::vector<int32_t>(v.blocks, v.blocks + v.entries),
                    std::vector<uint64_t>(v.members, v.members + v.entries * v.words),
                    std::vector<uint8_t>(v.full, v.full + v.entries),
                    std::vector<int64_t>(v.span_begin, v.span_begin + v.entries + 1), spans);
}

}  // namespace tamis::testing
