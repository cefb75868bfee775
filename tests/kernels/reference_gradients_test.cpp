// Section 7 against differences of section 5, over everything that section 5 can be asked for.
#include <gtest/gtest.h>

#include "support/expect.h"
#include "support/problems.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

// <d_out, O> + <d_lse, LSE>: what the gradients are gradients of. Read through the views, any strides.
double loss(const Problem& p) {
  const reference::Answer a = answer(p);
  const TensorView &d_out = p.gradients.d_out, &d_lse = p.gradients.d_lse;
  double sum = 0;
  for (int64_t i = 0, row = 0; i < d_out.shape[0]; ++i)
    for (int64_t h = 0; h < d_out.shape[1]; ++h, ++row) {
      if (d_lse.present() && a.output.lse[row] != -kInf)
        sum += static_cast<double>(d_lse.at<float>({i, h})) * a.output.lse[row];
      for (int64_t d = 0; d < d_out.shape[2]; ++d)
        sum += static_cast<double>(d_out.at<float>({i, h, d})) * a.output.out[row * d_out.shape[2] + d];
    }
  return sum;
}

// The slope of the loss along a number that `put` writes and that is x now. Two central differences whose
// leading errors cancel; x and the steps are short, so an f32 holds x +- h exactly.
template <class Put>
double slope(const Problem& p, double x, const Put& put) {
  const auto central = [&](double h) {
    put(x + h);
    const double above = loss(p);
    put(x - h);
    const double below = loss(p);
    return (above - below) / (2 * h);
  };
  const double far = central(0x1p-9), near = central(0x1p-10);
  put(x);
  return (4 * near - far) / 3;
}

struct Feature {
  const char* name;
  void (*apply)(TestProblem&);
  int64_t index_heads = 2;
  void (*change)(Spec&) = [](Spec&) {};
};

// Entries in [0, 5), good for both requests; the second row is empty, the third has a duplicate and padding.
Rows some_rows(int64_t count) {
  Rows rows;
  for (int32_t r = 0; r < count; ++r) rows.push_back({r % 5, (3 * r + 1) % 5, (r / 2 + 3) % 5});
  rows[1] = {-1};
  rows[2] = {4, -1, 0, 4};
  return rows;
}

constexpr int64_t kQueries = 5;

TestProblem problem_of(const Feature& f) {
  Spec spec{.kv_len = {7, 5},
            .q_len = {3, 2},
            .q_heads = 4,
            .kv_heads = 2,
            .head_dim = 4,
            .v_head_dim = 2,
            .page_size = 2,
            .q = q_noise(1),
            .k = kv_noise(2),
            .v = kv_noise(3)};
  f.change(spec);
  TestProblem t(spec);
  t.problem.mask.causal = false;
  t.problem.candidates.index_heads = f.index_heads;
  t.csr(some_rows(kQueries * f.index_heads));
  t.d_out(q_noise(4));
  f.apply(t);
  return t;
}

const Feature kFeatures[] = {
    {"plain", [](TestProblem&) {}},
    {"scale", [](TestProblem& t) { t.problem.score.scale = -1.25; }},
    {"softcap", [](TestProblem& t) { t.problem.score = {.scale = 2, .softcap = 0.75}; }},
    {"alibi",
     [](TestProblem& t) {
       t.alibi({0.5f, 0, -1, 0.25f});
     }},
    {"softcap and alibi",
     [](TestProblem& t) {
       t.problem.score.softcap = 0.5;
       t.alibi({0.5f, 0, -1, 0.25f});
     }},
    {"window", [](TestProblem& t) { t.problem.mask = {.causal = true, .window = 3}; }},
    {"sink", [](TestProblem& t) { t.problem.mask = {.causal = true, .sink = 2}; }},
    {"window beyond the diagonal", [](TestProblem& t) { t.problem.mask = {.causal = false, .window = 9}; }},
    {"positions",
     [](TestProblem& t) {
       t.q_pos({4, -1, 2, 9, 0}).problem.mask = {.causal = true, .window = 2, .sink = 1};
     }},
    {"everything", [](TestProblem& t) { t.all(); }},
    {"one list for all heads", [](TestProblem&) {}, 1},
    {"a list for every query head", [](TestProblem&) {}, 4},
    {"one head", [](TestProblem&) {}, 1, [](Spec& s) { s.q_heads = s.kv_heads = 1; }},
    {"a group of four", [](TestProblem&) {}, 4, [](Spec& s) { s.kv_heads = 1; }},
    {"no group", [](TestProblem&) {}, 4, [](Spec& s) { s.kv_heads = 4; }},
    {"units",
     [](TestProblem& t) {
       t.csr(Rows(10, {1, 0})).problem.candidates.unit = 2;
     }},
    {"query blocks",
     [](TestProblem& t) {
       t.csr({{0, 2}, {1}, {3, 4}, {0}, {2, 3}, {1}}).problem.candidates.query_block = 2;
     }},
    {"dropout",
     [](TestProblem& t) {
       t.problem.dropout = {0.4, 77};
     }},
    {"d_lse", [](TestProblem& t) { t.d_lse([](int64_t i, int64_t h) { return noise(5, i, h, 0); }); }},
    {"contiguous", [](TestProblem&) {}, 2, [](Spec& s) { s.page_size = 0; }},
    {"HND", [](TestProblem&) {}, 2, [](Spec& s) { s.layout = Layout::kHND; }},
    {"HND contiguous", [](TestProblem&) {}, 2,
     [](Spec& s) {
       s.page_size = 0;
       s.layout = Layout::kHND;
     }},
    {"gaps", [](TestProblem&) {}, 2, [](Spec& s) { s.placement = Placement::kSpread; }},
    {"shared pages", [](TestProblem&) {}, 2,
     [](Spec& s) {
       s.table = {{2, 5, 1, 2}, {2, 0, 5, 3}};
     }},
    {"one slot twice in a row", [](TestProblem& t) { t.all(); }, 1,
     [](Spec& s) {
       s.table = {{1, 1, 0, 1}, {1, 1, 1, 1}};
     }},
    {"all together",
     [](TestProblem& t) {
       t.problem.dropout = {0.3, 0x0123456789ABCDEF};
       t.problem.score.softcap = 1.5;
       t.alibi({0.5f, 0, -1, 0.25f}).problem.mask = {.causal = true, .window = 2, .sink = 1};
       t.d_lse([](int64_t i, int64_t h) { return noise(5, i, h, 0); });
     },
     4,
     [](Spec& s) {
       s.table = {{2, 5, 1, 2}, {2, 0, 5, 3}};
     }},
};

