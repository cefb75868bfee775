// Backward, pass over keys: one run of neighbouring slots against the query rows of one task. Rows are summed
// in their order, so a run's sum does not depend on who adds it.
#pragma once

#include "kernels/cpu/backward_args.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/panel.h"

namespace tamis::cpu::TAMIS_ISA {

// to [length, stride] += edges^T [length, rows] rows [rows, dim].
TAMIS_INLINE void add_product(const KeyPassArgs& a, const char* edges, const char* rows, int64_t rows_stride,
                              float* to, int64_t stride, int64_t dim) {
  const int64_t depth = a.stored.depth(), at = a.tile * depth * kTile + a.column;
#if defined(__AVX512BF16__)
  if (a.stored.pairs)
    return panel<BF16Step, Start::kAdd>({reinterpret_cast<const uint32_t*>(edges) + at, 1, kTile}, a.length,
                                        {reinterpret_cast<const uint32_t*>(rows), rows_stride, depth},
                                        nullptr, to, stride, dim);
#endif
  panel<F32Step, Start::kAdd>({reinterpret_cast<const float*>(edges) + at, 1, kTile}, a.length,
                              {reinterpret_cast<const float*>(rows), rows_stride, depth}, nullptr, to, stride,
                              dim);
}

// Element (r, i) of an array stored by rows or by pairs of rows.
TAMIS_INLINE float stored_at(const Stored& s, const char* data, int64_t row_units, int64_t r, int64_t i) {
  if (!s.pairs) return reinterpret_cast<const float*>(data)[r * row_units + i];
  uint32_t unit;
  memcpy(&unit, data + 4 * (r / 2 * row_units + i), sizeof unit);
  unit = r % 2 == 0 ? unit << 16 : unit & 0xFFFF0000;
  float x;
  memcpy(&x, &unit, sizeof x);
  return x;
}

// The same, by rows that select the column only: some row of Q or dO is not finite.
inline void add_one_by_one(const KeyPassArgs& a, const char* edges, const char* rows, int64_t rows_stride,
                           float* to, int64_t stride, int64_t dim) {
  const Stored& s = a.stored;
  const char* tile = edges + 4 * a.tile * s.depth() * kTile;
  for (int c = a.column; c < a.column + a.length; ++c, to += stride)
    for (int r = 0; r < s.rows; ++r) {
      if ((s.bits[int64_t{a.tile} * s.groups + a.group_of[r]] >> c & 1) == 0) continue;
      const float weight = stored_at(s, tile, kTile, r, c);
      for (int64_t d = 0; d < dim; ++d) to[d] += weight * stored_at(s, rows, rows_stride, r, d);
    }
}

inline void key_pass(const KeyPassArgs& a) {
  const Stored& s = a.stored;
  if (*s.one_by_one) {
    add_one_by_one(a, s.p, s.g, s.g_stride, a.dv, a.dv_stride, a.v_head_dim);
    add_one_by_one(a, s.ds, s.q, s.q_stride, a.dk, a.dk_stride, a.head_dim);
    return;
  }
  add_product(a, s.p, s.g, s.g_stride, a.dv, a.dv_stride, a.v_head_dim);
  add_product(a, s.ds, s.q, s.q_stride, a.dk, a.dk_stride, a.head_dim);
}

}  // namespace tamis::cpu::TAMIS_ISA
