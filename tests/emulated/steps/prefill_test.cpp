// The prefill kernel's own code on the host, against the reference: random problems over its grid of support,
// in orders of threads that a seed draws. What only a device can show is tests/cuda's.
#include <gtest/gtest.h>

#include "emulated/steps/step.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

TEST(EmulatedPrefill, FullAttention) {
  for (const int64_t dim : {64, 128, 256}) {
    TestProblem t(small_spec(dim));
    t.all();
    const Wanted want = wanted(t.problem);
    const cuda::StepPlan plan = prefill_plan(t.problem);
    for (const DType dtype : {DType::kF32, DType::kBF16})
      EXPECT_EQ(complaint(Step(t.problem, plan, 1).run(dtype, Placement::kDense, 2), want.answer,
                          want.tolerance, dtype),
                "")
          << dim;
  }
}

// In parts, each with problems of its own, so that none takes long.
class EmulatedPrefillRandom : public ::testing::TestWithParam<int> {};

TEST_P(EmulatedPrefillRandom, TheReferenceAgrees) {
  const int64_t count = number_from("TAMIS_EMULATED_PROBLEMS", 6);
  int64_t ran = 0;
  for (int64_t number = first_problem() + 10000 * GetParam(); ran < count; ++number) {
    Dice d(number);
    const Spec s = draw_prefill_sizes(d);
    TestProblem t = draw_problem(d, s, true);
    const Result<reference::Sets> sets = reference::build_sets(t.problem);
    ASSERT_TRUE(sets.ok()) << sets.status().message();
    const double poison = d.of({kNaN, kInf, -kInf, 6e4, 6e4, 6e4});
    t.poison_outside(*sets, poison);
    Buffers keep;
    const Problem p =
        arranged(t.problem, d.of({Strides::kDense, Strides::kGaps, Strides::kOneTensor}), &keep);
    cuda::StepOptions o = draw_options(d);
    o.load = d.of({cuda::Load::kAuto, cuda::Load::kAuto, cuda::Load::kBlocks, cuda::Load::kTokens});
    o.engine = cuda::Engine::kPrefill;
    const DType dtype = d.of({DType::kF32, DType::kF16, DType::kBF16, s.dtype});
    const Placement how = d.of({Placement::kDense, Placement::kGaps});
    SCOPED_TRACE(::testing::Message()
                 << "TAMIS_CUDA_FIRST=" << number << ": block " << o.block << ", " << path_name(o.plan.path)
                 << ", splits " << o.plan.splits << ", D " << s.head_dim << ", Dv " << s.v_head_dim
                 << ", page " << s.page_size << ", load " << cuda::load_name(o.load) << ", window "
                 << p.mask.window << (p.query.q_pos.present() ? ", positions" : ""));
    const Result<cuda::StepPlan> plan = cuda::plan_step(p, o);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const Wanted want = wanted(p);
    Step step(p, *plan, static_cast<uint64_t>(number));
    ASSERT_EQ(
        complaint(step.run(dtype, how, static_cast<int>(d.from(1, 3))), want.answer, want.tolerance, dtype),
        "");
    ASSERT_EQ(static_cast<int64_t>(step.counters.empty_rows),
              2 * want.answer.sets.empty_rows * (describe(p)->q_heads / describe(p)->index_heads));
    // What nobody selects among a request's tokens is met where it lies in a tile: rows are then summed
    // again.
    if (std::isfinite(poison)) {
      EXPECT_EQ(step.counters.rows_redone, 0u);
    }
    ++ran;
  }
}

INSTANTIATE_TEST_SUITE_P(, EmulatedPrefillRandom, ::testing::Range(0, 4));

// Window and sink reach into blocks that no list has, and end inside them; also where they fill whole tiles.
TEST(EmulatedPrefill, WindowAndSinkEndInsideABlock) {
  for (const auto& [sink, window] :
       {std::pair{20, 0}, {5, 0}, {0, 21}, {33, 40}, {16, 16}, {250, 0}, {0, 300}}) {
    Spec s = small_spec(64);
    s.kv_len = {sink + window > 200 ? 400 : 200};
    s.q_len = {33};
    TestProblem t(s);
    t.problem.candidates.unit = 16;
    t.problem.candidates.query_block = 16;
    t.problem.candidates.index_heads = 2;
    t.csr({{4, 5}, {4}, {}, {6}, {3, 9}, {2}});
    t.problem.mask = {.causal = true, .window = window, .sink = sink};
    const Wanted want = wanted(t.problem);
    const cuda::StepPlan plan = prefill_plan(t.problem, {.block = 16});
    EXPECT_EQ(complaint(Step(t.problem, plan, 7).run(DType::kF32, Placement::kDense, 2), want.answer,
                        want.tolerance),
              "")
        << "sink " << sink << ", window " << window;
  }
}

