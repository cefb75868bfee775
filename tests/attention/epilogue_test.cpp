// O * scale * gate, then the cast or the code: exactly that, on the finished row, and nothing else is
// touched.
#include <gtest/gtest.h>

#include "attention/stores.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

constexpr DType kCasts[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2};
constexpr Placement kPlacements[] = {Placement::kDense, Placement::kGaps, Placement::kSpread,
                                     Placement::kReversed};

bool saturates(DType dtype, float x) {
  return dtype == DType::kF8E4M3   ? E4M3Codes::saturates(x)
         : dtype == DType::kF8E5M2 ? E5M2Codes::saturates(x)
         : dtype == DType::kI8     ? Int8Codes::saturates(x)
                                   : false;
}

TEST(Epilogue, CastsScalesAndGatesInOrder) {
  Context context(2);
  const TestProblem t = stored_problem(2000);
  const PerRow gates([](int64_t i, int64_t h) { return (i + 1) * 0.3 - h * 0.2; });
  int64_t beyond_e4m3 = 0;
  for (const ForwardOptions& o : {kWhole, kThree}) {
    const PlainRun plain(t.problem, o, context);
    for (const DType dtype : kCasts)
      for (const Placement how : kPlacements)
        for (const float scale : {1.f, 0.7f})
          for (const bool gated : {false, true}) {
            Guarded out(dtype, {kQueries, kQHeads, kDv}, how), lse(DType::kF32, {kQueries, kQHeads}, how);
            OutView view{out.view(), lse.view()};
            view.epilogue.scale = scale;
            if (gated) view.epilogue.gate = gates.view();
            ForwardReport report;
            const Status s = forward(t.problem, o, view, context, &report);
            ASSERT_TRUE(s.ok()) << s.message();
            int64_t beyond = 0;
            for_each_value([&](int64_t i, int64_t h, int64_t d) {
              const float gate = gated ? gates.at(i, h) : 1.f;
              const float x = i == 4 ? 0.f : plain.o(i, h, d) * scale * gate;  // query 4 is empty
              beyond += saturates(dtype, x);
              ASSERT_EQ(bits_at(out, i, h, d), bits_of(dtype, x)) << dtype_name(dtype) << ' ' << x;
            });
            EXPECT_EQ(report.counters.saturated, beyond) << dtype_name(dtype);
            EXPECT_TRUE(same_bits(lse.values(), plain.lse.values())) << "LSE is not the epilogue's business";
            EXPECT_TRUE(out.fences_stand() && lse.fences_stand());
            if (dtype == DType::kF8E4M3) beyond_e4m3 += beyond;
          }
  }
  EXPECT_GT(beyond_e4m3, 0) << "the sample reaches the end of e4m3";
}

TEST(Epilogue, AGateMayHaveAnyStrides) {
  Context context(1);
  const TestProblem t = stored_problem();
  const PlainRun plain(t.problem, kThree, context);
  const std::vector<float> per_head{0.5f, 9, -2, 9, 4, 9, 0.25f, 9};
  Guarded out(DType::kF32, {kQueries, kQHeads, kDv});
  OutView view{out.view(), {}};
  view.epilogue.gate = dense_view(per_head.data(), DType::kF32, {kQueries, kQHeads});
  view.epilogue.gate.stride = {0, 2};  // one gate a head, for every query
  ASSERT_TRUE(forward(t.problem, kThree, view, context).ok());
  for_each_value([&](int64_t i, int64_t h, int64_t d) {
    ASSERT_EQ(number_at(out, i, h, d), plain.o(i, h, d) * per_head[2 * h]);
  });
}

// V of token 4 is NaN, and every list of request 0 that has it makes a NaN of O.
TEST(Epilogue, AGateOfZeroGivesZeroWhateverOIs) {
  Context context(1);
  TestProblem t = stored_problem();
  t.put_v(t.slot(0, 4), kNaN);
  const PerRow gates([](int64_t i, int64_t h) { return h == 0 ? 0.0 : h == 1 ? -0.0 : i == 4 ? kNaN : 2.0; });
  for (const ForwardOptions& o : {kWhole, kThree}) {
    const PlainRun plain(t.problem, o, context);
    int64_t nan = 0;
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF8E4M3}) {
      Guarded out(dtype, {kQueries, kQHeads, kDv});
      OutView view{out.view(), {}};
      view.epilogue.gate = gates.view();
      ASSERT_TRUE(forward(t.problem, o, view, context).ok());
      for_each_value([&](int64_t i, int64_t h, int64_t d) {
        if (h < 2 || i == 4) {
          ASSERT_EQ(bits_at(out, i, h, d), 0u) << "exactly 0: gate 0, or an empty row under any gate";
        } else {
          ASSERT_EQ(std::isnan(number_at(out, i, h, d)), std::isnan(plain.o(i, h, d)));
        }
        nan += std::isnan(plain.o(i, h, d)) && h == 0;
      });
    }
    EXPECT_GT(nan, 0) << "rows with gate 0 would be NaN";
  }
}

