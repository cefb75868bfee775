// docs/faults.md, groups A to F, I and J: one table, each row the smallest input that shows its fault.
// Backends run it each in its own ways.
#pragma once

#include <cmath>
#include <functional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "support/problems.h"
#include "tamis/status.h"

namespace tamis::testing::faults {

// What a backend has to change of sizes and dtypes before it can run a row.
using SpecChange = std::function<Spec(Spec)>;
using Make = std::function<TestProblem(const SpecChange&)>;

struct Entry {
  const char* name;  // the entry of docs/faults.md, then what is shown
  Make make;
  Code code = Code::kOk;
  std::vector<double> out{};  // the first element of each (query, head); empty: the reference alone judges
  std::vector<double> lse{};
};

inline void PrintTo(const Entry& entry, std::ostream* to) { *to << entry.name; }

// Not causal, as the entries are unless they say so; K = 0 and V[t] = t unless they say so.
inline TestProblem open_problem(const Spec& s, const Rows& rows, const SpecChange& change) {
  TestProblem t(change ? change(s) : s);
  t.problem.mask.causal = false;
  t.csr(rows);
  return t;
}

// The same with some options set.
template <class F>
Make with(Spec s, Rows rows, F change) {
  return [s = std::move(s), rows = std::move(rows), change](const SpecChange& other) {
    TestProblem t = open_problem(s, rows, other);
    change(t);
    return t;
  };
}
inline Make open(Spec s, Rows rows) {
  return with(std::move(s), std::move(rows), [](TestProblem&) {});
}

inline void causal(TestProblem& t) { t.problem.mask.causal = true; }
inline void all(TestProblem& t) {
  t.all();
  t.problem.candidates.indices = t.problem.candidates.indptr = {};
}
inline void drop(TestProblem& t) { t.problem.candidates.invalid = OnInvalid::kDrop; }
inline void reject_duplicates(TestProblem& t) { t.problem.candidates.duplicates = OnDuplicate::kReject; }
inline auto unit(int64_t u) {
  return [u](TestProblem& t) { t.problem.candidates.unit = u; };
}
inline auto fixed(Rows rows, std::vector<int32_t> counts) {
  return [=](TestProblem& t) {
    t.problem.candidates.indptr = {};
    t.fixed(rows, counts);
  };
}
template <class... F>
auto both(F... f) {
  return [=](TestProblem& t) { (f(t), ...); };
}

inline double one(int64_t, int64_t, int64_t, int64_t) { return 1; }
inline double head_number(int64_t, int64_t, int64_t h, int64_t) { return static_cast<double>(h); }
inline QFill per_query(std::vector<double> values) {
  return [values](int64_t i, int64_t, int64_t) { return values[i]; };
}

inline std::vector<int32_t> run_of(int32_t first, int32_t last) {
  std::vector<int32_t> row;
  for (int32_t e = first; e < last; ++e) row.push_back(e);
  return row;
}
inline std::vector<int32_t> then(std::vector<int32_t> row, int32_t e) {
  row.push_back(e);
  return row;
}

// Poison in slots 0 and 3 of K and V.
inline void poison_ends(TestProblem& t) {
  for (const int64_t token : {0, 3}) {
    t.put_k(t.slot(0, token), kNaN);
    t.put_v(t.slot(0, token), kNaN);
  }
}
inline auto poison_last(double x, bool k) {
  return [=](TestProblem& t) { k ? t.put_k(t.slot(0, 3), x) : t.put_v(t.slot(0, 3), x); };
}

// One query row of score `score` and one of 0 in one tile.
inline auto scored(double score) {
  return with({.kv_len = {1}, .q_len = {2}, .head_dim = 1, .q = per_query({score, 0}), .k = one, .v = one},
              {{0}}, [](TestProblem& t) {
                t.q_pos({0, 0});
                t.problem.score.scale = 1;
                t.problem.candidates.query_block = 2;
              });
}
inline auto tail(int32_t length) {
  return with({.kv_len = {length}, .head_dim = 1, .page_size = 64, .q = per_query({-10}), .k = one, .v = one},
              {{}}, both(all, [](TestProblem& t) { t.problem.score.scale = 1; }));
}
inline auto dims(int64_t d) {
  return with({.kv_len = {507},
               .q_len = {3},
               .q_heads = 3,
               .head_dim = d,
               .v_head_dim = d,
               .page_size = 16,
               .placement = Placement::kGaps,
               .q = q_noise(1),
               .k = kv_noise(2),
               .v = kv_noise(3)},
              {{}}, both(all, causal));
}
inline Make two_pages(int32_t entry, int32_t token) {
  return open({.kv_len = {8}, .table = {{0, entry}}, .pages = 4}, {{token}});
}
inline Spec strided(Placement placement, int64_t page_size) {
  return {.kv_len = {5, 7},
          .q_len = {3, 3},
          .q_heads = 6,
          .kv_heads = 2,
          .head_dim = 64,
          .v_head_dim = 64,
          .page_size = page_size,
          .placement = placement,
          .v = [](int64_t b, int64_t t, int64_t, int64_t) { return 1000.0 * b + t; }};
}
inline std::vector<double> repeated(std::initializer_list<std::pair<int, double>> runs) {
  std::vector<double> x;
  for (const auto& [n, value] : runs) x.insert(x.end(), n, value);
  return x;
}
// `rows` rows, those of `with_work` with token 0, the others empty.
inline Make work_at(int32_t rows, const std::vector<int32_t>& with_work) {
  Rows lists(rows);
  for (const int32_t r : with_work) lists[r] = {0};
  return with({.kv_len = {4}, .q_len = {rows}, .v = one}, lists,
              [rows](TestProblem& t) { t.q_pos(std::vector<int32_t>(rows, 0)); });
}
inline std::vector<double> ones_at(int32_t rows, const std::vector<int32_t>& with_work) {
  std::vector<double> x(rows, 0);
  for (const int32_t r : with_work) x[r] = 1;
  return x;
}

inline const double kLn2 = std::log(2.0), kLn3 = std::log(3.0);
inline const Rows kHoles = {{-1, -1, -1, -1, 0, 1, 2, -1}};
inline const auto kWideTable = open({.kv_len = {5}, .table = {{2, 0, 99999, -7}}, .pages = 4}, {{0, 4}});
inline const Spec kNoisyFour{.kv_len = {4}, .q = q_noise(4), .k = kv_noise(5), .v = kv_noise(6)};

inline const Entry kEntries[] = {
    {"A1_Rejected", open({}, {{3, 8, -2, INT32_MIN, INT32_MAX}}), Code::kIndexOutOfRange},
    {"A1_Dropped", with({}, {{3, 8, -2, INT32_MIN, INT32_MAX}}, drop), Code::kOk, {3}, {0}},
    {"A1_LastTokenPasses", open({}, {{7}}), Code::kOk, {7}, {0}},
    {"A1_LengthDoesNot", open({}, {{8}}), Code::kIndexOutOfRange},
    {"A1_MinusTwoDoesNot", open({}, {{-2}}), Code::kIndexOutOfRange},
    {"A2_Holes", with({.kv_len = {3}}, {}, fixed(kHoles, {})), Code::kOk, {1}, {kLn3}},
    {"A2_CountZero", with({.kv_len = {3}}, {}, fixed(kHoles, {0})), Code::kOk, {0}, {-kInf}},
    {"A2_CountNegative", with({.kv_len = {3}}, {}, fixed(kHoles, {-1})), Code::kInvalidArgument},
    {"A2_CountOverWidth", with({.kv_len = {3}}, {}, fixed(kHoles, {9})), Code::kInvalidArgument},
    {"A3_OffsetsFall", with({.q_len = {2}}, {{0, 1}, {2}}, [](TestProblem& t) { t.indptr32()[1] = 5; }),
     Code::kInvalidArgument},
    {"A4_HeadsDoNotDivide", with({.q_heads = 5, .kv_heads = 2}, {{}}, all), Code::kInvalidArgument},
    {"A4_ThreeHeadsAGroup", with({.q_heads = 6, .kv_heads = 2, .v_head_dim = 3, .v = head_number}, {{}}, all),
     Code::kOk, {0, 0, 0, 1, 1, 1}, {}},
    {"A4_ThreeGroups", with({.q_heads = 6, .kv_heads = 3, .v_head_dim = 3, .v = head_number}, {{}}, all),
     Code::kOk, {0, 0, 1, 1, 2, 2}, {}},
    {"A5_PrivateLists",
     with({.q_heads = 2}, {{0}, {1}}, [](TestProblem& t) { t.problem.candidates.index_heads = 2; }), Code::kOk,
     {0, 1}, {0, 0}},
    {"A5_ListsOfKvHeads", with({.q_heads = 4, .kv_heads = 2}, {{3}, {5}},
                               [](TestProblem& t) { t.problem.candidates.index_heads = 2; }),
     Code::kOk, {3, 3, 5, 5}, {0, 0, 0, 0}},
    {"A6_Packed", with(strided(Placement::kDense, 4), {}, all), Code::kOk, repeated({{18, 2}, {18, 1003}}), {}},
    {"A6_Strided", with(strided(Placement::kSpread, 4), {}, all), Code::kOk, repeated({{18, 2}, {18, 1003}}), {}},
    {"A6_Contiguous", with(strided(Placement::kSpread, 0), {}, all), Code::kOk, repeated({{18, 2}, {18, 1003}}), {}},

    {"B1_Duplicate", open({.kv_len = {2}}, {{0, 0, 1}}), Code::kOk, {0.5}, {kLn2}},
    {"B1_DuplicateRejected", with({.kv_len = {2}}, {{0, 0, 1}}, reject_duplicates), Code::kDuplicateIndex},
    {"B1_Scopes", with({}, {{0, 7}}, both(reject_duplicates, [](TestProblem& t) {
                         t.problem.mask.sink = 1;
                         t.problem.mask.window = 2;
                       })),
     Code::kOk, {13.0 / 3}, {kLn3}},
    {"B2_Holes", open({}, {{-1, 5, -1, 3}}), Code::kOk, {4}, {kLn2}},
    {"B2_Backwards", open({}, {{5, 3}}), Code::kOk, {4}, {kLn2}},
    {"B3_UnitOf16", with({.kv_len = {128}}, {{3}}, unit(16)), Code::kOk, {55.5}, {std::log(16.0)}},
    {"B3_LastUnitIsShort", with({.kv_len = {100}}, {{1}}, unit(64)), Code::kOk, {81.5}, {std::log(36.0)}},
    {"B3_BehindTheLastUnit", with({.kv_len = {100}}, {{2}}, unit(64)), Code::kIndexOutOfRange},

    {"C2_Padding", with({.kv_len = {4}, .page_size = 2, .table = {{1, 0}}}, {{-1, 2}}, poison_ends), Code::kOk, {2}, {0}},
    {"C2_PaddingHasNoPage", with({.kv_len = {4}, .page_size = 2, .table = {{-1, 0}}}, {{-1, 2}}, [](TestProblem&) {}),
     Code::kOk, {2}, {0}},
    {"C3_WideTable", kWideTable, Code::kOk, {2}, {kLn2}},
    {"C3_TouchedAndTooLarge", two_pages(4, 5), Code::kPageOutOfRange},
    {"C3_TouchedAndUnmapped", two_pages(-1, 5), Code::kPageUnmapped},
    {"C3_UntouchedAndTooLarge", two_pages(4, 3), Code::kOk, {3}, {0}},
    {"C3_UntouchedAndUnmapped", two_pages(-1, 3), Code::kOk, {3}, {0}},
    {"C4_ForeignPage", with({.kv_len = {4, 4}, .table = {{0}, {1}}}, {{0}, {0}},
                            [](TestProblem& t) {
                              t.stamps({7, 9});
                              t.table(0, 0) = 1;
                              for (int64_t at = 4; at < 8; ++at) t.put_v(at, 10000);
                            }),
     Code::kForeignPage},
    {"C4_OwnPages", with({.kv_len = {4, 4}, .table = {{0}, {1}}}, {{1}, {2}}, [](TestProblem& t) { t.stamps({7, 9}); }),
     Code::kOk, {1, 2}, {0, 0}},
    {"C5_TranslatedOnce", with({.table = {{1, 3}}}, {{5}},
                               [](TestProblem& t) {
                                 for (int64_t at = 0; at < t.slots(); ++at) {
                                   t.put_k(at, 0);
                                   t.put_v(at, static_cast<double>(at));
                                 }
                               }),
     Code::kOk, {13}, {0}},

    {"D5_PaddedRows", with({.kv_len = {5, 3, 8, 0}, .table = {{0, 1}, {2, -1}, {3, 4}, {-1, -1}}}, {},
                           fixed({{4, 0}, {2, -1}, {7, 7}, {6, INT32_MAX}}, {2, 2, 2, 0})),
     Code::kOk, {2, 2, 7, 0}, {kLn2, 0, 0, -kInf}},
    {"D6_NobodyHasTokens", with({.kv_len = std::vector<int32_t>(33, 0)}, Rows(33), causal), Code::kOk,
     std::vector<double>(33, 0), std::vector<double>(33, -kInf)},

    {"E1_Tail1", tail(1), Code::kOk, {1}, {-10}},
    {"E1_Tail63", tail(63), Code::kOk, {1}, {-10 + std::log(63.0)}},
    {"E1_Tail65", tail(65), Code::kOk, {1}, {-10 + std::log(65.0)}},
    {"E1_Tail127", tail(127), Code::kOk, {1}, {-10 + std::log(127.0)}},
    {"E1_Tail129", tail(129), Code::kOk, {1}, {-10 + std::log(129.0)}},
    {"E2_PastTheCount64", with({.kv_len = {4}, .q_len = {64}}, {},
                               both([](TestProblem& t) { t.q_pos(std::vector<int32_t>(64, 0)); },
                                    fixed(Rows(64, {2, 3, 3, 3, 3}), std::vector<int32_t>(64, 1)))),
     Code::kOk, std::vector<double>(64, 2), std::vector<double>(64, 0)},
    {"E2_PastTheCount65", with({.kv_len = {4}, .q_len = {65}}, {},
                               both([](TestProblem& t) { t.q_pos(std::vector<int32_t>(65, 0)); },
                                    fixed(Rows(65, {2, 3, 3, 3, 3}), std::vector<int32_t>(65, 1)))),
     Code::kOk, std::vector<double>(65, 2), std::vector<double>(65, 0)},
    {"E3_NaNInV", with(kNoisyFour, {{0, 1, 2}}, poison_last(kNaN, false))},
    {"E3_InfInV", with(kNoisyFour, {{0, 1, 2}}, poison_last(kInf, false))},
    {"E3_NaNInK", with(kNoisyFour, {{0, 1, 2}}, poison_last(kNaN, true))},
    {"E3_InfInK", with(kNoisyFour, {{0, 1, 2}}, poison_last(-kInf, true))},
    {"E4_EmptyAndNot", open({.kv_len = {2}, .q_len = {2}}, {{-1, -1}, {1}}), Code::kOk, {0, 1}, {-kInf, 0}},
    {"E4_AllEmpty", open({.kv_len = {2}, .q_len = {2}}, {{}, {-1}}), Code::kOk, {0, 0}, {-kInf, -kInf}},
    {"E4_NoTokens", with({.kv_len = {0}}, {{}}, [](TestProblem& t) { t.problem.mask = {false, 4, 4}; }), Code::kOk,
     {0}, {-kInf}},
    {"E5_LeadingTile", open({.kv_len = {65}, .q_len = {2}, .page_size = 16}, {run_of(0, 64), {64}}), Code::kOk,
     {31.5, 64}, {std::log(64.0), 0}},
    {"E5_PaddedTile", open({.kv_len = {65}, .page_size = 16}, {then(std::vector<int32_t>(64, -1), 5)}), Code::kOk, {5}, {0}},
    {"E6_WorkAmongEmpties", work_at(320, {0, 256}), Code::kOk, ones_at(320, {0, 256}), {}},
    {"E6_EmptyFirst", work_at(2, {1}), Code::kOk, {0, 1}, {-kInf, 0}},
    {"E6_TwoEmptyFirst", work_at(3, {2}), Code::kOk, {0, 0, 1}, {-kInf, -kInf, 0}},
    {"E7_MoreQueriesThanTokens", with({.kv_len = {1}, .q_len = {2}, .v = one}, {{}}, both(all, causal)), Code::kOk,
     {0, 1}, {-kInf, 0}},
    {"E7_Decode", with({.kv_len = {4}}, {{0, 3}}, causal), Code::kOk, {1.5}, {kLn2}},
    {"E7_FutureTokenTouchesNoPage", with({.kv_len = {4}, .q_len = {2}, .page_size = 2, .table = {{0, -1}}}, {{3}, {0}}, causal),
     Code::kOk, {0, 0}, {-kInf, 0}},
    {"E8_200", scored(200), Code::kOk, {1, 1}, {200, 0}},
    {"E8_Minus120", scored(-120), Code::kOk, {1, 1}, {-120, 0}},
    {"E8_30000", scored(30000), Code::kOk, {1, 1}, {30000, 0}},
    {"E9_D32", dims(32)}, {"E9_D64", dims(64)}, {"E9_D72", dims(72)}, {"E9_D96", dims(96)}, {"E9_D104", dims(104)},
    {"E9_D128", dims(128)}, {"E9_D192", dims(192)}, {"E9_D256", dims(256)}, {"E9_D5", dims(5)},

    {"F1_EmptyParts", open({.kv_len = {200}, .page_size = 16}, {{150}}), Code::kOk, {150}, {0}},
    {"F2_NaturalLogarithm", with({.kv_len = {5}, .v = [](int64_t, int64_t t, int64_t, int64_t) { return t == 4 ? 1.0 : 0; }},
                                 {{}}, all),
     Code::kOk, {0.2}, {std::log(5.0)}},

    {"I1_SparseIsNotDense", open({.kv_len = {2}}, {{0}}), Code::kOk, {0}, {0}},
    {"I3_EverythingListed", with({.kv_len = {70}, .q_len = {65}, .q_heads = 2, .q = q_noise(1), .k = kv_noise(2), .v = kv_noise(3)},
                                 Rows(65, then(run_of(0, 70), -1)), causal)},
    {"I3_OneOfEach", with({.kv_len = {5}, .q_len = {5}, .q_heads = 2, .q = q_noise(1), .k = kv_noise(2), .v = kv_noise(3)},
                          {{0}, {-1}, {1, 1, 0}, {-1, 3, -1}, {4, 0}}, both(causal, [](TestProblem& t) {
                            t.put_k(t.slot(0, 2), kNaN);
                            t.put_v(t.slot(0, 2), kNaN);
                          }))},
    {"J1_CausalUnlessTold", [](const SpecChange& change) {
       const Spec s{.kv_len = {2}, .q_len = {2}};
       TestProblem t(change ? change(s) : s);
       t.csr({{0, 1}, {0, 1}});
       return t;
     }, Code::kOk, {0, 0.5}, {0, kLn2}},
};

}  // namespace tamis::testing::faults