// Neither who comes first nor how many CTAs there are is in the bits; nor are pages, nor how K and V come in.
TEST(EmulatedPrefill, BitsDependOnTheProblemAlone) {
  for (const int64_t splits : {1, 3}) {
    Ran first;
    for (const auto& [page, load] :
         std::initializer_list<std::pair<int64_t, cuda::Load>>{{0, cuda::Load::kBlocks},
                                                               {0, cuda::Load::kTokens},
                                                               {1, cuda::Load::kTokens},
                                                               {2, cuda::Load::kTokens},
                                                               {8, cuda::Load::kTokens},
                                                               {16, cuda::Load::kBlocks},
                                                               {16, cuda::Load::kTokens},
                                                               {24, cuda::Load::kTokens},
                                                               {48, cuda::Load::kBlocks},
                                                               {61, cuda::Load::kTokens},
                                                               {64, cuda::Load::kBlocks},
                                                               {128, cuda::Load::kBlocks},
                                                               {256, cuda::Load::kBlocks}})
      for (int64_t seed = 0; seed < (page == 0 ? seeds() : 1); ++seed) {
        Spec s = small_spec(64);
        s.page_size = page;
        TestProblem t(s);
        Rows rows;
        for (int32_t r = 0; r < 8; ++r) {
          rows.emplace_back();
          for (int32_t e = r % 3; e < (r < 6 ? 18 : 8); e += 1 + r % 2) rows.back().push_back(e);
        }
        t.problem.candidates.unit = 16;
        t.problem.candidates.query_block = 16;
        t.problem.candidates.index_heads = 2;
        t.csr(rows);
        cuda::StepOptions o{.block = 16};  // load: by the page, but for tokens where boxes would serve
        if (load == cuda::Load::kTokens && page % 16 == 0) o.load = load;
        o.plan.splits = splits;
        const cuda::StepPlan plan = prefill_plan(t.problem, o);
        ASSERT_EQ(plan.load, load) << "page " << page;
        Ran r = Step(t.problem, plan, static_cast<uint64_t>(seed))
                    .run(DType::kF32, Placement::kDense, 1 + static_cast<int>(seed % 3));
        ASSERT_EQ(r.damage, "") << "page " << page << ", seed " << seed;
        if (first.out.empty())
          first = r;
        else
          ASSERT_EQ(unlike(first, r), "") << "page " << page << ", seed " << seed;
      }
  }
}

// Maxima that grow from tile to tile, that fall, and logits of +-1e4: the weights of a tile are made without
// a look at its maximum as long as that serves.
TEST(EmulatedPrefill, GrowingMaxima) {
  for (const DType dtype : {DType::kBF16, DType::kF16})
    for (const double slope : {0.01, -1.0, 60.0}) {
      Spec s = small_spec(64);
      s.kv_len = {500};
      s.q_len = {12};
      s.dtype = dtype;
      s.q = [](int64_t i, int64_t h, int64_t d) { return d == 0 ? 2.0 : noise(1, i, h, d); };
      s.k = [slope](int64_t b, int64_t t, int64_t h, int64_t d) {
        return d == 0 ? slope * static_cast<double>(slope > 0 ? t * 263 % 500 : t) : noise(2, b, t, h, d);
      };
      TestProblem t(s);
      t.all();
      const Wanted want = wanted(t.problem);
      const cuda::StepPlan plan = prefill_plan(t.problem);
      EXPECT_EQ(complaint(Step(t.problem, plan, 3).run(DType::kF32, Placement::kDense, 2), want.answer,
                          want.tolerance),
                "")
          << dtype_name(dtype) << ", slope " << slope;
    }
}

// One key rules each row, and its weight is rounded: a mean of the largest f16 values stays one of them, in
// results that are staged, that are not, and that are summed again.
TEST(EmulatedPrefill, LargestValues) {
  TestProblem t(largest_values());
  t.all();
  const Wanted want = wanted(t.problem);
  for (const int64_t splits : {1, 2}) {
    cuda::StepOptions o{.block = 16};
    o.plan.splits = splits;
    const cuda::StepPlan plan = prefill_plan(t.problem, o);
    for (const Placement how : {Placement::kDense, Placement::kGaps})
      EXPECT_EQ(complaint(Step(t.problem, plan, 2).run(DType::kF16, how, 2), want.answer, want.tolerance,
                          DType::kF16),
                "")
          << "splits " << splits;
  }
}

