// build_sets against the definition: sections 3 and 4 written as a set comprehension over all tokens, on
// random options.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <set>

#include "support/expect.h"
#include "support/problems.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

struct Random {
  std::vector<int32_t> kv_len, q_len, counts, q_pos;
  Rows rows;
  CandidateForm form;
  int64_t unit, query_block, index_heads;
  Mask mask;
  OnDuplicate duplicates;
  OnInvalid invalid;
};

int pick(int first, int last) { return *rc::gen::inRange(first, last + 1); }

Random draw() {
  Random r;
  const int requests = pick(1, 3);
  int queries = 0;
  for (int b = 0; b < requests; ++b) {
    r.kv_len.push_back(pick(0, 20));
    r.q_len.push_back(pick(0, 5));
    queries += r.q_len.back();
  }
  r.form = *rc::gen::element(CandidateForm::kCsr, CandidateForm::kCsr, CandidateForm::kFixedWidth,
                             CandidateForm::kNone, CandidateForm::kAll);
  r.unit = *rc::gen::element<int64_t>(1, 1, 2, 3, 4, 7, 100);
  r.query_block = *rc::gen::element<int64_t>(1, 1, 2, 3, 100);
  r.index_heads = *rc::gen::element<int64_t>(1, 2, 4);
  r.mask = {.causal = pick(0, 1) == 1, .window = pick(0, 1) * pick(0, 8), .sink = pick(0, 1) * pick(0, 8)};
  // Mostly lenient, so that most cases get as far as the sets.
  r.duplicates = pick(0, 3) == 0 ? OnDuplicate::kReject : OnDuplicate::kMerge;
  r.invalid = pick(0, 3) == 0 ? OnInvalid::kReject : OnInvalid::kDrop;
  if (pick(0, 1) == 1)
    for (int i = 0; i < queries; ++i) r.q_pos.push_back(pick(-3, 23));
  const int width = pick(0, 6);
  const bool counted = pick(0, 1) == 1;
  for (int b = 0; b < requests; ++b) {
    const int64_t blocks = (r.q_len[b] + r.query_block - 1) / r.query_block;
    for (int64_t row = 0; row < blocks * r.index_heads; ++row) {
      const int good = r.kv_len[b] == 0 ? 0 : (r.kv_len[b] - 1) / static_cast<int>(r.unit);
      std::vector<int32_t> entries(r.form == CandidateForm::kCsr ? pick(0, 6) : width);
      for (int32_t& e : entries) e = pick(0, 7) == 0 ? pick(-4, good + 3) : pick(0, good);
      r.rows.push_back(entries);
      if (counted && r.form == CandidateForm::kFixedWidth) r.counts.push_back(pick(0, width));
    }
  }
  return r;
}

TestProblem problem_of(const Random& r) {
  TestProblem t(
      {.kv_len = r.kv_len, .q_len = r.q_len, .q_heads = 4, .kv_heads = 2, .head_dim = 1, .v_head_dim = 1});
  if (r.form == CandidateForm::kCsr) t.csr64(r.rows);
  if (r.form == CandidateForm::kFixedWidth) t.fixed(r.rows, r.counts);
  if (!r.q_pos.empty()) t.q_pos(r.q_pos);
  CandidateView& c = t.problem.candidates;
  c.form = r.form;
  c.unit = r.unit;
  c.query_block = r.query_block;
  c.index_heads = r.index_heads;
  c.duplicates = r.duplicates;
  c.invalid = r.invalid;
  t.problem.mask = r.mask;
  return t;
}

struct Offence {
  Code code;
  int64_t request, row, value;
};

// What the definition says, token by token.
struct Defined {
  std::vector<std::vector<int32_t>> sets;  // query-major
  CandidateCounts counts;
  int64_t empty = 0;
  std::vector<Offence> offences;  // in order of rows and entries
};