TEST(Epilogue, StaticScale) {
  Context context(2);
  TestProblem t = stored_problem(100);
  t.put_v(t.slot(0, 4), kNaN);
  const std::vector<float> one{0.25f}, per_head{0.25f, 0.125f, 1, 2};
  for (const DType dtype : {DType::kI8, DType::kF8E4M3, DType::kF8E5M2})
    for (const ForwardOptions& o : {kWhole, kThree})
      for (const bool heads : {false, true})
        for (const Placement how : kPlacements) {
          const PlainRun plain(t.problem, o, context);
          Guarded out(dtype, {kQueries, kQHeads, kDv}, how), lse(DType::kF32, {kQueries, kQHeads});
          OutView view{out.view(), lse.view()};
          view.epilogue.scale = 1.5f;
          view.epilogue.static_scale = heads ? dense_view(per_head.data(), DType::kF32, {kQHeads})
                                             : dense_view(one.data(), DType::kF32, {});
          ForwardReport report;
          const Status s = forward(t.problem, o, view, context, &report);
          ASSERT_TRUE(s.ok()) << s.message();
          int64_t beyond = 0;
          for_each_value([&](int64_t i, int64_t h, int64_t d) {
            const float x = plain.o(i, h, d) * 1.5f / (heads ? per_head[h] : one[0]);
            beyond += saturates(dtype, x);
            ASSERT_EQ(bits_at(out, i, h, d), bits_of(dtype, x)) << dtype_name(dtype) << ' ' << x;
          });
          EXPECT_EQ(report.counters.saturated, beyond);
          EXPECT_GE(beyond, dtype == DType::kI8 ? kDv + 1 : 0) << "NaN lost, and values beyond";
          EXPECT_TRUE(out.fences_stand());
        }
}

TEST(Epilogue, DynamicScaleIsThatOfTheRow) {
  Context context(2);
  TestProblem t = stored_problem(3000);
  t.put_v(t.slot(2, 0), 0, 3, kInf);  // not finite: rows of request 2 that list token 0
  t.put_v(t.slot(0, 4), 1, 5, kNaN);  // and rows of request 0 that list token 4, in one dimension
  const PerRow gates([](int64_t i, int64_t h) { return i == 1 && h == 1 ? 0 : 1 - h * 0.4; });
  for (const DType dtype : {DType::kI8, DType::kF8E4M3, DType::kF8E5M2})
    for (const ForwardOptions& o : {kWhole, kThree})
      for (const Placement how : kPlacements) {
        const PlainRun plain(t.problem, o, context);
        Guarded out(dtype, {kQueries, kQHeads, kDv}, how), scales(DType::kF32, {kQueries, kQHeads}, how);
        OutView view{out.view(), {}};
        view.epilogue.gate = gates.view();
        view.epilogue.out_scale = scales.view();
        ForwardReport report;
        const Status s = forward(t.problem, o, view, context, &report);
        ASSERT_TRUE(s.ok()) << s.message();
        EXPECT_EQ(report.counters.saturated, 0) << "each row brings its scale";
        const std::vector<double> scale = scales.values();
        const float top = dtype == DType::kI8 ? 127.f : dtype == DType::kF8E4M3 ? 448.f : 57344.f;
        int64_t lost_rows = 0;
        for (int64_t i = 0; i < kQueries; ++i)
          for (int64_t h = 0; h < kQHeads; ++h) {
            float largest = 0;
            bool finite = true;
            for (int64_t d = 0; d < kDv; ++d) {
              finite = finite && std::isfinite(plain.o(i, h, d));
              largest = std::max(largest, std::fabs(plain.o(i, h, d) * gates.at(i, h)));
            }
            const float got = static_cast<float>(scale[i * kQHeads + h]);
            if (!finite && gates.at(i, h) != 0) {
              ++lost_rows;
              EXPECT_TRUE(std::isnan(got)) << "what is not finite shows";
              for (int64_t d = 0; d < kDv; ++d) ASSERT_EQ(bits_at(out, i, h, d), 0u);
              continue;
            }
            if (gates.at(i, h) == 0) largest = 0;
            ASSERT_EQ(got, largest == 0 ? 1.f : largest / top) << i << ' ' << h;
            for (int64_t d = 0; d < kDv; ++d) {
              const float x = gates.at(i, h) == 0 || i == 4 ? 0.f : plain.o(i, h, d) * gates.at(i, h);
              ASSERT_EQ(bits_at(out, i, h, d), bits_of(dtype, x / got));
            }
          }
        EXPECT_GT(lost_rows, 0);
        EXPECT_TRUE(out.fences_stand() && scales.fences_stand());
      }
}