// A V that is not finite reaches the rows that select it and no other: such rows are left to the second
// kernel.
TEST(EmulatedPrefill, ValuesThatAreNotFinite) {
  for (const double value : {kNaN, kInf})
    for (const int64_t splits : {1, 2}) {
      const cuda::Load load = value == kInf ? cuda::Load::kTokens : cuda::Load::kBlocks;
      Spec s = small_spec(128);
      s.v = [value](int64_t b, int64_t t, int64_t h, int64_t d) {
        return b == 0 && t == 290 && h == 1 && d == 3 ? value : noise(6, b, t, h, d);
      };
      TestProblem t(s);
      t.all();  // causal: of 40 queries at positions 260 to 299 ten see token 290
      const Wanted want = wanted(t.problem);
      cuda::StepOptions o{.load = load};
      o.plan.splits = splits;
      const cuda::StepPlan plan = prefill_plan(t.problem, o);
      Step step(t.problem, plan, 5);
      EXPECT_EQ(complaint(step.run(DType::kF32, Placement::kDense, 2), want.answer, want.tolerance), "")
          << value << ", splits " << splits;
      EXPECT_GT(step.counters.rows_redone, 0u);
    }
}

// What lies behind a request's last token is never met, though it is in the same page or in the next
// request's.
TEST(EmulatedPrefill, NobodyMeetsWhatLiesBehindTheEnd) {
  for (const int64_t page : {0, 16, 64}) {
    Spec s = small_spec(64);
    s.page_size = page;
    TestProblem t(s);
    t.all();
    std::vector<bool> mine(static_cast<size_t>(t.slots()));
    for (int64_t i = 0; i < s.kv_len[0]; ++i) mine[static_cast<size_t>(t.slot(0, i))] = true;
    if (page > 0)  // else the other request is what lies there
      for (int64_t i = 0; i < s.kv_len[1]; ++i) mine[static_cast<size_t>(t.slot(1, i))] = true;
    for (int64_t at = 0; at < t.slots(); ++at)
      if (!mine[static_cast<size_t>(at)]) t.put_v(at, kNaN);
    const Wanted want = wanted(t.problem);
    const cuda::StepPlan plan = prefill_plan(t.problem);
    ASSERT_EQ(plan.load, cuda::Load::kBlocks);
    Step step(t.problem, plan, 4);
    EXPECT_EQ(complaint(step.run(DType::kF32, Placement::kDense, 2), want.answer, want.tolerance), "")
        << page;
    // Two runs; of the second request's rows all are NaN.
    EXPECT_EQ(step.counters.rows_redone, page > 0 ? 0u : 2 * 3u * 4) << page;
  }
}

// A row that is left counts once, although the second kernel has its own way of summing rows again.
TEST(EmulatedPrefill, EveryRowAgain) {
  for (const int32_t splits : {1, 3}) {
    Spec s = small_spec(64);
    s.v = [](int64_t, int64_t t, int64_t h, int64_t d) { return d == 5 ? kNaN : noise(6, t, h, d); };
    TestProblem t(s);
    t.problem.candidates.query_block = 64;
    t.all();
    const Wanted want = wanted(t.problem);
    cuda::StepOptions o{.block = 16};
    o.plan.splits = splits;
    const cuda::StepPlan plan = prefill_plan(t.problem, o);
    Step step(t.problem, plan, 5);
    EXPECT_EQ(complaint(step.run(DType::kF32, Placement::kDense, 2), want.answer, want.tolerance), "")
        << "splits " << splits;
    EXPECT_EQ(step.counters.rows_redone, 2 * 43u * 4) << "splits " << splits;  // two runs
  }
}

// 128 rows of one list, which come and go as boxes. Of 16 rows beside each other some select nothing, some a
// V that is not finite, and some meet it without selecting it; all count once.
TEST(EmulatedPrefill, RowsThatAreBoxes) {
  for (const int64_t group : {1, 2, 8})
    for (const double value : {0.5, kNaN}) {
      Spec s = small_spec(128);
      s.kv_len = {256, 130};
      s.q_len = {256, 3};
      s.q_heads = 2 * group;
      s.v = [value](int64_t b, int64_t t, int64_t h, int64_t d) {
        return b == 0 && t == 36 && h == 1 && d == 100 ? value : noise(6, b, t, h, d);
      };
      TestProblem t(s);
      t.problem.candidates.query_block = 128;
      Rows rows(6);  // of two KV heads: blocks of 128 queries, and one of 3
      for (std::vector<int32_t>& row : rows) row = {34, 36, 40, 90, 91};
      t.problem.candidates.index_heads = 2;
      t.csr(rows);
      const Wanted want = wanted(t.problem);
      const cuda::StepPlan plan = prefill_plan(t.problem, {.block = 16});
      Step step(t.problem, plan, 11);
      EXPECT_EQ(
          complaint(step.run(DType::kBF16, Placement::kDense, 2), want.answer, want.tolerance, DType::kBF16),
          "")
          << group << ", " << value;
      // Two runs. Queries before token 34 see nothing.
      EXPECT_EQ(step.counters.empty_rows, 2u * static_cast<uint64_t>(34 * 2 * group))
          << group << ", " << value;
      EXPECT_EQ(step.counters.rows_redone > 0, value != value) << group;
    }
}

