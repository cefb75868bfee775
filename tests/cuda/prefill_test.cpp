// The prefill kernel over its grid of support: random problems against the CPU backend and, for some, the
// float64 reference, small ones and ones of many tiles; each shape by itself; and what it does not take.
#include <gtest/gtest.h>

#include "cuda/draw.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

class CudaPrefill : public OnPrefillDevice {};

std::string words(const Spec& s, const cuda::StepOptions& o) {
  std::ostringstream text;
  text << "D " << s.head_dim << ", Dv " << s.v_head_dim << ", heads " << s.q_heads << '/' << s.kv_heads
       << ", page " << s.page_size << ", block " << o.block << ", " << path_name(o.plan.path) << ", splits "
       << o.plan.splits << (o.plan.batch_invariant ? ", invariant" : "") << ", shares " << o.plan.shares
       << ", min_tiles " << o.plan.min_tiles;
  return text.str();
}

// Blocks that divide the pages; else the plan would have to load tokens.
cuda::StepOptions draw_prefill_options(Dice& d, const Spec& s) {
  cuda::StepOptions o = prefill(draw_options(d));
  if (s.page_size > 0 && (o.block == 0 || s.page_size % o.block != 0)) o.block = 16;
  return o;
}

TEST_F(CudaPrefill, TheCpuAgrees) {
  Context context(0);
  int64_t ran = 0, refused = 0;
  for (int64_t number = first_problem(); number < first_problem() + problems(); ++number) {
    SCOPED_TRACE(::testing::Message() << "TAMIS_CUDA_FIRST=" << number);
    Dice d(number + 7'000'000);  // others than CudaRandom's
    const Spec s = draw_prefill_sizes(d);
    TestProblem t = draw_problem(d, s, true);
    const Result<reference::Sets> sets = reference::build_sets(t.problem);
    ASSERT_TRUE(sets.ok()) << sets.status().message();
    const double poison = d.of({kNaN, kInf, -kInf, 6e4, 6e4, 6e4});
    t.poison_outside(*sets, poison);
    Buffers keep;
    // With gaps everywhere, pages do not lie a whole number of heads apart.
    const Strides strides = s.page_size > 0 ? d.of({Strides::kDense, Strides::kOneTensor})
                                            : d.of({Strides::kDense, Strides::kGaps, Strides::kOneTensor});
    const Problem p = arranged(t.problem, strides, &keep);
    const Result<Shape> shape = describe(p);
    std::unique_ptr<DeviceProblem> device;
    Wanted want;
    for (int i = 0; i < 2; ++i) {
      const cuda::StepOptions o = draw_prefill_options(d, s);
      const DType dtype = d.of({DType::kF32, DType::kF16, DType::kBF16, s.dtype});
      const Placement how = d.of({Placement::kDense, Placement::kDense, Placement::kGaps});
      SCOPED_TRACE(words(s, o));
      Result<cuda::StepPlan> plan = cuda::plan_step(p, o);
      if (plan.status().code() == Code::kUnsupported) {
        ASSERT_TRUE(strides == Strides::kOneTensor && says(plan.status(), "pages a whole number of heads"));
        ++refused;
        continue;
      }
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      ASSERT_EQ(plan->columns, 128);
      if (device == nullptr) {
        want = number % 8 == 0 ? wanted(p) : wanted_by_cpu(p, context);
        device = std::make_unique<DeviceProblem>(p);
      }
      DeviceStep step(std::move(*plan));
      const DeviceRan r = run_step(step, *device, dtype, how);
      ASSERT_EQ(complaint(r, want.answer, want.tolerance, dtype), "");
      ASSERT_EQ(static_cast<int64_t>(r.device.empty_rows),
                want.answer.sets.empty_rows * (shape->q_heads / shape->index_heads));
      // What nobody selects among a request's tokens is met where it lies in a tile.
      if (std::isfinite(poison)) {
        ASSERT_EQ(r.device.rows_redone, 0u);
      }
      ++ran;
    }
  }
  EXPECT_GE(ran, refused);
}

// Requests of up to 3000 tokens and 600 queries, so that rings go round and CTAs draw again and again.
Spec draw_long_sizes(Dice& d) {
  Spec s{.kv_len = {}, .q_len = {}, .q = q_noise(1), .k = kv_noise(2), .v = kv_noise(3)};
  s.kv_heads = d.of<int64_t>({1, 1, 2});
  s.q_heads = s.kv_heads * d.of<int64_t>({1, 2, 3, 4, 5, 7, 8, 12, 16, 24, 32});
  const int64_t most = std::min<int64_t>(600, 4800 / s.q_heads);
  for (int64_t b = d.from(1, 3); b > 0; --b) {
    s.kv_len.push_back(d.of({d.i32(1, 3000), d.i32(1000, 3000), d.i32(1, 200)}));
    s.q_len.push_back(d.one_in(6) ? 0 : d.i32(1, most / 2));
  }
  s.q_len.front() = d.i32(most / 2, most);
  s.head_dim = d.of<int64_t>({64, 128, 128, 192, 256});
  s.v_head_dim = d.one_in(2) ? s.head_dim : d.of<int64_t>({64, 128, 192, 256});
  s.dtype = d.one_in(4) ? DType::kF16 : DType::kBF16;
  s.page_size = d.of<int64_t>({0, 16, 64, 128, 256});
  s.layout = d.of({Layout::kNHD, Layout::kHND});
  return s;
}

