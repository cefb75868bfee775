// kernels/cpu/panel.h and the bf16 half of pack.h on every instruction set, against plain loops.
#include <cmath>

#include "core/float_formats.h"
#include "kernels/vectors_support.h"
#include "support/numbers.h"
#include "support/spec.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/
using cpu::PanelCase;

class Panels : public Vectors {};

INSTANTIATE_TEST_SUITE_P(Each, Panels, ::testing::ValuesIn(vector_tables()),
                         [](const auto& isa) { return std::string(isa.param->name); });

constexpr float kGap = -77.f;

// Numbers small enough that all products and sums are exact, whatever their order.
float small(int64_t i, int64_t j, uint64_t seed) {
  return static_cast<float>(static_cast<int>(noise(seed, i, j, 0) * 8));
}

int round_up(int x, int to) { return (x + to - 1) / to * to; }

// Sizes around every micro tile.
std::vector<int> columns_of(int width) {
  return {1,         3,         width - 1,     width,         width + 1,
          2 * width, 4 * width, 4 * width + 1, 5 * width - 1, 9 * width + 2};
}

struct Operands {
  std::vector<float> a, b, c, scale;
  int rows, columns, depth, a_row, a_step, b_stride, c_stride;

  // `across`: A lies with its rows side by side, as the pass over keys reads it.
  Operands(int rows_, int columns_, int depth_, int width, bool across)
      : rows(rows_),
        columns(columns_),
        depth(depth_),
        a_row(across ? 1 : depth + 3),
        a_step(across ? rows + 2 : 1),
        b_stride(round_up(columns, width) + width),
        c_stride(columns + 3) {
    a.assign(static_cast<size_t>(rows * a_row + depth * a_step + 1), NAN);
    b.assign(static_cast<size_t>(depth * b_stride + width),
             NAN);  // what is behind the columns reaches nobody
    c.assign(static_cast<size_t>(rows * c_stride), kGap);
    for (int r = 0; r < rows; ++r) scale.push_back(static_cast<float>(r % 3) - 1);
    for (int r = 0; r < rows; ++r)
      for (int s = 0; s < depth; ++s) a[r * a_row + s * a_step] = small(r, s, 1);
    for (int s = 0; s < depth; ++s)
      for (int n = 0; n < columns; ++n) b[s * b_stride + n] = small(s, n, 2);
    for (int r = 0; r < rows; ++r)
      for (int n = 0; n < columns; ++n) c[r * c_stride + n] = small(r, n, 3);
  }
  float before(int start, int r, int n) const {
    return start == 0 ? 0 : start == 1 ? scale[r] * small(r, n, 3) : small(r, n, 3);
  }
};

TEST_P(Panels, OfFloats) {
  for (const bool across : {false, true})
    for (const int start : {0, 1, 2})
      for (const int rows : {1, 2, 3, 5, 6, 7, 11, 12, 48})
        for (const int columns : columns_of(width()))
          for (const int depth : {0, 1, 2, 7, 64}) {
            Operands x(rows, columns, depth, width(), across);
            if (start == 0)  // nothing is read
              for (int r = 0; r < rows; ++r) std::fill_n(&x.c[r * x.c_stride], columns, NAN);
            v().panel({start, x.a.data(), x.a_row, x.a_step, rows, x.b.data(), x.b_stride, depth,
                       x.scale.data(), x.c.data(), x.c_stride, columns});
            for (int r = 0; r < rows; ++r)
              for (int n = 0; n < x.c_stride; ++n) {
                float want = kGap;
                if (n < columns) want = x.before(start, r, n);
                for (int s = 0; n < columns && s < depth; ++s) want += small(r, s, 1) * small(s, n, 2);
                ASSERT_EQ(x.c[r * x.c_stride + n], want) << rows << " x " << columns << " x " << depth
                                                         << ", start " << start << ": " << r << ' ' << n;
              }
          }
}

// A number does not depend on the rows and columns beside it: inexact products, bit for bit.
TEST_P(Panels, KeepTheirOrder) {
  constexpr int rows = 13, depth = 37;
  const int columns = 9 * width() + 2, stride = round_up(columns, width());
  std::vector<float> a(rows * depth), b(static_cast<size_t>(depth * stride)),
      all(static_cast<size_t>(rows * columns)), one(static_cast<size_t>(rows * columns));
  for (size_t i = 0; i < a.size(); ++i) a[i] = std::sin(static_cast<float>(i));
  for (size_t i = 0; i < b.size(); ++i) b[i] = std::cos(static_cast<float>(i));
  v().panel({0, a.data(), depth, 1, rows, b.data(), stride, depth, nullptr, all.data(), columns, columns});
  for (int r = 0; r < rows; ++r)
    for (int n = 0; n < columns; n += width())
      v().panel({0, &a[r * depth], depth, 1, 1, &b[n], stride, depth, nullptr, &one[r * columns + n], columns,
                 std::min(width(), columns - n)});
  EXPECT_EQ(all, one);
}

