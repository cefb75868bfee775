// Fingerprints and stamps: other where they must be, the same otherwise (faults.md D1).
#include <gtest/gtest.h>

#include "plan/hand_bundles.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of hand_bundles.h

Grid base() {
  Grid g;
  g.q_len = {3, 1};
  g.q_heads = 8;
  g.kv_heads = 4;
  g.index_heads = 4;
  return g;
}

uint64_t fingerprint_of(const Problem& problem, int32_t block = 64, Backend backend = Backend::kCpu) {
  const Result<Shape> shape = describe(problem);
  EXPECT_TRUE(shape.ok()) << shape.status().message();
  return shape.ok() ? fingerprint(problem, *shape, block, backend) : 0;
}

TEST(Fingerprint, ChangesWithWhateverShapesAPlan) {
  std::vector<uint64_t> seen{fingerprint_of(problem_of(base()))};
  const auto other = [&](const char* what, const auto& change) {
    Grid g = base();
    change(g);
    seen.push_back(fingerprint_of(problem_of(g)));
    for (size_t i = 0; i + 1 < seen.size(); ++i) EXPECT_NE(seen[i], seen.back()) << what;
  };
  other("dtype", [](Grid& g) { g.dtype = DType::kF16; });
  other("dtype", [](Grid& g) { g.dtype = DType::kF32; });
  other("query heads", [](Grid& g) { g.q_heads = 16; });
  other("KV heads", [](Grid& g) { g.kv_heads = 8, g.index_heads = 8; });
  other("index heads", [](Grid& g) { g.index_heads = 1; });
  other("index heads", [](Grid& g) { g.index_heads = 8; });
  other("head size", [](Grid& g) { g.head_dim = 64; });
  other("value head size", [](Grid& g) { g.v_head_dim = 64; });
  other("page size", [](Grid& g) { g.page_size = 64; });
  other("contiguous", [](Grid& g) { g.page_size = 0; });
  const auto other_problem = [&](const char* what, const auto& change) {
    Problem p = problem_of(base());
    change(p);
    seen.push_back(fingerprint_of(p));
    for (size_t i = 0; i + 1 < seen.size(); ++i) EXPECT_NE(seen[i], seen.back()) << what;
  };
  const TensorView scale = dense_view(nullptr, DType::kF32, {});
  other_problem("layout", [](Problem& p) {
    p.cache.layout = Layout::kHND;
    p.cache.k = dense_view(nullptr, DType::kBF16, {8, 4, 16, 128});
    p.cache.v = p.cache.k;
  });
  other_problem("dtype of q alone", [](Problem& p) { p.query.q.dtype = DType::kF32; });
  other_problem("dtype of v alone", [](Problem& p) { p.cache.v.dtype = DType::kF16; });
  const auto quantize = [&](TensorView& t, Quantization& quant, Format format, DType dtype) {
    t.dtype = dtype;
    quant = {.format = format, .kind = ScaleKind::kTensor, .scale = scale};
  };
  other_problem("format of k",
                [&](Problem& p) { quantize(p.cache.k, p.cache.k_quant, Format::kInt8, DType::kI8); });
  other_problem("format of v",
                [&](Problem& p) { quantize(p.cache.v, p.cache.v_quant, Format::kInt8, DType::kI8); });
  other_problem("format of k",
                [&](Problem& p) { quantize(p.cache.k, p.cache.k_quant, Format::kFp8E5M2, DType::kF8E5M2); });
  other_problem("kind of the scale", [&](Problem& p) {
    quantize(p.cache.k, p.cache.k_quant, Format::kInt8, DType::kI8);
    p.cache.k_quant.kind = ScaleKind::kHead;
    p.cache.k_quant.scale = dense_view(nullptr, DType::kF32, {4});
  });
  EXPECT_NE(fingerprint_of(problem_of(base()), 32), seen[0]);
  EXPECT_NE(fingerprint_of(problem_of(base()), 64, Backend::kCuda), seen[0]);
}