class GradientFeatures : public ::testing::TestWithParam<Feature> {};

std::string name_of(const ::testing::TestParamInfo<Feature>& info) {
  std::string name = info.param.name;
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Reference, GradientFeatures, ::testing::ValuesIn(kFeatures), name_of);

TEST_P(GradientFeatures, AreTheSlopesOfTheLoss) {
  TestProblem t = problem_of(GetParam());
  const reference::Gradients g = gradients(t.problem);
  const TensorView& q = t.problem.query.q;
  const int64_t heads = describe(t.problem)->kv_heads;
  ASSERT_EQ(g.d_q.size(), static_cast<size_t>(q.elements()));
  ASSERT_EQ(g.d_k.size(), static_cast<size_t>(t.slots() * heads * 4));
  ASSERT_EQ(g.d_v.size(), static_cast<size_t>(t.slots() * heads * 2));
  double largest = 0;
  const auto expect = [&](const char* which, double got, double want) {
    ASSERT_NEAR(got, want, 1e-8) << which;
    largest = std::fmax(largest, std::fabs(want));
  };
  for (int64_t i = 0, at = 0; i < q.shape[0]; ++i)
    for (int64_t h = 0; h < q.shape[1]; ++h)
      for (int64_t d = 0; d < q.shape[2]; ++d, ++at)
        expect("d_q", g.d_q[at],
               slope(t.problem, q_noise(1)(i, h, d), [&](double x) { t.put_q(i, h, d, x); }));
  const std::vector<int32_t> lengths = t.kv_len();
  std::vector<bool> seen(t.slots());
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t token = 0; token < lengths[b]; ++token) {
      const int64_t at = t.slot(b, token);
      if (seen[at]) continue;  // shared with another token
      seen[at] = true;
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t d = 0; d < 4; ++d)
          expect("d_k", g.d_k[t.in_d_k(at, h, d)],
                 slope(t.problem, t.k_at(at, h, d), [&](double x) { t.put_k(at, h, d, x); }));
        for (int64_t d = 0; d < 2; ++d)
          expect("d_v", g.d_v[t.in_d_v(at, h, d)],
                 slope(t.problem, t.v_at(at, h, d), [&](double x) { t.put_v(at, h, d, x); }));
      }
    }
  EXPECT_GT(largest, 0.1) << "a test of zeros";
}

TEST_P(GradientFeatures, WhatNoSetHoldsGetsExactlyNothingAndGivesNothing) {
  TestProblem t = problem_of(GetParam());
  const reference::Answer a = answer(t.problem);
  const reference::Gradients g = gradients(t.problem);
  t.poison_outside(a.sets);
  EXPECT_TRUE(same_gradients(gradients(t.problem), g));
  std::vector<bool> used(t.slots());
  for (const int64_t at : reference::physical_slots(t.problem, a.sets)) used[at] = true;
  for (int64_t at = 0; at < t.slots(); ++at)
    for (int64_t h = 0; !used[at] && h < describe(t.problem)->kv_heads; ++h)
      for (int64_t d = 0; d < 4; ++d) {
        EXPECT_EQ(g.d_k[t.in_d_k(at, h, d)], 0);
        EXPECT_EQ(g.d_v[t.in_d_v(at, h, d / 2)], 0);
      }
}