// What a row has selected counts wherever it lies: it is in none of the first two tiles nor in the last, and
// those between are seen whole by all rows.
TEST(EmulatedPrefill, RowsThatSeeTheMiddleAlone) {
  for (const int64_t dim : {64, 128, 256}) {
    TestProblem t(small_spec(dim, {768}, {16}));
    t.problem.candidates.query_block = 16;
    t.problem.candidates.index_heads = 4;
    t.problem.mask.causal = false;
    Rows rows(4);
    for (std::vector<int32_t>& row : rows) {
      const bool middle = &row == rows.data();
      for (int32_t e = middle ? 256 : 0; e < (middle ? 640 : 768); ++e) row.push_back(e);
    }
    t.csr(rows);
    const Wanted want = wanted(t.problem);
    const cuda::StepPlan plan = prefill_plan(t.problem);
    Step step(t.problem, plan, 3);
    EXPECT_EQ(
        complaint(step.run(DType::kBF16, Placement::kDense, 2), want.answer, want.tolerance, DType::kBF16),
        "")
        << dim;
    EXPECT_EQ(step.counters.empty_rows, 0u) << dim;
    EXPECT_EQ(step.counters.rows_redone, 0u) << dim;
  }
}

// Neither kernel touches a counter of work.
TEST(EmulatedPrefill, ARefusedBatchLeavesTheWorkAlone) {
  TestProblem t(small_spec(64));
  t.all();
  const cuda::StepPlan plan = prefill_plan(t.problem);
  Step step(t.problem, plan, 5);
  step.scheduled = false;
  const Ran r = step.run(DType::kF32, Placement::kDense, 3);
  EXPECT_EQ(r.damage, "");
  EXPECT_TRUE(std::all_of(r.out.begin(), r.out.end(), [](double x) { return std::isnan(x); }));
}

// Keys that are not finite, where no row selects them, where some do, and where all of a row's are -inf.
TEST(EmulatedPrefill, KeysThatAreNotFinite) {
  for (const double value : {kNaN, kInf, -kInf}) {
    Spec s = small_spec(64);
    s.q = [](int64_t, int64_t, int64_t d) { return d == 0 ? 1.0 : 0.25; };
    s.k = [value](int64_t b, int64_t t, int64_t h, int64_t d) {
      return b == 0 && t == 280 && d == 0 ? value : noise(5, b, t, h, d);
    };
    TestProblem t(s);
    t.all();
    const Wanted want = wanted(t.problem);
    const cuda::StepPlan plan = prefill_plan(t.problem);
    EXPECT_EQ(complaint(Step(t.problem, plan, 6).run(DType::kF32, Placement::kDense, 2), want.answer,
                        want.tolerance),
              "")
        << value;
  }
}

