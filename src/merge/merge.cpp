// Merging finished results on the host: normalized (O, LSE) pairs, and gated branches.
#include "tamis/merge.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/checks.h"
#include "merge/state.h"

namespace tamis {
namespace {

constexpr float kLn2 = 0.693147180559945309f, kLog2E = 1.44269504088896341f;

using Arrays = std::span<const float* const>;

// `factors` is one array of [rows] for each of `outs`.
Status check(Arrays outs, const char* factors_name, Arrays factors, int64_t rows, int64_t dim,
             const float* out) {
  if (rows < 0) return invalid("rows", rows, " is negative");
  if (dim < 0) return invalid("dim", dim, " is negative");
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / int64_t{sizeof(float)};
  if (dim > 0 && rows > kMost / dim) return invalid("rows", rows, " of ", dim, " values exceed any memory");
  if (factors.size() != outs.size())
    return invalid(factors_name, factors.size(), " arrays for ", outs.size(), " outs");
  if (rows == 0) return {};
  for (size_t s = 0; s < outs.size(); ++s) {
    if (dim > 0 && outs[s] == nullptr) return invalid("outs", "array ", s, " is null");
    if (factors[s] == nullptr) return invalid(factors_name, "array ", s, " is null");
  }
  if (dim > 0 && out == nullptr) return invalid("out", "is null");
  return {};
}

// out[d] = sum over s, in order, of weight_of(s) * outs[s][at + d]; weight 0 skips its array. Sums a piece of
// the row at a time in a local array, so that `out` may be one of `outs` and the inner loop runs over
// neighbours.
template <class WeightOf>
void weighted_sum(Arrays outs, int64_t at, int64_t dim, WeightOf weight_of, float* out) {
  constexpr int64_t kPiece = 128;
  for (int64_t first = 0; first < dim; first += kPiece) {
    const int64_t count = std::min(kPiece, dim - first);
    float sum[kPiece] = {};
    for (size_t s = 0; s < outs.size(); ++s) {
      const float weight = weight_of(s);
      if (weight == 0.f) continue;
      const float* from = outs[s] + at + first;
      for (int64_t d = 0; d < count; ++d) sum[d] += weight * from[d];
    }
    std::copy_n(sum, count, out + at + first);
  }
}

}  // namespace

// A finished result is the state (LSE, 1, O). Only m and l are joined; O is then summed with its final weight
// exp(LSE_s - m) / l, which equals the exp(LSE_s - LSE) of section 5 without the rounding of LSE: at LSE 1000
// that alone would cost every weight 3e-5.
Status merge_states(std::span<const float* const> outs, std::span<const float* const> lses, int64_t rows,
                    int64_t dim, float* out, float* lse) {
  TAMIS_RETURN_IF_ERROR(check(outs, "lses", lses, rows, dim, out));
  if (rows > 0 && lse == nullptr) return invalid("lse", "is null");
  for (int64_t row = 0; row < rows; ++row) {
    float m = -INFINITY, l = 0.f;
    for (const float* part : lses) join(m, l, part[row], part[row] == -INFINITY ? 0.f : 1.f);
    const auto weight_of = [&](size_t s) {
      return lses[s][row] == -INFINITY ? 0.f : expf(lses[s][row] - m) / l;
    };
    weighted_sum(outs, row * dim, dim, weight_of, out);
    lse[row] = finish_lse(m, l);  // last, so that `lse` may be one of `lses`
  }
  return {};
}

Status gated_sum(std::span<const float* const> outs, std::span<const float* const> gates, int64_t rows,
                 int64_t dim, float* out) {
  TAMIS_RETURN_IF_ERROR(check(outs, "gates", gates, rows, dim, out));
  for (int64_t row = 0; row < rows; ++row)
    weighted_sum(
        outs, row * dim, dim, [&](size_t s) { return gates[s][row]; }, out);
  return {};
}

float lse_from_base2(float lse) { return lse * kLn2; }
float lse_to_base2(float lse) { return lse * kLog2E; }

}  // namespace tamis
