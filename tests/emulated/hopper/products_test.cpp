// Products of warpgroups, with operands laid out as an attention kernel has them: queries in atoms of 8 rows,
// tiles of keys and values as [groups of 8 tokens][halves of 64 columns][8 rows][128 bytes].
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "emulated/hopper/says.h"
#include "kernels/cuda/device/hopper.cuh"

namespace tamis {
namespace {

using emulated::Report;
using emulated::run;
using emulated::says;
using namespace device;  // NOLINT: what is called here

float value(int i, int j, int salt) { return static_cast<float>((i * 37 + j * 11 + salt * 5) % 23 - 11) / 8; }

template <class T>
void put(char* shared, uint32_t offset, float x) {  // into the permuted place
  const uint32_t at = offset ^ (offset >> 7 & 7) << 4;
  const uint32_t pair = T::pair(x, 0);
  std::memcpy(shared + at, &pair, 2);
}

// Where element (token, column) of a tile lies.
uint32_t in_tile(int token, int column, int halves) {
  return static_cast<uint32_t>((token / 8 * halves + column / 64) * 1024 + token % 8 * 128 + column % 64 * 2);
}

// S = Q K^T over kColumns columns for kTokens tokens, then O = S16 V with S rounded, in two groups.
template <class T, int kTokens, int kColumns>
void products(uint64_t seed) {
  constexpr int kHalves = kColumns / 64;
  constexpr uint32_t kQuery = 0, kKeys = 64 * 128 * kHalves, kTile = kTokens * kColumns * 2,
                     kValues = kKeys + kTile;
  std::vector<float> scores(64 * kTokens), out(64 * kColumns);
  const auto row_of = [](int i) {
    return static_cast<int>(16 * (threadIdx.x / 32) + threadIdx.x % 32 / 4) + i / 2 % 2 * 8;
  };
  const auto column_of = [](int i) { return i / 4 * 8 + static_cast<int>(threadIdx.x % 4) * 2 + i % 2; };
  const Report report =
      run({.threads = 128, .shared_bytes = kValues + kTile, .seed = seed}, [&](char* shared) {
        const int t = static_cast<int>(threadIdx.x);
        for (int i = t; i < 64 * kColumns; i += 128) {
          const int row = i / kColumns, column = i % kColumns;
          put<T>(shared, kQuery + static_cast<uint32_t>(column / 64 * 64 * 128 + row * 128 + column % 64 * 2),
                 value(row, column, 1));
        }
        for (int i = t; i < kTokens * kColumns; i += 128) {
          const int token = i / kColumns, column = i % kColumns;
          put<T>(shared, kKeys + in_tile(token, column, kHalves), value(token, column, 2));
          put<T>(shared, kValues + in_tile(token, column, kHalves), value(token, column, 3));
        }
        fence_async();
        __syncthreads();
        const uint32_t base = shared_address(shared);
        float s[kTokens / 2], o[kColumns / 2];
        for (float& x : s) x = 99;
        products_fence();
        for (uint32_t k = 0; k < kColumns / 16; ++k) {
          const uint64_t a = matrix(base + kQuery + k / 4 * 64 * 128 + k % 4 * 32, 0, 1024);
          const uint64_t b = matrix(base + kKeys + k / 4 * 1024 + k % 4 * 32, 0, kHalves * 1024);
          multiply_ss(T{}, s, a, b, k > 0);
        }
        products_commit();
        EXPECT_TRUE(std::isnan(s[3]));
        products_wait<0>();
        settle(s);
        uint32_t p[kTokens / 4];
        for (int i = 0; i < kTokens / 2; ++i) {
          scores[static_cast<size_t>(row_of(i) * kTokens + column_of(i))] = s[i];
          if (i % 2 == 1) p[i / 2] = T::pair(s[i - 1], s[i]);
        }
        for (float& x : o) x = 0.5f;
        products_fence();
        for (uint32_t k = 0; k < kTokens / 16; ++k) {
          const uint64_t b = matrix(base + kValues + k * 2 * kHalves * 1024, 1024, kHalves * 1024);
          multiply_rs(T{}, o, p + 4 * k, b, 1);
          if (k == 1) products_commit();
        }
        products_commit();
        products_wait<1>();
        EXPECT_TRUE(std::isnan(o[1]));  // the second group adds to it
        products_wait<0>();
        settle(o);
        for (int i = 0; i < kColumns / 2; ++i)
          out[static_cast<size_t>(row_of(i) * kColumns + column_of(i))] = o[i];
      });
  ASSERT_TRUE(report.ok()) << report.error;
  for (int row = 0; row < 64; ++row) {
    std::vector<double> want(kColumns, 0.5), size(kColumns, 1);
    for (int token = 0; token < kTokens; ++token) {
      float score = 0;  // exact in any order
      for (int c = 0; c < kColumns; ++c) score += value(row, c, 1) * value(token, c, 2);
      ASSERT_EQ(scores[static_cast<size_t>(row * kTokens + token)], score) << row << ", " << token;
      const uint32_t pair = T::pair(score, 0);
      const float weight = std::is_same_v<T, BF16> ? bf16_to_float(static_cast<uint16_t>(pair))
                                                   : f16_to_float(static_cast<uint16_t>(pair));
      for (int c = 0; c < kColumns; ++c) {
        const size_t at = static_cast<size_t>(c);
        want[at] += double{weight} * value(token, c, 3);
        size[at] += std::abs(double{weight} * value(token, c, 3));
      }
    }
    for (int c = 0; c < kColumns; ++c)
      ASSERT_NEAR(out[static_cast<size_t>(row * kColumns + c)], want[static_cast<size_t>(c)],
                  1e-5 * size[static_cast<size_t>(c)]);
  }
}

TEST(HopperProducts, AreThoseOfPlainMatrices) {
  for (uint64_t seed = 0; seed < 3; ++seed) {
    products<BF16, 64, 64>(seed);
    products<BF16, 128, 128>(seed);
    products<BF16, 64, 128>(seed);
    products<F16, 128, 64>(seed);
    products<F16, 128, 128>(seed);
  }
}

// A warpgroup with zeros in shared memory; `body` does its products, of N = 64.
Report with_zeros(const std::function<void(float (&d)[32], uint64_t operand)>& body, uint64_t seed = 0) {
  return run({.threads = 128, .shared_bytes = 8192, .seed = seed}, [&](char* shared) {
    for (unsigned i = threadIdx.x; i < 8192; i += 128) shared[i] = 0;
    fence_async();
    __syncthreads();
    float d[32] = {};
    body(d, matrix(shared_address(shared), 1024, 1024));
  });
}

TEST(HopperProducts, WrongUsesAreReported) {
  EXPECT_TRUE(says(with_zeros([](float(&d)[32], uint64_t m) { multiply_ss(BF16{}, d, m, m, 0); }),
                   "without products_fence()"));
  EXPECT_TRUE(says(with_zeros([](float(&d)[32], uint64_t m) {
                     products_fence();
                     uint32_t a[4] = {};
                     multiply_rs(BF16{}, d, a, m, 0);
                     products_commit();
                     if (threadIdx.x == 77) a[2] = 5;
                     products_wait<0>();
                   }),
                   "registers of A were changed"));
  EXPECT_TRUE(says(with_zeros([](float(&d)[32], uint64_t m) {
                     products_fence();
                     multiply_ss(BF16{}, d, m, m, 0);
                     products_commit();
                     d[0] = 1;
                     products_wait<0>();
                   }),
                   "an accumulator was written"));
  EXPECT_TRUE(says(with_zeros([](float(&d)[32], uint64_t m) {
                     products_fence();
                     multiply_ss(BF16{}, d, m, m, 0);
                     products_commit();
                   }),
                   "ended while products were under way"));
  EXPECT_TRUE(says(with_zeros([](float(&d)[32], uint64_t m) {
                     products_fence();
                     multiply_ss(BF16{}, d, m + (threadIdx.x == 3 ? 2 : 0), m, 0);
                     __syncthreads();
                   }),
                   "ask for different products"));
  EXPECT_TRUE(says(with_zeros([](float(&d)[32], uint64_t m) {
                     products_fence();
                     multiply_ss(BF16{}, d, m, m, 0);
                     if (threadIdx.x != 3) products_commit();
                     products_wait<0>();
                     __syncthreads();
                   }),
                   "group 0, which 127 of 128 threads committed"));
  EXPECT_TRUE(says(with_zeros([](float(&d)[32], uint64_t m) {
                     products_fence();
                     multiply_ss(BF16{}, d, m + 64, m, 0);  // + 1024 bytes: the last rows lie outside
                     products_commit();
                     products_wait<0>();
                   }),
                   "not in shared memory"));
  EXPECT_TRUE(says(with_zeros([](float(&d)[32], uint64_t m) {
                     products_fence();
                     multiply_ss(BF16{}, d, m ^ uint64_t{3} << 62, m, 0);
                     products_commit();
                     products_wait<0>();
                   }),
                   "not of 128-byte lines"));
}

TEST(HopperProducts, NeedAFenceBehindCopiesOfThreads) {
  alignas(16) static const char zeros[16] = {};
  const auto with = [&](auto write, bool writer_fences, bool reader_fences) {
    return with_zeros([=](float(&d)[32], uint64_t m) {
      if (threadIdx.x / 32 == 1) {
        write();
        if (writer_fences) fence_async();
      }
      __syncthreads();
      if (reader_fences) fence_async();
      products_fence();
      multiply_ss(BF16{}, d, m, m, 0);
      products_commit();
      products_wait<0>();
    });
  };
  const auto copy = [] {
    copy_async(1024 + 16 * threadIdx.x, zeros);
    copy_commit();
    copy_wait<0>();
  };
  const auto store = [] { store_matrix(1024 + 16 * threadIdx.x, {0, 0, 0, 0}); };
  for (int i = 1; i < 4; ++i) {
    EXPECT_EQ(with(copy, i % 2 == 1, i / 2 == 1).error, "");
    EXPECT_EQ(with(store, i % 2 == 1, i / 2 == 1).error, "");
  }
  EXPECT_TRUE(says(with(copy, false, false), "wrote without fence_async()"));
  EXPECT_TRUE(says(with(store, false, false), "wrote without fence_async()"));
}

// Shared memory that is reused before the wait is read too late for some seed, and read in time for another.
TEST(HopperProducts, ReadSharedMemoryLate) {
  int changed = 0, kept = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Report report = run({.threads = 128, .shared_bytes = 8192, .seed = seed}, [&](char* shared) {
      const unsigned t = threadIdx.x;
      const uint16_t one = 0x3F80;
      for (unsigned i = t; i < 4096; i += 128) std::memcpy(shared + 2 * i, &one, 2);
      __syncthreads();
      float d[32] = {};
      const uint64_t m = matrix(shared_address(shared), 1024, 1024);
      products_fence();
      multiply_ss(BF16{}, d, m, m, 0);
      products_commit();
      __syncthreads();
      for (unsigned i = t; i < 8192; i += 128) shared[i] = 0;
      products_wait<0>();
      if (t == 0) ++(d[0] == 16 ? kept : changed);
    });
    ASSERT_TRUE(report.ok()) << report.error;
  }
  EXPECT_GT(changed, 0);
  EXPECT_GT(kept, 0);
}

}  // namespace
}  // namespace tamis
