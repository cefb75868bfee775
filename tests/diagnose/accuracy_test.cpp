// Kernel error and quantization error, told apart.
#include "tamis/accuracy.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/expect.h"
#include "support/problems.h"
#include "tamis/quant.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

TEST(MeasureError, IsWhatItSays) {
  const std::vector<float> a{1, 2, 3, 4.5f}, b{1, 2, 3.25f, 4};
  const auto view = [](const std::vector<float>& x) { return dense_view(x.data(), DType::kF32, {4}); };
  const Result<ErrorMeasure> e = measure_error(view(a), view(b));
  ASSERT_TRUE(e.ok());
  EXPECT_EQ(e->max_abs, 0.5);
  EXPECT_DOUBLE_EQ(e->relative_rms, std::sqrt((0.0625 + 0.25) / (1 + 4 + 3.25 * 3.25 + 16)));
  EXPECT_EQ(measure_error(view(a), view(a))->max_abs, 0);
  EXPECT_EQ(measure_error(view(a), view(a))->relative_rms, 0);
  const std::vector<float> none(4, 0.f);
  EXPECT_EQ(measure_error(view(none), view(none))->relative_rms, 0);
  EXPECT_EQ(measure_error(view(a), view(none))->relative_rms, INFINITY);
}

TEST(MeasureError, NaNAndInfinitiesMustAgree) {
  const std::vector<float> a{NAN, INFINITY, -INFINITY, 1}, one_less{NAN, INFINITY, 0, 1}, none{0, 0, 0, 1};
  const auto view = [](const std::vector<float>& x) { return dense_view(x.data(), DType::kF32, {2, 2}); };
  EXPECT_EQ(measure_error(view(a), view(a))->max_abs, 0);
  EXPECT_EQ(measure_error(view(a), view(one_less))->max_abs, INFINITY);
  EXPECT_EQ(measure_error(view(none), view(a))->max_abs, INFINITY);
  EXPECT_EQ(measure_error(dense_view(a.data(), DType::kF32, {4}), view(a)).status().message(),
            "a: has another shape than b");
}

// A request of 40 tokens and one of 9, quantized; and its views.
struct Pair {
  Pair(Format format, ScaleKind kind)
      : plain({.kv_len = {40, 9},
               .q_len = {2, 1},
               .q_heads = 4,
               .kv_heads = 2,
               .head_dim = 16,
               .v_head_dim = 8,
               .page_size = 8,
               .q = q_noise(1),
               .k = kv_noise(2),
               .v = kv_noise(3)}) {
    plain.csr({{0, 5, 9, 30, 31}, {1, 2, 30}, {0, 3, 8}});
    used = *used_slots(plain.problem);
    const TensorView& kv = plain.problem.cache.k;
    const QuantizeOptions options{.used = dense_view(used.data(), DType::kU8, {kv.shape[0], 8})};
    Result<Quantized> made_k = quantize(plain.problem.cache.k, format, kind, options);
    Result<Quantized> made_v = quantize(plain.problem.cache.v, format, kind, options);
    k = std::move(*made_k);
    v = std::move(*made_v);
    quantized = plain.problem;
    quantized.cache.k = k.codes;
    quantized.cache.v = v.codes;
    quantized.cache.k_quant = k.quantization;
    quantized.cache.v_quant = v.quantization;
  }
  TestProblem plain;
  std::vector<uint8_t> used;
  Quantized k, v;
  Problem quantized;
};

std::vector<float> floats(const std::vector<double>& x) { return {x.begin(), x.end()}; }

