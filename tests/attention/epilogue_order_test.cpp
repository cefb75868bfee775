// Why an epilogue waits for the merge: a cast, a code or a clamp of each part, merged afterwards, misses the
// tolerance that the cast of the merged row holds.
#include <gtest/gtest.h>

#include "attention/stores.h"
#include "tamis/merge.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

constexpr int64_t kHalf = 32, kDim = 16;

// One query over 64 tokens, all with the same score. V is large and positive in the first half, as large and
// negative in the second: two parts of a split whose sums nearly cancel.
double value_of(int64_t t, int64_t d) {
  const double small = noise(4, t, d, 0) / 8;
  return (t < kHalf ? 1 : -1) * (100 + static_cast<double>(d) * 3.7) + small + 1;
}

TestProblem cancelling() {
  TestProblem t({.kv_len = {64},
                 .head_dim = 8,
                 .v_head_dim = kDim,
                 .page_size = 16,
                 .v = [](int64_t, int64_t token, int64_t, int64_t d) { return value_of(token, d); }});
  Rows rows(1);
  for (int32_t token = 0; token < 64; ++token) rows[0].push_back(token);
  t.csr(rows);
  return t;
}

// The exact result, and that of each half.
struct Halves {
  Halves() {
    for (int64_t d = 0; d < kDim; ++d) {
      double sums[2] = {0, 0};
      for (int64_t t = 0; t < 64; ++t) sums[t / kHalf] += value_of(t, d) / kHalf;
      part[0].push_back(static_cast<float>(sums[0]));
      part[1].push_back(static_cast<float>(sums[1]));
      exact.push_back((sums[0] + sums[1]) / 2);
    }
  }
  // Merges the two halves, which weigh the same.
  std::vector<float> merged(const std::vector<float>& a, const std::vector<float>& b) const {
    const float equal = 3.5f;
    float lse = 0;
    std::vector<float> out(kDim);
    const float *outs[] = {a.data(), b.data()}, *lses[] = {&equal, &equal};
    EXPECT_TRUE(merge_states(outs, lses, 1, kDim, out.data(), &lse).ok());
    return out;
  }
  std::vector<float> part[2];
  std::vector<double> exact;
};

template <class Codes>
std::vector<float> coded(const std::vector<float>& x, float scale, int64_t* saturated = nullptr) {
  std::vector<float> y;
  for (const float v : x) {
    y.push_back(Codes::decode(Codes::encode(v / scale)) * scale);
    if (saturated != nullptr) *saturated += Codes::saturates(v / scale);
  }
  return y;
}

double worst(const std::vector<float>& got, const std::vector<double>& want) {
  double top = 0;
  for (size_t i = 0; i < want.size(); ++i) top = std::max(top, std::fabs(got[i] - want[i]));
  return top;
}

// What the library stores, as numbers.
std::vector<float> stored(const TestProblem& t, DType dtype, const Epilogue& epilogue, float scale,
                          int64_t* saturated) {
  Context context(1);
  Guarded out(dtype, {1, 1, kDim});
  ForwardReport report;
  const ForwardOptions two{.plan = {.path = Path::kDirect, .splits = 2}};
  const Status s = forward(t.problem, two, {out.view(), {}, epilogue}, context, &report);
  EXPECT_TRUE(s.ok()) << s.message();
  EXPECT_EQ(report.schedule.most_parts, 2) << "the row is split, in the middle";
  *saturated = report.counters.saturated;
  std::vector<float> x;
  for (int64_t d = 0; d < kDim; ++d) x.push_back(number_at(out, 0, 0, d) * scale);
  return x;
}

TEST(EpilogueOrder, ACastOfEachPartMissesTheTolerance) {
  const TestProblem t = cancelling();
  const Halves halves;
  // The results are about 1: half a step of e4m3 there, and some float32 noise of the parts.
  double tolerance = 1e-4;
  for (const double x : halves.exact) tolerance = std::max(tolerance, 1e-4 + std::fabs(x) / 16);
  int64_t saturated = -1;
  EXPECT_LE(worst(stored(t, DType::kF8E4M3, {}, 1, &saturated), halves.exact), tolerance);
  EXPECT_EQ(saturated, 0);
  const std::vector<float> early =
      halves.merged(coded<E4M3Codes>(halves.part[0], 1), coded<E4M3Codes>(halves.part[1], 1));
  EXPECT_GT(worst(early, halves.exact), 5 * tolerance);
}

TEST(EpilogueOrder, CodesOfEachPartMissTheTolerance) {
  const TestProblem t = cancelling();
  const Halves halves;
  float largest = 0, part_largest = 0;
  for (const double x : halves.exact) largest = std::max(largest, static_cast<float>(std::fabs(x)));
  for (const float x : halves.part[0]) part_largest = std::max(part_largest, std::fabs(x));
  const double tolerance = largest / 127 / 2 + 1e-4;
  std::vector<float> row_scale(1);
  Epilogue dynamic;
  dynamic.out_scale = mutable_view(row_scale.data(), DType::kF32, {1, 1});
  int64_t saturated = -1;
  std::vector<float> late = stored(t, DType::kI8, dynamic, 1, &saturated);
  for (float& x : late) x *= row_scale[0];
  EXPECT_LE(worst(late, halves.exact), tolerance);
  const float scale = scale_for<Int8Codes>(part_largest);
  const std::vector<float> early =
      halves.merged(coded<Int8Codes>(halves.part[0], scale), coded<Int8Codes>(halves.part[1], scale));
  EXPECT_GT(worst(early, halves.exact), 5 * tolerance);
}

// A static scale that is right for the result is far too small for its parts: they saturate, the row does
// not.
TEST(EpilogueOrder, ScaleGateAndSaturationActOnTheRow) {
  const TestProblem t = cancelling();
  const Halves halves;
  const float gate = 2, factor = 0.5f, scale = 0.02f;
  Epilogue e;
  e.scale = factor;
  e.gate = dense_view(&gate, DType::kF32, {1, 1});
  e.static_scale = dense_view(&scale, DType::kF32, {});
  int64_t saturated = -1;
  EXPECT_LE(worst(stored(t, DType::kI8, e, scale, &saturated), halves.exact), scale / 2 + 1e-4);
  EXPECT_EQ(saturated, 0);
  int64_t lost = 0;
  std::vector<float> gated[2] = {halves.part[0], halves.part[1]};
  for (std::vector<float>& part : gated)
    for (float& x : part) x = x * factor * gate;
  const std::vector<float> early =
      halves.merged(coded<Int8Codes>(gated[0], scale, &lost), coded<Int8Codes>(gated[1], scale, &lost));
  EXPECT_EQ(lost, 2 * kDim) << "every value of both parts";
  EXPECT_GT(worst(early, halves.exact), 0.5);
}

}  // namespace
}  // namespace tamis
