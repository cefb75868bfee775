// The decode kernel's own code on the host, where copies know what alignment is.
#include "emulated/steps/set.h"
#include "support/mapped.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

TEST(EmulatedDecode, TheReferenceAgrees) {
  for (const cuda::Load load : {cuda::Load::kBlocks, cuda::Load::kTokens})
    for (const cuda::Ring ring : {cuda::Ring::kFull, cuda::Ring::kShort}) {
      TestProblem t(small_spec(64, {70, 33}, {1, 1}));
      t.problem.candidates.unit = 16;
      t.fixed({{0, 3, 4}, {1, 2, 0}});
      const cuda::StepPlan plan = *cuda::plan_step(t.problem, {.load = load, .ring = ring});
      Set set(plan);
      set.prepare(t.problem);
      EXPECT_TRUE(set.runs(t.problem)) << cuda::load_name(load) << ", " << cuda::ring_name(ring);
    }
}

// K and V of one tensor [pages, 2, ...] as the views that docs/device_step.md writes out, and its page table.
TEST(EmulatedDecode, TheCacheOfFlashInfer) {
  for (const Layout layout : {Layout::kNHD, Layout::kHND}) {
    constexpr int64_t P = 16, H = 2, D = 64;
    Spec s = small_spec(D, {70, 33}, {1, 1});
    s.layout = layout;
    TestProblem t(s);
    t.all();
    CacheView& c = t.problem.cache;
    const int64_t pages = c.k.shape[0], half = P * H * D;
    std::vector<uint16_t> cache(static_cast<size_t>(2 * pages * half));
    for (int64_t page = 0; page < pages; ++page)
      for (const int side : {0, 1})
        std::memcpy(&cache[(2 * page + side) * half],
                    static_cast<const uint16_t*>((side == 0 ? c.k : c.v).data) + page * half, 2 * half);
    const Wanted want = wanted(t.problem);
    const bool nhd = layout == Layout::kNHD;
    c.k = dense_view(cache.data(), DType::kBF16, {pages, nhd ? P : H, nhd ? H : P, D});
    c.k.stride[0] = 2 * P * H * D;
    c.v = c.k;
    c.v.data = reinterpret_cast<const char*>(cache.data()) + P * H * D * 2;
    const Result<reference::Answer> same = reference::forward(t.problem);
    ASSERT_TRUE(same.ok()) << same.status().message();
    EXPECT_EQ(same->output.out, want.answer.output.out);

    std::vector<int32_t> indptr{0}, indices, last;  // as FlashInfer has them
    for (size_t b = 0; b < s.kv_len.size(); ++b) {
      const int32_t n = (s.kv_len[b] + 15) / 16;
      for (int32_t j = 0; j < n; ++j)
        indices.push_back(c.page_table.at<int32_t>({static_cast<int64_t>(b), j}));
      indptr.push_back(indptr.back() + n);
      last.push_back(s.kv_len[b] - (n - 1) * 16);
    }
    const int64_t most = c.page_table.shape[1];
    std::vector<int32_t> table(2 * static_cast<size_t>(most), -1), kv_len;
    for (size_t b = 0; b < 2; ++b) {
      std::copy(&indices[indptr[b]], &indices[indptr[b]] + (indptr[b + 1] - indptr[b]), &table[b * most]);
      kv_len.push_back((indptr[b + 1] - indptr[b] - 1) * 16 + last[b]);
    }
    c.page_table = dense_view(table.data(), DType::kI32, {2, most});
    c.kv_len = dense_view(kv_len.data(), DType::kI32, {2});
    const cuda::StepPlan plan = *cuda::plan_step(t.problem);
    Set set(plan);
    set.prepare(t.problem);
    EXPECT_TRUE(set.runs(t.problem)) << (nhd ? "NHD" : "HND");
  }
}