TestProblem draw_long_problem(Dice& d, const Spec& s) {
  TestProblem t(s);
  CandidateView c;
  c.query_block = d.of<int64_t>({16, 32, 64, 128});
  c.unit = d.of<int64_t>({1, 16, 64, 128});
  c.index_heads = d.of<int64_t>({1, s.kv_heads, s.q_heads});
  t.problem.candidates = c;
  t.problem.mask = {.causal = !d.one_in(4),
                    .window = d.one_in(3) ? d.from(1, 600) : 0,
                    .sink = d.one_in(3) ? d.from(1, 70) : 0};
  if (d.one_in(5)) t.problem.score.softcap = 20;
  if (d.one_in(4)) {
    t.all();
    return t;
  }
  Rows rows;
  for (size_t b = 0; b < s.q_len.size(); ++b)
    for (int64_t r = (s.q_len[b] + c.query_block - 1) / c.query_block * c.index_heads; r > 0; --r) {
      rows.emplace_back();
      const int32_t entries = static_cast<int32_t>((s.kv_len[b] + c.unit - 1) / c.unit);
      for (int32_t e = d.i32(0, 3); e < entries;) {  // runs and gaps
        for (int64_t run = d.from(1, c.unit == 1 ? 90 : 4); run > 0 && e < entries; --run)
          rows.back().push_back(e++);
        e += d.i32(0, c.unit == 1 ? 200 : 6);
      }
      for (size_t i = rows.back().size(); i > 1; --i)
        std::swap(rows.back()[i - 1], rows.back()[d.from(0, static_cast<int64_t>(i) - 1)]);
    }
  t.csr(rows);
  return t;
}

TEST_F(CudaPrefill, TheCpuAgreesOnLongOnes) {
  Context context(0);
  const int64_t count = std::max<int64_t>(1, problems() / 20);
  for (int64_t number = first_problem(); number < first_problem() + count; ++number) {
    SCOPED_TRACE(::testing::Message() << "TAMIS_CUDA_FIRST=" << number);
    Dice d(number + 8'000'000);
    const Spec s = draw_long_sizes(d);
    TestProblem t = draw_long_problem(d, s);
    const Result<reference::Sets> sets = reference::build_sets(t.problem);
    ASSERT_TRUE(sets.ok()) << sets.status().message();
    const double poison = d.of({kNaN, kInf, -kInf, 6e4, 6e4, 6e4});
    t.poison_outside(*sets, poison);
    const Result<Shape> shape = describe(t.problem);
    // About a hundred rows are yardstick enough, and in a prime step, so that all heads are among them.
    const int64_t every = shape->total_q * shape->q_heads > 300 ? 37 : 1;
    const Wanted want = wanted_by_cpu(t.problem, context, every);
    const DeviceProblem device(t.problem);
    for (const bool one_part : {true, false}) {
      cuda::StepOptions o = draw_prefill_options(d, s);
      if (one_part) o.plan.splits = 1;
      const DType dtype = d.of({DType::kF32, s.dtype});
      SCOPED_TRACE(words(s, o));
      const std::unique_ptr<DeviceStep> step = planned(t.problem, o);
      const DeviceRan r = run_step(*step, device, dtype);
      ASSERT_EQ(complaint(r, want.answer, want.tolerance, dtype), "");
      ASSERT_EQ(static_cast<int64_t>(r.device.empty_rows),
                want.answer.sets.empty_rows * (shape->q_heads / shape->index_heads));
    }
  }
}

// Each pair of head sizes with each group size, so that none depends on being drawn. 21 queries in blocks of
// 16 fill part of a row tile, or four.
TEST_F(CudaPrefill, EveryHeadSizeAndGroup) {
  int64_t number = 0;
  for (const int64_t dim : {64, 128, 192, 256})
    for (const int64_t v_dim : {64, 128, 192, 256})
      for (const int64_t group : {1, 2, 3, 4, 5, 7, 8, 12, 16, 24, 32})
        for (const bool causal : {true, false}) {
          ++number;
          const int64_t kv_heads = group < 5 ? 2 : 1;
          TestProblem t({.kv_len = {150, 33},
                         .q_len = {group < 12 ? 21 : 17, 2},
                         .q_heads = kv_heads * group,
                         .kv_heads = kv_heads,
                         .head_dim = dim,
                         .v_head_dim = v_dim,
                         .dtype = number % 5 == 0 ? DType::kF16 : DType::kBF16,
                         .page_size = number % 3 == 0 ? 0 : 16,
                         .layout = number % 2 == 0 ? Layout::kNHD : Layout::kHND,
                         .q = q_noise(4),
                         .k = kv_noise(5),
                         .v = kv_noise(6)});
          t.problem.candidates.query_block = 16;
          t.problem.mask.causal = causal;
          t.all();
          Wanted want{answer(t.problem)};
          want.tolerance = tolerance_of(t.problem, want.answer, 5);
          for (const int32_t splits : {1, 2}) {
            cuda::StepOptions o{.block = 16};
            o.plan.splits = splits;
            const DType dtype = splits == 1 ? t.problem.query.q.dtype : DType::kF32;
            const DeviceRan r = run_on_device(t.problem, prefill(o), dtype);
            EXPECT_EQ(complaint(r, want.answer, want.tolerance, dtype), "")
                << "head sizes " << dim << ", " << v_dim << ", group " << group
                << (causal ? ", causal" : ", not causal") << ", splits " << splits;
          }
        }
}