Defined define(const Random& r) {
  Defined out;
  size_t row = 0, first_query = 0;
  for (size_t b = 0; b < r.kv_len.size(); ++b) {
    for (int i = 0; i < r.q_len[b]; ++i) {
      const size_t block_row = row + static_cast<size_t>(i / r.query_block * r.index_heads);
      const int64_t pos = r.q_pos.empty() ? r.kv_len[b] - r.q_len[b] + i : r.q_pos[first_query + i];
      for (int64_t g = 0; g < r.index_heads; ++g) {
        const bool listed = r.form == CandidateForm::kCsr || r.form == CandidateForm::kFixedWidth;
        const size_t at = block_row + static_cast<size_t>(g);
        std::vector<int32_t> entries = listed ? r.rows[at] : std::vector<int32_t>{};
        if (listed && !r.counts.empty()) entries.resize(r.counts[at]);
        out.sets.emplace_back();
        for (int64_t t = 0; t < r.kv_len[b]; ++t) {
          bool dynamic = r.form == CandidateForm::kAll;
          for (const int64_t e : entries)
            dynamic = dynamic || (e >= 0 && e * r.unit <= t && t < e * r.unit + r.unit);
          if (pos >= 0 && (!r.mask.causal || t <= pos) &&
              (dynamic || t < r.mask.sink || (r.mask.window > 0 && pos - r.mask.window < t && t <= pos)))
            out.sets.back().push_back(static_cast<int32_t>(t));
        }
        out.empty += out.sets.back().empty();
        if (i % r.query_block != 0) continue;  // entries are judged once a row
        std::set<int32_t> seen;
        for (const int32_t e : entries) {
          ++out.counts.raw;
          const bool padding = e == -1, bad = !padding && (e < 0 || e * r.unit >= r.kv_len[b]);
          const bool again = !padding && !bad && !seen.insert(e).second;
          out.counts.padding += padding;
          out.counts.invalid += bad;
          out.counts.duplicates += again;
          out.counts.unique += !padding && !bad && !again;
          if (bad && r.invalid == OnInvalid::kReject)
            out.offences.push_back(
                {Code::kIndexOutOfRange, static_cast<int64_t>(b), static_cast<int64_t>(at), e});
          if (again && r.duplicates == OnDuplicate::kReject)
            out.offences.push_back(
                {Code::kDuplicateIndex, static_cast<int64_t>(b), static_cast<int64_t>(at), e});
        }
      }
    }
    row += static_cast<size_t>((r.q_len[b] + r.query_block - 1) / r.query_block * r.index_heads);
    first_query += r.q_len[b];
  }
  return out;
}

void check_against_definition(const Random& r) {
  const TestProblem t = problem_of(r);
  const Defined want = define(r);
  const Result<reference::Sets> got = reference::build_sets(t.problem);
  if (!want.offences.empty()) {
    RC_ASSERT(!got.ok());
    const Status s = got.status();
    RC_ASSERT(s.code() == want.offences.front().code);
    RC_ASSERT(s.where().request == want.offences.front().request);
    RC_ASSERT(s.where().row == want.offences.front().row);
    RC_ASSERT(s.where().value == want.offences.front().value);
    return;
  }
  if (!got.ok()) RC_FAIL(got.status().message());
  RC_ASSERT(got->indptr.size() == want.sets.size() + 1);
  for (size_t i = 0; i < want.sets.size(); ++i)
    RC_ASSERT(set_of(*got, static_cast<int64_t>(i)) == want.sets[i]);
  RC_ASSERT(got->counts.raw == want.counts.raw);
  RC_ASSERT(got->counts.padding == want.counts.padding);
  RC_ASSERT(got->counts.invalid == want.counts.invalid);
  RC_ASSERT(got->counts.duplicates == want.counts.duplicates);
  RC_ASSERT(got->counts.unique == want.counts.unique);
  RC_ASSERT(got->empty_rows == want.empty);
}

TEST(ReferenceSetsProperty, EqualTheSetComprehension) {
  EXPECT_TRUE(rc::check("build_sets is the comprehension of section 4", [] {
    for (int i = 0; i < 10; ++i) check_against_definition(draw());
  }));
}

}  // namespace
}  // namespace tamis
