// Problems and readers for tests of what happens at the store: epilogues and slots.
#pragma once

#include <functional>

#include "attention/runs.h"
#include "core/codes.h"

namespace tamis::testing {

inline constexpr ForwardOptions kWhole{.plan = {.path = Path::kDirect, .splits = 1}};
inline constexpr ForwardOptions kThree{.plan = {.path = Path::kDirect, .splits = 3}};

// Three requests, the middle one without queries; 5 queries of 4 heads; the last query has an empty set.
inline TestProblem stored_problem(double size = 1) {
  TestProblem t({.kv_len = {150, 9, 40},
                 .q_len = {3, 0, 2},
                 .q_heads = 4,
                 .kv_heads = 2,
                 .head_dim = 24,
                 .v_head_dim = 19,
                 .page_size = 16,
                 .q = q_noise(1),
                 .k = kv_noise(2),
                 .v = [size](int64_t b, int64_t token, int64_t h, int64_t d) {
                   return size * noise(3, b, token, h, d);
                 }});
  t.problem.candidates.index_heads = 4;
  Rows rows(20);
  for (int32_t r = 0; r < 16; ++r)
    for (int32_t token = r % 4; token < (r < 12 ? 140 : 36); token += 1 + r % 3) rows[r].push_back(token);
  t.csr(rows);
  return t;
}
inline constexpr int64_t kQueries = 5, kQHeads = 4, kDv = 19;

// An f32 array over [total_q, Hq].
struct PerRow {
  explicit PerRow(const std::function<double(int64_t query, int64_t head)>& f) {
    for (int64_t i = 0; i < kQueries; ++i)
      for (int64_t h = 0; h < kQHeads; ++h) values.push_back(static_cast<float>(f(i, h)));
  }
  TensorView view() const { return dense_view(values.data(), DType::kF32, {kQueries, kQHeads}); }
  float at(int64_t i, int64_t h) const { return values[i * kQHeads + h]; }
  std::vector<float> values;
};

// Every element of an output: the bits, and what they mean as a number or a code.
inline uint32_t bits_at(const Guarded& out, int64_t i, int64_t h, int64_t d) {
  const MutableTensorView& v = out.view();
  const int64_t at = i * v.stride[0] + h * v.stride[1] + d * v.stride[2];
  if (v.dtype == DType::kF32) return static_cast<const uint32_t*>(v.data)[at];
  if (dtype_bytes(v.dtype) == 2) return static_cast<const uint16_t*>(v.data)[at];
  return static_cast<const uint8_t*>(v.data)[at];
}
inline float number_at(const Guarded& out, int64_t i, int64_t h, int64_t d) {
  const uint32_t bits = bits_at(out, i, h, d);
  switch (out.view().dtype) {
    case DType::kF32:
      return bits_float(bits);
    case DType::kF16:
      return f16_to_float(static_cast<uint16_t>(bits));
    case DType::kBF16:
      return bf16_to_float(static_cast<uint16_t>(bits));
    case DType::kF8E4M3:
      return E4M3Codes::decode(static_cast<uint8_t>(bits));
    case DType::kF8E5M2:
      return E5M2Codes::decode(static_cast<uint8_t>(bits));
    default:
      return Int8Codes::decode(static_cast<uint8_t>(bits));
  }
}
// The bits of x in a dtype.
inline uint32_t bits_of(DType dtype, float x) {
  switch (dtype) {
    case DType::kF32:
      return float_bits(x);
    case DType::kF16:
      return float_to_f16(x);
    case DType::kBF16:
      return float_to_bf16(x);
    case DType::kF8E4M3:
      return E4M3Codes::encode(x);
    case DType::kF8E5M2:
      return E5M2Codes::encode(x);
    default:
      return Int8Codes::encode(x);
  }
}

inline void for_each_value(const std::function<void(int64_t i, int64_t h, int64_t d)>& f) {
  for (int64_t i = 0; i < kQueries; ++i)
    for (int64_t h = 0; h < kQHeads; ++h)
      for (int64_t d = 0; d < kDv; ++d) f(i, h, d);
}

// O in f32 of a problem: what an epilogue starts from.
struct PlainRun {
  PlainRun(const Problem& p, const ForwardOptions& options, Context& context)
      : out(DType::kF32, {kQueries, kQHeads, kDv}), lse(DType::kF32, {kQueries, kQHeads}) {
    const Status s = forward(p, options, {out.view(), lse.view()}, context);
    EXPECT_TRUE(s.ok()) << s.message();
  }
  float o(int64_t i, int64_t h, int64_t d) const { return number_at(out, i, h, d); }
  Guarded out, lse;
};

}  // namespace tamis::testing