// A row stored twice, or by another thread, comes out the same.
TEST(Epilogue, AnyThreadCountAndOrderGivesTheSameBits) {
  const TestProblem t = stored_problem(700);
  const PerRow gates([](int64_t i, int64_t h) { return 1.0 / (1 + i + h); });
  const Result<Steps> steps = prepare(t.problem, kThree);
  ASSERT_TRUE(steps.ok());
  std::vector<double> codes, scales;
  for (const int threads : {1, 2, 5})
    for (const uint64_t seed : {1, 2}) {
      Context context(threads);
      Guarded out(DType::kF8E4M3, {kQueries, kQHeads, kDv}), scale(DType::kF32, {kQueries, kQHeads});
      OutView view{out.view(), {}};
      view.epilogue = {.scale = 3, .gate = gates.view(), .static_scale = {}, .out_scale = scale.view()};
      GuardedWorkspace workspace(partial_bytes(steps->plan, steps->schedule));
      ASSERT_TRUE(run(steps->plan, t.problem, steps->bundles.view(), shuffled(steps->schedule, seed), view,
                      workspace.span(), context)
                      .ok());
      std::vector<double> now;
      for_each_value([&](int64_t i, int64_t h, int64_t d) { now.push_back(bits_at(out, i, h, d)); });
      if (codes.empty()) {
        codes = now;
        scales = scale.values();
      }
      EXPECT_EQ(now, codes);
      EXPECT_TRUE(same_bits(scale.values(), scales));
    }
}

TEST(Epilogue, WrongOnesAreRefusedBeforeAnythingIsRead) {
  Context context(1);
  TestProblem t = stored_problem();
  t.problem.candidates.unit = 1;
  std::vector<float> floats(kQueries * kQHeads, 1.f);
  const TensorView rows = dense_view(floats.data(), DType::kF32, {kQueries, kQHeads});
  const TensorView heads = dense_view(floats.data(), DType::kF32, {kQHeads});
  const TensorView scalar = dense_view(floats.data(), DType::kF32, {});
  const MutableTensorView scales = mutable_view(floats.data(), DType::kF32, {kQueries, kQHeads});
  struct Wrong {
    const char* words;
    DType dtype;
    Epilogue epilogue;
    std::vector<float> values{};
  };
  const Wrong wrongs[] = {
      {"epilogue.scale: nan is not finite", DType::kF32, {.scale = NAN}},
      {"epilogue.scale: inf is not finite", DType::kF32, {.scale = INFINITY}},
      {"gate: shape is not [5,4]", DType::kF32, {.gate = heads}},
      {"gate: dtype I32 is not F32",
       DType::kF32,
       {.gate = dense_view(floats.data(), DType::kI32, {kQueries, kQHeads})}},
      {"gate: has elements but no memory",
       DType::kF32,
       {.gate = dense_view(nullptr, DType::kF32, {kQueries, kQHeads})}},
      {"static_scale: is for codes, out holds F32", DType::kF32, {.static_scale = scalar}},
      {"out_scale: is for codes, out holds BF16", DType::kBF16, {.out_scale = scales}},
      {"out: dtype I8 holds codes and needs static_scale or out_scale", DType::kI8, {}},
      {"out_scale: give at most one", DType::kI8, {.static_scale = heads, .out_scale = scales}},
      {"static_scale: shape is not [4]", DType::kI8, {.static_scale = rows}},
      {"static_scale: 0 of head 2", DType::kI8, {.static_scale = heads}, {1, 1, 0, 1}},
      {"static_scale: -1 of head 0", DType::kI8, {.static_scale = scalar}, {-1}},
      {"static_scale: nan of head 3", DType::kF8E5M2, {.static_scale = heads}, {1, 1, 1, NAN}},
      {"static_scale: inf of head 0", DType::kF8E5M2, {.static_scale = heads}, {INFINITY}},
      {"out_scale: shape is not [5,4]",
       DType::kI8,
       {.out_scale = mutable_view(floats.data(), DType::kF32, {kQHeads})}},
      {"out_scale: dtype F16 is not F32",
       DType::kI8,
       {.out_scale = mutable_view(floats.data(), DType::kF16, {kQueries, kQHeads})}},
      {"out: dtype U8 is not one of F32 F16 BF16 F8_E4M3 F8_E5M2 I8", DType::kU8, {.out_scale = scales}},
  };
  for (const bool bad_lists : {false, true}) {
    if (bad_lists) t.problem.candidates.unit = 1000;  // every entry out of range: judged later
    for (const Wrong& w : wrongs) {
      std::fill(floats.begin(), floats.end(), 1.f);
      std::copy(w.values.begin(), w.values.end(), floats.begin());
      Guarded out(w.dtype, {kQueries, kQHeads, kDv}), lse(DType::kF32, {kQueries, kQHeads});
      const Status s = forward(t.problem, kThree, {out.view(), lse.view(), w.epilogue}, context);
      EXPECT_EQ(s.code(), Code::kInvalidArgument) << w.words;
      EXPECT_EQ(s.message().rfind(w.words, 0), 0u) << s.message();
      EXPECT_TRUE(out.untouched() && lse.untouched());
    }
  }
}

}  // namespace
}  // namespace tamis
