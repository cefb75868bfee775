// normalize against its definition, on random problems: every ordering and block size gives the one canonical
// form, and the sets read back from it are the reference's.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "index/normalize_support.h"
#include "support/expect.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

void check_rows(const IndexView& v, const Model& m) {
  RC_ASSERT(v.rows == static_cast<int64_t>(m.rows.size()));
  RC_ASSERT(v.entries == m.blocks);
  RC_ASSERT(v.span_begin[0] == 0 && v.span_begin[v.entries] == m.spans);
  int64_t begin = 0;
  for (int64_t r = 0; r < v.rows; ++r) {
    const ModelRow& want = m.rows[r];
    RC_ASSERT(v.row[r].request == want.request && v.row[r].index_head == want.head);
    RC_ASSERT(v.row[r].first_query == want.first && v.row[r].last_query == want.last);
    RC_ASSERT(v.begin[r] == begin);
    RC_ASSERT(v.count[r] == static_cast<int64_t>(want.blocks.size()));
    int64_t e = begin;
    for (const auto& [block, b] : want.blocks) {  // ascending, each once
      RC_ASSERT(v.blocks[e] == block);
      for (int w = 0; w < v.words; ++w) RC_ASSERT(v.members[e * v.words + w] == b.words[w]);
      RC_ASSERT((v.full[e] != 0) == b.full);
      std::vector<Piece> pieces;
      for (int64_t s = v.span_begin[e]; s < v.span_begin[e + 1]; ++s)
        pieces.emplace_back(v.spans[s].token, v.spans[s].length, v.spans[s].slot);
      RC_ASSERT(pieces == b.pieces);
      ++e;
    }
    begin = e;
  }
}

void check_stats(const IndexStats& s, const Model& m, const reference::Sets& sets) {
  RC_ASSERT(s.counts.raw == sets.counts.raw);
  RC_ASSERT(s.counts.padding == sets.counts.padding);
  RC_ASSERT(s.counts.invalid == sets.counts.invalid);
  RC_ASSERT(s.counts.duplicates == sets.counts.duplicates);
  RC_ASSERT(s.counts.unique == sets.counts.unique);
  RC_ASSERT(s.future == m.future);
  RC_ASSERT(s.empty_rows == m.empty_rows);
  RC_ASSERT(s.blocks == m.blocks && s.spans == m.spans);
  RC_ASSERT(s.touched_pages == m.touched_pages);
  RC_ASSERT(s.gaps == m.gaps);
}

void check_sets(const Problem& p, const IndexView& v, const reference::Sets& sets) {
  const int64_t heads = p.candidates.index_heads;
  for (int64_t set = 0; set + 1 < static_cast<int64_t>(sets.indptr.size()); ++set)
    RC_ASSERT(expand_set(p, v, set / heads, set % heads) == set_of(sets, set));
}

TEST(NormalizeProperty, IsItsDefinition) {
  EXPECT_TRUE(rc::check("every ordering, block and load policy", [] {
    Drawn d = draw_problem(false);
    const Result<reference::Sets> sets = reference::build_sets(d.problem());
    RC_ASSERT(sets.ok());
    for (const int32_t block : {16, 32, 64, 128})
      for (const bool all_blocks : {false, true}) {
        const Model model = model_of(d, block, all_blocks);
        for (const Ordering ordering :
             {Ordering::kAuto, Ordering::kBitmap, Ordering::kSort, Ordering::kHash}) {
          const Result<IndexSet> set =
              normalize(d.problem(), {.block = block, .ordering = ordering, .all_blocks = all_blocks});
          RC_ASSERT(set.ok());
          const IndexView v = set->view();
          RC_ASSERT(v.block == block && v.words == (block == 128 ? 2 : 1));
          check_rows(v, model);
          const IndexStats& s = set->stats();
          check_stats(s, model, *sets);
          RC_ASSERT(s.rows_bitmap + s.rows_sort + s.rows_hash == v.rows);
          if (ordering == Ordering::kBitmap) RC_ASSERT(s.rows_bitmap == v.rows);
          if (ordering == Ordering::kSort) RC_ASSERT(s.rows_sort == v.rows);
          if (ordering == Ordering::kHash) RC_ASSERT(s.rows_hash == v.rows);
          check_sets(d.problem(), v, *sets);
        }
      }
  }));
}

