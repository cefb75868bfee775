// The ceilings' loops in every instruction set of this machine.
#include "bench/stream.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "bench/ceilings.h"
#include "bench/data.h"

namespace tamis::bench {
namespace {

std::vector<const StreamIsa*> here() {
  std::vector<const StreamIsa*> all{&kStreamPlain};
  for (const std::string& name : cpu_isas()) {
#if defined(__x86_64__)
    if (name == kStreamAvx2.name) all.push_back(&kStreamAvx2);
    if (name == kStreamAvx512.name) all.push_back(&kStreamAvx512);
#endif
  }
  return all;
}

TEST(Stream, SumsEveryByteOfItsPiecesOnce) {
  Context context(1);
  std::vector<std::byte> memory(1 << 16);
  fill(memory.data(), memory.size() / 4, DType::kF32, 9, context);
  for (const int64_t row_bytes : {64, 128, 256, 320, 1024})  // whole and broken groups of four lines
    for (const int64_t rows : {1, 3}) {
      Pieces pieces{.at = {}, .rows = rows, .row_bytes = row_bytes, .row_stride = row_bytes + 192};
      uint64_t want = 0;
      for (int64_t i = 0; i < 9; ++i) {
        const std::byte* at = memory.data() + i * 5 * 1024;
        pieces.at.push_back(at);
        if (i < 2 || i >= 8) continue;
        for (int64_t row = 0; row < rows; ++row)
          for (int64_t byte = 0; byte < row_bytes; byte += 8) {
            uint64_t word;
            memcpy(&word, at + row * pieces.row_stride + byte, 8);
            want += word;
          }
      }
      for (const StreamIsa* isa : here())
        for (const int64_t ahead : {0, 1, 100})
          EXPECT_EQ(isa->read(pieces, 2, 8, ahead), want) << isa->name << ' ' << row_bytes << ' ' << ahead;
    }
}

TEST(Stream, MultipliesABlock) {
  Context context(1);
  for (const StreamIsa* isa : here()) {
    const int64_t m = isa->rows, n = isa->columns, k = 40, stride = n + 3;
    std::vector<float> a(m * k), b(k * n), c(m * stride, 1.f);
    fill(a.data(), m * k, DType::kF32, 1, context);
    fill(b.data(), k * n, DType::kF32, 2, context);
    isa->product(a.data(), k, b.data(), c.data(), stride, k);
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        double want = 1;
        for (int64_t x = 0; x < k; ++x) want += double{a[i * k + x]} * b[x * n + j];
        EXPECT_NEAR(c[i * stride + j], want, 1e-4) << isa->name;
      }
    EXPECT_EQ(c[n], 1.f);  // between rows nothing is written
  }
}

TEST(Ceilings, TheProductIsAProduct) {
  Context context(2);
  const int64_t m = 96, n = 192, k = 512;
  std::vector<float> a(m * k), b(k * n), c(m * n), packed(k * n);
  fill(a.data(), m * k, DType::kF32, 1, context);
  fill(b.data(), k * n, DType::kF32, 2, context);
  product(a.data(), b.data(), c.data(), m, n, k, packed.data(), context);
  for (int64_t i = 0; i < m; i += 5)
    for (int64_t j = 0; j < n; ++j) {
      double want = 0;
      for (int64_t x = 0; x < k; ++x) want += double{a[i * k + x]} * b[x * n + j];
      ASSERT_NEAR(c[i * n + j], want, 1e-3);
    }
}

}  // namespace
}  // namespace tamis::bench