// Pairs of bf16 along the depth; sums of small integers are exact here too.
TEST_P(Panels, OfPairs) {
  if (v().panel_pairs == nullptr) return;  // Vectors.AreThoseOfTheLibrary tells who has them
  const auto pair = [](float low, float high) {
    return uint32_t{float_to_bf16(low)} | uint32_t{float_to_bf16(high)} << 16;
  };
  for (const bool across : {false, true})
    for (const int start : {0, 1, 2})
      for (const int rows : {1, 2, 3, 6, 7, 48})
        for (const int columns : columns_of(width()))
          for (const int steps : {0, 1, 5, 32}) {
            Operands x(rows, columns, steps, width(), across);
            std::vector<uint32_t> a(x.a.size(), 0x7FC07FC0), b(x.b.size(), 0x7FC07FC0);
            for (int s = 0; s < steps; ++s) {
              for (int r = 0; r < rows; ++r)
                a[r * x.a_row + s * x.a_step] = pair(small(r, 2 * s, 1), small(r, 2 * s + 1, 1));
              for (int n = 0; n < columns; ++n)
                b[s * x.b_stride + n] = pair(small(2 * s, n, 2), small(2 * s + 1, n, 2));
            }
            v().panel_pairs({start, a.data(), x.a_row, x.a_step, rows, b.data(), x.b_stride, steps,
                             x.scale.data(), x.c.data(), x.c_stride, columns});
            for (int r = 0; r < rows; ++r)
              for (int n = 0; n < x.c_stride; ++n) {
                float want = kGap;
                if (n < columns) want = x.before(start, r, n);
                for (int s = 0; n < columns && s < 2 * steps; ++s) want += small(r, s, 1) * small(s, n, 2);
                ASSERT_EQ(x.c[r * x.c_stride + n], want) << rows << " x " << columns << " x " << steps;
              }
          }
}

TEST_P(Panels, PairsOfRows) {
  if (v().join_pairs == nullptr) return;
  for (const int count : {1, 2, 3, 63, 64})
    for (const int dim : {1, 2, 15, 16, 17, 33}) {
      std::vector<std::vector<uint16_t>> rows;  // of exactly their length
      std::vector<const uint16_t*> at;
      for (int c = 0; c < count; ++c) {
        rows.emplace_back();
        for (int d = 0; d < dim; ++d) rows.back().push_back(float_to_bf16(small(c, d, 4)));
      }
      for (const auto& row : rows) at.push_back(row.data());
      const int stride = round_up(dim, 16) + 4, pairs = (count + 1) / 2;
      std::vector<uint32_t> to(static_cast<size_t>(pairs * stride), 0xDEADBEEF);
      EXPECT_EQ(v().join_pairs(at.data(), count, dim, to.data(), stride), 0u);
      for (int c = 0; c < 2 * pairs; ++c)
        for (int d = 0; d < dim; ++d)
          ASSERT_EQ(static_cast<uint16_t>(to[c / 2 * stride + d] >> (c % 2 * 16)), c < count ? rows[c][d] : 0)
              << count << " rows of " << dim << ": " << c << ' ' << d;
      for (int c = 0; c < pairs; ++c) {
        for (int d = dim; d < stride; ++d)
          ASSERT_EQ(to[c * stride + d], d < stride - 4 ? 0 : 0xDEADBEEF) << "behind the row";
      }
      for (const uint16_t bad : {0x7F80, 0xFF80, 0x7FC0, 0x7F81, 0xFFFF})
        for (const int c : {0, count / 2, count - 1})
          for (const int d : {0, dim - 1}) {
            const uint16_t good = rows[c][d];
            rows[c][d] = bad;
            ASSERT_EQ(v().join_pairs(at.data(), count, dim, to.data(), stride), uint64_t{1} << c);
            rows[c][d] = 0x7F7F;  // the largest number
            ASSERT_EQ(v().join_pairs(at.data(), count, dim, to.data(), stride), 0u);
            rows[c][d] = good;
          }
      if (dim % 2 != 0) continue;
      const int columns = round_up(count, width());
      std::vector<uint32_t> across(static_cast<size_t>(dim / 2 * 64), 0xDEADBEEF);
      v().transpose_pairs(at.data(), count, dim, across.data());
      for (int d = 0; d < dim; ++d)
        for (int c = 0; c < columns; ++c)
          ASSERT_EQ(static_cast<uint16_t>(across[d / 2 * 64 + c] >> (d % 2 * 16)),
                    c < count ? rows[c][d] : 0);
    }
}

}  // namespace
}  // namespace tamis