// The canonical form listed token by token is its own canonical form.
TEST(NormalizeProperty, NormalizingAgainChangesNothing) {
  EXPECT_TRUE(rc::check("idempotent", [] {
    Drawn d = draw_problem(false);
    const int32_t block = *rc::gen::element(16, 32, 64, 128);
    const Result<IndexSet> once = normalize(d.problem(), {.block = block});
    RC_ASSERT(once.ok());
    const IndexView v = once->view();
    Rows rows(v.rows);
    for (int64_t r = 0; r < v.rows; ++r)
      for (int64_t e = v.begin[r]; e < v.begin[r] + v.count[r]; ++e)
        for (int bit = 0; bit < block; ++bit)
          if (v.members[e * v.words + bit / 64] >> bit % 64 & 1) rows[r].push_back(v.blocks[e] * block + bit);
    CandidateView c = d.problem().candidates;
    d.made.csr(rows);
    c.form = CandidateForm::kCsr;
    c.unit = 1;
    c.duplicates = OnDuplicate::kReject;  // there are none left
    c.invalid = OnInvalid::kReject;
    c.count = {};
    c.indptr = d.problem().candidates.indptr;
    c.indices = d.problem().candidates.indices;
    d.made.problem.candidates = c;
    const Result<IndexSet> twice = normalize(d.problem(), {.block = block});
    RC_ASSERT(twice.ok());
    RC_ASSERT(contents(twice->view()) == contents(v));
    RC_ASSERT(twice->stats().counts.duplicates == 0 && twice->stats().counts.invalid == 0);
  }));
}

TEST(NormalizeProperty, OrderAndRepetitionChangeNothing) {
  EXPECT_TRUE(rc::check("a list is a set", [] {
    Drawn d = draw_problem(false);
    RC_PRE(d.problem().candidates.form == CandidateForm::kCsr);
    const Result<IndexSet> plain = normalize(d.problem());
    Rows rows = d.rows;
    for (auto& row : rows) {
      const size_t n = row.size();
      for (size_t i = 0; i < n && pick(0, 1) == 1; ++i) row.push_back(pick(0, 2) == 0 ? -1 : row[i]);
      for (size_t i = row.size(); i > 1; --i) std::swap(row[i - 1], row[pick(0, static_cast<int>(i) - 1)]);
    }
    CandidateView c = d.problem().candidates;
    d.made.csr(rows);
    c.indptr = d.problem().candidates.indptr;
    c.indices = d.problem().candidates.indices;
    d.made.problem.candidates = c;
    const Result<IndexSet> other = normalize(d.problem());
    RC_ASSERT(plain.ok() && other.ok());
    RC_ASSERT(contents(plain->view()) == contents(other->view()));
    RC_ASSERT(plain->stats().counts.unique == other->stats().counts.unique);
  }));
}

bool same_where(const Where& a, const Where& b) {
  return a.request == b.request && a.row == b.row && a.page == b.page && a.value == b.value &&
         a.limit == b.limit;
}

// An index set lives through many steps, good and bad ones, and remembers nothing of them.
TEST(NormalizeProperty, RefusesWhatTheReferenceRefusesAndForgetsTheLastStep) {
  int refused = 0, pages = 0, served = 0;
  EXPECT_TRUE(rc::check("same verdicts, no memory", [&] {
    IndexSet reused;
    for (int step = 0; step < 4; ++step) {
      Drawn d = draw_problem(true);
      Status want;
      const Result<reference::Sets> sets = reference::build_sets(d.problem());
      want = sets.ok() ? reference::check_pages(d.problem(), *sets) : sets.status();
      const NormalizeOptions options{
          .block = *rc::gen::element(0, 16, 32, 64, 128),
          .ordering = *rc::gen::element(Ordering::kAuto, Ordering::kBitmap, Ordering::kSort, Ordering::kHash),
          .all_blocks = pick(0, 1) == 1};
      const Status got = normalize_into(d.problem(), options, &reused);
      RC_ASSERT(got.code() == want.code());
      RC_ASSERT(same_where(got.where(), want.where()));
      const IndexView v = reused.view();
      if (!got.ok()) {
        ++refused;
        pages += got.where().page.has_value();
        RC_ASSERT(v.rows == 0 && v.entries == 0 && v.span_begin[0] == 0);
        RC_ASSERT(reused.stats().counts.raw == 0 && reused.stats().blocks == 0 &&
                  reused.stats().touched_pages == 0);
        continue;
      }
      ++served;
      const Result<IndexSet> fresh = normalize(d.problem(), options);
      RC_ASSERT(fresh.ok());
      RC_ASSERT(contents(v) == contents(fresh->view()));
      RC_ASSERT(reused.stats().counts.raw == fresh->stats().counts.raw);
      RC_ASSERT(reused.stats().touched_pages == fresh->stats().touched_pages);
      RC_ASSERT(reused.stats().gaps == fresh->stats().gaps);
    }
  }));
  // None of the kinds may die out, however few problems were asked for.
  const int64_t drawn = refused + served;
  EXPECT_GT(refused, drawn / 8);
  EXPECT_GT(pages, drawn / 40);
  EXPECT_GT(served, drawn / 8);
}

}  // namespace
}  // namespace tamis