// Rows of q that begin on 4 bytes and not on 16.
TEST_F(CudaPrefill, QueriesOnFourBytes) {
  for (const int64_t dim : {64, 128, 256})
    for (const int64_t gap : {2, 6}) {
      Spec s = small_spec(dim, {200}, {45});
      s.q_heads = 6;
      TestProblem t(s);
      t.problem.candidates.query_block = 64;
      t.all();
      Problem p = t.problem;
      const TensorView dense = t.problem.query.q;
      std::vector<uint16_t> q(static_cast<size_t>(45 * 6 * (dim + gap)), 0x7FC0);  // NaN
      for (int64_t row = 0; row < 45 * 6; ++row)
        std::memcpy(q.data() + row * (dim + gap), static_cast<const uint16_t*>(dense.data) + row * dim,
                    static_cast<size_t>(dim * 2));
      p.query.q.data = q.data();
      p.query.q.stride[1] = dim + gap;
      p.query.q.stride[0] = 6 * (dim + gap);
      const Wanted want = wanted(p);
      EXPECT_EQ(complaint(run_on_device(p, prefill()), want.answer, want.tolerance), "")
          << "head size " << dim << ", gap " << gap;
    }
}

// What the kernel does not take is said by name. No device is asked.
TEST(CudaPrefillLimits, AreSaidByName) {
  const Spec fits{.kv_len = {100, 60},
                  .q_len = {5, 3},
                  .q_heads = 66,
                  .kv_heads = 2,
                  .head_dim = 64,
                  .v_head_dim = 64,
                  .dtype = DType::kBF16,
                  .page_size = 16};
  const auto refused = [&](const char* name, const auto& change, const auto& bend) {
    Spec s = fits;
    change(s);
    TestProblem t(s);
    t.all();
    cuda::StepOptions o = prefill();
    bend(t.problem, o);
    const Status status = cuda::plan_step(t.problem, o).status();
    EXPECT_EQ(status.code(), Code::kUnsupported) << name << ": " << status.message();
    EXPECT_EQ(status.message().find(name), 0u) << status.message();
    o.engine = cuda::Engine::kDecode;
    EXPECT_TRUE(cuda::plan_step(t.problem, o).ok()) << name << ": the other engine takes it";
  };
  const auto as_is = [](auto&&...) {};
  TestProblem good(fits);
  good.all();
  ASSERT_TRUE(cuda::plan_step(good.problem, prefill()).ok());

  refused("index_heads: 33", as_is, [](Problem& p, cuda::StepOptions&) { p.candidates.index_heads = 66; });

  // What boxes cannot bring, threads copy, with a reason; unless blocks were asked for and nothing else.
  const auto copied = [&](const char* why, const auto& change, const auto& bend) {
    Spec s = fits;
    change(s);
    TestProblem t(s);
    t.all();
    cuda::StepOptions o = prefill();
    bend(t.problem, o);
    const Result<cuda::StepPlan> plan = cuda::plan_step(t.problem, o);
    ASSERT_TRUE(plan.ok()) << why << ": " << plan.status().message();
    EXPECT_EQ(plan->load, cuda::Load::kTokens) << why;
    EXPECT_NE(plan->plan.reason.find(why), std::string::npos) << plan->plan.reason;
    o.load = cuda::Load::kBlocks;
    o.plan.fallback = Fallback::kRefuse;
    const Status status = cuda::plan_step(t.problem, o).status();
    EXPECT_EQ(status.code(), Code::kUnsupported) << why;
    EXPECT_NE(status.message().find(why), std::string::npos) << status.message();
  };
  copied(
      "head_dim", [](Spec& s) { s.head_dim = 80; }, as_is);
  copied(
      "v_head_dim", [](Spec& s) { s.v_head_dim = 96; }, as_is);
  copied(
      "pages of 8", [](Spec& s) { s.page_size = 8; }, as_is);
  copied("pages of 16", as_is, [](Problem&, cuda::StepOptions& o) { o.block = 64; });
  for (const char* name : {"k has pages", "v has pages"})
    copied(name, as_is,
           [&](Problem& p, cuda::StepOptions&) { (name[0] == 'k' ? p.cache.k : p.cache.v).stride[0] += 8; });
}

}  // namespace
}  // namespace tamis