// Boxes where they serve; else a reason, or a refusal that names the property.
TEST(EmulatedPrefill, HowKeysComeIn) {
  const auto plan_of = [](const TestProblem& t, cuda::Load load, Fallback fallback) {
    cuda::StepOptions o{.block = 16, .load = load, .engine = cuda::Engine::kPrefill};
    o.plan.fallback = fallback;
    return cuda::plan_step(t.problem, o);
  };
  const struct {
    int64_t page, dim, v_dim;
    Placement placement;
    const char* why;  // empty: boxes
  } cases[] = {{16, 64, 64, Placement::kDense, ""},
               {0, 64, 128, Placement::kDense, ""},
               {24, 64, 64, Placement::kDense, "blocks of 16 do not divide pages of 24"},
               {16, 72, 64, Placement::kDense, "head_dim 72"},
               {16, 64, 8, Placement::kDense, "v_head_dim 8"},
               {16, 64, 64, Placement::kGaps, "k has pages"}};
  for (const auto& c : cases) {
    Spec s = small_spec(64);
    s.page_size = c.page;
    s.head_dim = c.dim;
    s.v_head_dim = c.v_dim;
    s.layout = Layout::kHND;
    TestProblem t(s);
    t.all();
    Buffers keep;
    if (c.placement == Placement::kGaps) t.problem = arranged(t.problem, Strides::kGaps, &keep);
    const bool boxes = *c.why == 0;
    for (const cuda::Load load : {cuda::Load::kAuto, cuda::Load::kBlocks}) {
      const Result<cuda::StepPlan> plan = plan_of(t, load, Fallback::kAllow);
      ASSERT_TRUE(plan.ok()) << c.why << ": " << plan.status().message();
      EXPECT_EQ(plan->load, boxes ? cuda::Load::kBlocks : cuda::Load::kTokens) << c.why;
      EXPECT_EQ(plan->plan.reason.find("load") != std::string::npos, !boxes) << plan->plan.reason;
      EXPECT_NE(plan->plan.reason.find(c.why), std::string::npos) << plan->plan.reason;
    }
    EXPECT_EQ(plan_of(t, cuda::Load::kTokens, Fallback::kRefuse)->load, cuda::Load::kTokens);
    const Result<cuda::StepPlan> refused = plan_of(t, cuda::Load::kBlocks, Fallback::kRefuse);
    EXPECT_EQ(refused.status().code(), boxes ? Code::kOk : Code::kUnsupported);
    EXPECT_NE(refused.status().message().find(c.why), std::string::npos);
  }
}

// A page table entry that has become no page between normalize and run: as if nobody had selected its tokens,
// whether they are listed, a sink or in a window, and whatever else lies in their block.
TEST(EmulatedPrefill, PagesThatAreGone) {
  for (const int64_t page : {1, 8, 16, 24})
    for (const bool all : {false, true}) {
      Spec s = small_spec(64);
      s.kv_len = {300, 40};
      s.q_len = {7, 2};
      s.page_size = page;
      TestProblem t(s);
      CandidateView& c = t.problem.candidates;
      c.query_block = 4;
      c.index_heads = all ? 1 : 4;
      t.problem.mask = {.causal = true, .window = all ? 0 : 11, .sink = all ? 0 : 3};
      const auto is_listed = [&](int64_t b, int64_t block, int64_t head, int64_t token) {
        return all || noise(9, b, block, head, token) > 0.3;
      };
      const auto is_gone = [&](int64_t b, int64_t token) {
        return b == 0 && noise(10, token / page, 0, 0) < (page == 1 ? -0.6 : -0.2);
      };
      const auto rows_of = [&](int64_t query_block, int64_t heads, const auto& has) {
        Rows rows;
        for (int64_t b = 0; b < 2; ++b)
          for (int64_t q = 0; q < s.q_len[b]; q += query_block)
            for (int64_t h = 0; h < heads; ++h) {
              rows.emplace_back();
              for (int32_t i = 0; i < s.kv_len[b]; ++i)
                if (has(b, q, h, i)) rows.back().push_back(i);
            }
        return rows;
      };
      all ? t.all() : t.csr(rows_of(4, 4, [&](int64_t b, int64_t q, int64_t h, int64_t i) {
        return is_listed(b, q / 4, h, i);
      }));
      // The same sets, written out for each query.
      TestProblem rest(s);
      rest.problem.candidates.index_heads = 4;
      rest.problem.mask = {.causal = true, .window = 0, .sink = 0};
      rest.csr(rows_of(1, 4, [&](int64_t b, int64_t q, int64_t h, int64_t i) {
        const int64_t pos = s.kv_len[b] - s.q_len[b] + q;
        const bool near = i <= pos && (i < t.problem.mask.sink || i > pos - t.problem.mask.window);
        return !is_gone(b, i) && (near || is_listed(b, q / 4, h, i));
      }));
      const Wanted want = wanted(rest.problem);
      const cuda::StepPlan plan = prefill_plan(t.problem, {.block = 16, .load = cuda::Load::kTokens});
      Step step(t.problem, plan, 7);
      step.after_normalize = [&] {
        const int32_t pages = static_cast<int32_t>(t.slots() / page);
        for (int64_t p = 0, nth = 0; p * page < s.kv_len[0]; ++p)
          if (is_gone(0, p * page)) {
            const int32_t nonsense[] = {-1, INT32_MIN, pages, INT32_MAX};
            t.table(0, p) = nonsense[nth++ % 4];
          }
      };
      EXPECT_EQ(complaint(step.run(DType::kF32, Placement::kDense, 2), want.answer, want.tolerance), "")
          << "page " << page << (all ? ", all" : "");
      EXPECT_EQ(step.counters.rows_redone, 0u);
    }
}

}  // namespace
}  // namespace tamis