// One row a cache may have whatever stride: no copy may follow it.
TEST(EmulatedDecode, TheStrideOfASingleRow) {
  for (const cuda::Engine engine : {cuda::Engine::kDecode, cuda::Engine::kPrefill})
    for (const cuda::Load load : {cuda::Load::kBlocks, cuda::Load::kTokens}) {
      Spec s = small_spec(64, {1}, {1});
      s.page_size = 0;
      s.slack = 0;
      TestProblem t(s);
      t.all();
      ASSERT_EQ(t.problem.cache.k.shape[0], 1);
      t.problem.cache.k.stride[0] = 65;
      t.problem.cache.v.stride[0] = 67;
      const Result<cuda::StepPlan> plan = cuda::plan_step(t.problem, {.load = load, .engine = engine});
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      Set set(*plan);
      set.prepare(t.problem);
      EXPECT_TRUE(set.runs(t.problem)) << cuda::engine_name(engine) << ", " << cuda::load_name(load);
    }
}

// The same of a single query.
TEST(EmulatedDecode, TheStrideOfASingleQuery) {
  for (const cuda::Engine engine : {cuda::Engine::kDecode, cuda::Engine::kPrefill})
    for (const int64_t stride : {int64_t{257}, int64_t{258}, INT64_MAX, INT64_MAX - 7, INT64_MIN}) {
      TestProblem t(small_spec(64, {70}, {1}));
      t.all();
      t.problem.query.q.stride[0] = stride;
      const Result<cuda::StepPlan> plan = cuda::plan_step(t.problem, {.engine = engine});
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      Set set(*plan);
      set.prepare(t.problem);
      EXPECT_TRUE(set.runs(t.problem)) << cuda::engine_name(engine) << ", " << stride;
    }
}

// A refused batch: rows become NaN but for those whose slot was reused, whose request is found by cu_q; also
// where that is in no order, and nothing behind its end is read.
TEST(EmulatedDecode, ARefusedBatchWithSlots) {
  constexpr int32_t kRequests = 9;
  const std::vector<int32_t> queries{0, 2, 0, 1, 1, 0, 0, 3, 0};
  for (const bool in_order : {true, false}) {
    TestProblem t(small_spec(64, std::vector<int32_t>(kRequests, 40), queries));
    t.problem.candidates.unit = 16;
    t.fixed(Rows(7, {0}));
    const cuda::StepPlan plan = *cuda::plan_step(t.problem);
    t.problem.candidates.indices.shape[0] = 7;
    in_order ? void(t.kv_len()[4] = -5) : void(t.cu_q() = {0, 9, -4, INT32_MIN, 3, INT32_MAX, 1, 0, 7, 5});
    const WalledCopy cu_q(t.cu_q().data(), sizeof(int32_t) * (kRequests + 1));
    t.problem.query.cu_q.data = cu_q.data();
    Set set(plan);
    set.prepare(t.problem);
    ASSERT_EQ(static_cast<const DeviceControl*>(set.buffers.control)->verdict.code,
              static_cast<int32_t>(Code::kInvalidArgument));
    const std::vector<int32_t> slot{0, 1, 2, 3, 4, 5, 6, 7, 8};
    std::vector<uint32_t> live(kRequests, 1), generation = live;
    live[3] = live[7] = live[8] = 2;
    const Shape s = *describe(t.problem);
    std::vector<float> out(static_cast<size_t>(s.total_q * s.q_heads * s.v_head_dim), 1.f);
    OutView view;
    view.out = mutable_view(out.data(), DType::kF32, {s.total_q, s.q_heads, s.v_head_dim});
    view.slots = {.slot = dense_view(slot.data(), DType::kI32, {kRequests}),
                  .generation = dense_view(generation.data(), DType::kU32, {kRequests}),
                  .live_generation = dense_view(live.data(), DType::kU32, {kRequests})};
    ASSERT_EQ(emulate_decode({DType::kBF16, 64, plan.columns, false, plan.ring},
                             cuda::decode_args(plan, t.problem, s, view, set.buffers, nullptr),
                             {.tasks = plan.tasks, .column_tiles = plan.column_tiles}, 1),
              "");
    if (!in_order) continue;
    const int64_t row = s.q_heads * s.v_head_dim;
    for (int64_t i = 0; i < s.total_q * row; ++i) {
      const int64_t query = i / row;  // the third is of request 3, the last three are of request 7
      ASSERT_EQ(std::isnan(out[static_cast<size_t>(i)]), query != 2 && query < 4) << "query " << query;
    }
  }
}

}  // namespace
}  // namespace tamis
