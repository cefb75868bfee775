#include <algorithm>
#include <cmath>
#include <limits>

#include "tamis/explain.h"

namespace tamis {
namespace {

// NaN compares false, so a plain minimum would lose it.
double smaller(double a, double b) { return std::isnan(b) || b < a ? b : a; }

double share(double sparse, double full) {
  if (full == -std::numeric_limits<double>::infinity()) return 1;  // nothing there, nothing lost
  return std::exp(sparse - full);
}

}  // namespace

// Without rows both are 1: nothing was lost. A share is not clipped: one above 1 tells of a wrong LSE.
KeptMass kept_mass(const std::vector<double>& lse_sparse, const std::vector<double>& lse_full,
                   int64_t q_heads) {
  if (q_heads < 1) return {};
  KeptMass mass{.mean = std::vector<double>(q_heads, 0.0), .min = std::vector<double>(q_heads, 1.0)};
  const int64_t rows = std::min(lse_sparse.size(), lse_full.size()) / q_heads;
  for (int64_t h = 0; h < q_heads; ++h) {
    for (int64_t i = 0; i < rows; ++i) {
      const double kept = share(lse_sparse[i * q_heads + h], lse_full[i * q_heads + h]);
      mass.mean[h] += kept;
      mass.min[h] = i == 0 ? kept : smaller(mass.min[h], kept);
    }
    mass.mean[h] = rows > 0 ? mass.mean[h] / static_cast<double>(rows) : 1;
  }
  return mass;
}

}  // namespace tamis