TEST(AccuracySplit, TellsTheKernelFromTheFormat) {
  const Pair p(Format::kInt8, ScaleKind::kHead);
  const reference::Answer exact = answer(p.quantized), wanted = answer(p.plain.problem);
  std::vector<float> out = floats(exact.output.out);
  const TensorView view = dense_view(out.data(), DType::kF32, {3, 4, 8});

  // A perfect kernel: what is left is the format's.
  Result<AccuracySplit> split = accuracy_split(p.plain.problem, p.quantized, view);
  ASSERT_TRUE(split.ok()) << split.status().message();
  EXPECT_LT(split->kernel.max_abs, 1e-7);
  EXPECT_LT(split->kernel.relative_rms, 1e-7);
  double largest = 0;
  for (size_t i = 0; i < out.size(); ++i)
    largest = std::max(largest, std::fabs(exact.output.out[i] - wanted.output.out[i]));
  EXPECT_EQ(split->quantization.max_abs, largest);
  EXPECT_GT(split->quantization.max_abs, 1e-4);
  const ErrorMeasure format = split->quantization;

  // A kernel that is off by a known amount: only its part changes.
  out[5] += 0.125f;
  split = accuracy_split(p.plain.problem, p.quantized, view);
  EXPECT_NEAR(split->kernel.max_abs, 0.125, 1e-6);
  EXPECT_EQ(split->quantization.max_abs, format.max_abs);
  EXPECT_EQ(split->quantization.relative_rms, format.relative_rms);

  // An output that is exact on the original values: a wrong answer here, by as much as the format's error.
  std::copy(wanted.output.out.begin(), wanted.output.out.end(), out.begin());
  split = accuracy_split(p.plain.problem, p.quantized, view);
  EXPECT_NEAR(split->kernel.max_abs, format.max_abs, 1e-6);
}

// The reference reads codes and scales by itself; dequantize() must find the same numbers.
TEST(AccuracySplit, TheReferenceReadsWhatDequantizeReads) {
  for (const Format format : {Format::kInt8, Format::kFp8E4M3, Format::kFp8E5M2, Format::kInt4})
    for (const ScaleKind kind : {ScaleKind::kTensor, ScaleKind::kHead, ScaleKind::kPage, ScaleKind::kChannel,
                                 ScaleKind::kPageChannel, ScaleKind::kToken}) {
      const Pair p(format, kind);
      const Result<DequantizedProblem> read = dequantized(p.quantized);
      ASSERT_TRUE(read.ok()) << read.status().message();
      const reference::Answer a = answer(p.quantized), b = answer(read->problem);
      ASSERT_EQ(a.output.out.size(), b.output.out.size());
      for (size_t i = 0; i < a.output.out.size(); ++i) ASSERT_NEAR(a.output.out[i], b.output.out[i], 1e-6);
    }
}

TEST(AccuracySplit, FinerFormatsAreCloser) {
  const auto error = [](Format format, ScaleKind kind) {
    const Pair p(format, kind);
    const std::vector<float> out(3 * 4 * 8);
    return accuracy_split(p.plain.problem, p.quantized, dense_view(out.data(), DType::kF32, {3, 4, 8}))
        ->quantization.relative_rms;
  };
  EXPECT_LT(error(Format::kInt8, ScaleKind::kToken), error(Format::kFp8E4M3, ScaleKind::kToken));
  EXPECT_LT(error(Format::kFp8E4M3, ScaleKind::kToken), error(Format::kFp8E5M2, ScaleKind::kToken));
  EXPECT_LT(error(Format::kInt8, ScaleKind::kToken), error(Format::kInt4, ScaleKind::kToken));
  EXPECT_LT(error(Format::kInt4, ScaleKind::kToken), 0.2);
}

TEST(AccuracySplit, ProblemsThatAreNoPairAreRefused) {
  const Pair p(Format::kFp8E4M3, ScaleKind::kPageChannel);
  const std::vector<float> out(3 * 4 * 8);
  const TensorView view = dense_view(out.data(), DType::kF32, {3, 4, 8});
  Problem other = p.plain.problem;
  other.mask.window = 3;
  EXPECT_EQ(accuracy_split(other, p.quantized, view).status().message(),
            "original: selects other tokens than the quantized problem");
  TestProblem listed({.kv_len = {40, 9}, .q_len = {2, 1}});
  listed.csr({{0, 5, 9, 30, 31}, {1, 2, 30}, {0, 3, 7}});  // as many as there, one of them another
  other = p.plain.problem;
  other.candidates = listed.problem.candidates;
  EXPECT_EQ(accuracy_split(other, p.quantized, view).status().message(),
            "original: selects other tokens than the quantized problem");
  other = p.plain.problem;
  other.query.q.shape[1] = 2;
  EXPECT_EQ(accuracy_split(other, p.quantized, view).status().message(),
            "original: has other sizes than the quantized problem");
  EXPECT_EQ(accuracy_split(p.plain.problem, p.quantized, dense_view(out.data(), DType::kF32, {3, 8, 4}))
                .status()
                .message(),
            "out: shape is not [3,4,8]");
  EXPECT_EQ(accuracy_split(p.plain.problem, p.quantized, {}).status().message(), "out: tensor is missing");
}

}  // namespace
}  // namespace tamis