TEST(Fingerprint, IgnoresPointersLengthsAndOptions) {
  const uint64_t expected = fingerprint_of(problem_of(base()));
  int somewhere = 0;
  Problem p = problem_of(base());
  p.query.q.data = p.cache.k.data = p.cache.v.data = p.cache.page_table.data = &somewhere;
  p.mask = {.causal = false, .window = 9, .sink = 4};
  p.score = {.scale = 3.0, .softcap = 20, .alibi_slopes = {}};
  p.dropout = {.p = 0.5, .seed = 7};
  p.candidates.form = CandidateForm::kAll;
  EXPECT_EQ(fingerprint_of(p), expected);
  p.cache.k.stride[0] *= 3;
  EXPECT_EQ(fingerprint_of(p), expected);
  Grid longer = base();
  longer.q_len = {1, 2, 90};
  longer.max_pages = 5;
  EXPECT_EQ(fingerprint_of(problem_of(longer)), expected);
}

TEST(Fingerprint, IsThePlansAndTheSchedules) {
  const HandBundles bundles(base(), [](int64_t) { return 3; });
  const Plan plan = plan_for(base(), bundles);
  EXPECT_EQ(plan.fingerprint, fingerprint_of(problem_of(base())));
  EXPECT_EQ(must_schedule(plan, bundles.view()).fingerprint, plan.fingerprint);
  EXPECT_NE(plan.fingerprint, Schedule{}.fingerprint);
}

TEST(Stamp, ChangesWithWhateverShapesASchedule) {
  const auto stamp = [](const HandBundles& b) { return schedule_stamp(b.view()); };
  const HandBundles first(base(), [](int64_t b) { return static_cast<int32_t>(b + 1); });
  const uint64_t expected = stamp(first);
  const auto bent = [&](const auto& change) {
    HandBundles b = first;
    change(b);
    return stamp(b);
  };
  EXPECT_NE(bent([](HandBundles& b) { ++b.bundle[5].count; }), expected);
  EXPECT_NE(bent([](HandBundles& b) { std::swap(b.bundle[0].count, b.bundle[1].count); }), expected);
  EXPECT_NE(bent([](HandBundles& b) { b.bundle[3].kv_head = 0; }), expected);
  EXPECT_NE(bent([](HandBundles& b) { b.bundle[0].kv_heads = 2; }), expected);
  EXPECT_NE(bent([](HandBundles& b) { b.bundle.pop_back(); }), expected);
  EXPECT_NE(bent([](HandBundles& b) { ++b.row[2].last_query; }), expected);
  EXPECT_NE(bent([](HandBundles& b) { b.row[2].index_head ^= 1; }), expected);
  EXPECT_NE(bent([](HandBundles& b) { b.bundle[2].lists = 0; }), expected);
  // These change addresses and names, not the schedule.
  EXPECT_EQ(bent([](HandBundles&) {}), expected);
  EXPECT_EQ(bent([](HandBundles& b) { b.bundle[1].begin += 100; }), expected);
  EXPECT_EQ(bent([](HandBundles& b) { b.bundle[1].request = 1; }), expected);
  EXPECT_EQ(bent([](HandBundles& b) { ++b.row[2].first_query, ++b.row[2].last_query; }), expected);
  EXPECT_NE(expected, Schedule{}.stamp);
}

// Planned at 128 tokens, run at 192.
TEST(Stamp, OtherLengthsAreStale) {
  const Grid g = decode(1);
  const HandBundles planned(g, [](int64_t) { return 2; }), live(g, [](int64_t) { return 3; });
  EXPECT_NE(must_schedule(plan_for(g, planned), planned.view()).stamp, schedule_stamp(live.view()));
}

// Equal stamps promise equal schedules, under any plan that takes both.
TEST(Stamp, EqualStampsMeanEqualSchedules) {
  EXPECT_TRUE(rc::check("stamps", [] {
    const Step step = draw_step();
    const HandBundles one = step.bundles();
    HandBundles two = one;
    if (two.bundle.empty()) return;
    Bundle& bent = two.bundle[pick(0, static_cast<int>(two.bundle.size()) - 1)];
    if (pick(0, 1) == 1 && bent.count > 0) --bent.count;
    if (pick(0, 1) == 1) bent.begin += 7;
    const Plan plan = plan_for(step.grid, one, step.options);
    const Schedule a = must_schedule(plan, one.view()), b = must_schedule(plan, two.view());
    const bool equal = same(a.tasks, b.tasks) && same(a.merges, b.merges) && a.part_rows == b.part_rows;
    RC_ASSERT((a.stamp == b.stamp) == equal);
  }));
}

}  // namespace
}  // namespace tamis