// The gradient of a scale is that of the numbers under it: d L / d scale = sum of code * d L / d number.
TEST(ReferenceGradients, ReachTheScalesOfQuantizedNumbers) {
  for (const Format format : {Format::kInt8, Format::kFp8E4M3, Format::kFp8E5M2, Format::kInt4})
    for (const ScaleKind kind : {ScaleKind::kTensor, ScaleKind::kHead, ScaleKind::kPage, ScaleKind::kChannel,
                                 ScaleKind::kPageChannel, ScaleKind::kToken}) {
      TestProblem t = problem_of(kFeatures[0]);
      t.problem.dropout = {0.25, 3};
      t.d_lse([](int64_t i, int64_t h) { return noise(5, i, h, 0); });
      t.quantize_k(format, kind).quantize_v(format, kind);
      const reference::Gradients g = gradients(t.problem);
      const int64_t at = t.slot(0, 3), head = 1, dim = 1;
      for (const bool of_k : {true, false}) {
        float& scale = of_k ? t.k_scale(at, head, dim) : t.v_scale(at, head, dim);
        double want = 0;
        for (int64_t slot = 0; slot < t.slots(); ++slot)
          for (int64_t h = 0; h < 2; ++h)
            for (int64_t d = 0; d < (of_k ? 4 : 2); ++d) {
              if (&scale != &(of_k ? t.k_scale(slot, h, d) : t.v_scale(slot, h, d))) continue;
              const double number = of_k ? t.k_at(slot, h, d) : t.v_at(slot, h, d),
                           gradient = of_k ? g.d_k[t.in_d_k(slot, h, d)] : g.d_v[t.in_d_v(slot, h, d)];
              if (gradient != 0) want += number / static_cast<double>(scale) * gradient;
            }
        const double got =
            slope(t.problem, static_cast<double>(scale), [&](double x) { scale = static_cast<float>(x); });
        EXPECT_NEAR(got, want, 1e-5 * std::fmax(1, std::fabs(want)))  // codes of hundreds bend the loss
            << (of_k ? "K" : "V") << " format " << static_cast<int>(format) << " kind "
            << static_cast<int>(kind);
      }
    }
}

// ---- inputs of other types, and refusals

TEST(ReferenceGradientInputs, DOutInTheDtypeOfQ) {
  const auto with = [](DType d_out) {
    TestProblem t(
        {.kv_len = {8}, .dtype = DType::kBF16, .q = q_noise(1), .k = kv_noise(2), .v = kv_noise(3)});
    t.d_out(q_noise(4), d_out).all();
    return gradients(t.problem);
  };
  EXPECT_TRUE(same_gradients(with(DType::kBF16), with(DType::kF32)));
}

Status backward_refusal(const Problem& p, const reference::Answer& a, Code code) {
  const Status s = reference::backward(p, a.sets, a.output).status();
  EXPECT_STREQ(code_name(s.code()), code_name(code)) << s.message();
  return s;
}

TEST(ReferenceGradientInputs, AreChecked) {
  TestProblem t = problem_of(kFeatures[0]);
  const reference::Answer a = answer(t.problem);
  OutputGradients& inputs = t.problem.gradients;
  const TensorView d_out = inputs.d_out;

  inputs.d_out = {};
  EXPECT_TRUE(says(backward_refusal(t.problem, a, Code::kInvalidArgument), "d_out: tensor is missing"));
  inputs.d_out = d_out;
  inputs.d_out.data = nullptr;
  EXPECT_TRUE(says(backward_refusal(t.problem, a, Code::kInvalidArgument), "d_out:"));
  inputs.d_out = d_out;
  inputs.d_lse = dense_view(nullptr, DType::kF32, {kQueries, 4});
  EXPECT_TRUE(says(backward_refusal(t.problem, a, Code::kInvalidArgument), "d_lse:"));
  inputs.d_lse = dense_view(d_out.data, DType::kF32, {kQueries, 3});
  EXPECT_TRUE(says(backward_refusal(t.problem, a, Code::kInvalidArgument), "d_lse:"));
  inputs.d_lse = {};

  reference::Answer short_lse = a, short_out = a;
  short_lse.output.lse.pop_back();
  EXPECT_TRUE(says(backward_refusal(t.problem, short_lse, Code::kInvalidArgument), "lse:"));
  short_out.output.out.pop_back();
  EXPECT_TRUE(says(backward_refusal(t.problem, short_out, Code::kInvalidArgument), "out:"));

  t.table(0, 0) = -1;
  EXPECT_EQ(backward_refusal(t.problem, a, Code::kPageUnmapped).where().page, 0);
}

TEST(ReferenceGradientInputs, AbsurdSizesAreRefusedBeforeMemoryIsAsked) {
  TestProblem t({.kv_len = {8}});
  t.d_out(q_noise(1)).all();
  const reference::Answer a = answer(t.problem);
  for (TensorView* kv : {&t.problem.cache.k, &t.problem.cache.v}) {
    kv->stride[0] = 0;
    kv->shape[0] = (int64_t{1} << 31) - 1;  // a view of few bytes
  }
  EXPECT_TRUE(says(backward_refusal(t.problem, a, Code::kCapacityExceeded), "memory:"));
}

}  // namespace
}  // namespace tamis
