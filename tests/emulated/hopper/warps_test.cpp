// The emulator's threads: shuffles, votes, barriers of a CTA, and what it says when they are used wrongly.
#include <gtest/gtest.h>

#include <vector>

#include "core/device.cuh"
#include "emulated/hopper/grid.h"
#include "emulated/hopper/says.h"
#include "kernels/cuda/device/hopper.cuh"

namespace tamis {
namespace {

using emulated::Report;
using emulated::run;
using emulated::says;

TEST(HopperWarps, ShufflesAndVotes) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    int wrong = 0;
    const Report report = run({.ctas_x = 3, .threads = 96, .seed = seed}, [&](char*) {
      const unsigned lane = threadIdx.x % 32, all = ~0u;
      const auto expect = [&](bool right) { wrong += !right; };
      expect(__shfl_sync(all, threadIdx.x, 5) == threadIdx.x / 32 * 32 + 5);
      expect(__shfl_sync(all, lane, 1, 8) == lane / 8 * 8 + 1);
      expect(__shfl_xor_sync(all, static_cast<float>(lane), 3) == static_cast<float>(lane ^ 3));
      expect(__shfl_up_sync(all, int64_t{lane} << 33, 2) == int64_t{lane < 2 ? lane : lane - 2} << 33);
      expect(__shfl_down_sync(all, static_cast<int>(lane), 2) ==
             static_cast<int>(lane > 29 ? lane : lane + 2));
      expect(__ballot_sync(all, lane % 3 == 0) == 0x49249249u);
      expect(__any_sync(all, lane == 7) == 1 && __any_sync(all, 0) == 0);
      expect(__all_sync(all, 1) == 1 && __all_sync(all, lane != 7) == 0);
      expect(__reduce_add_sync(all, static_cast<int>(lane) - 16) == -16);
      expect(__reduce_min_sync(all, lane ^ 21) == 0 && __reduce_max_sync(all, -static_cast<int>(lane)) == 0);
      expect(__reduce_or_sync(all, 1u << lane % 4) == 15 && __reduce_and_sync(all, lane | 64) == 64);
      if (lane < 8)  // halves of a warp go their own ways
        expect(__reduce_add_sync(0xFFu, lane) == 28);
      else
        expect(__shfl_sync(0xFFFFFF00u, lane, 9) == 9);
      __syncwarp();
      expect(device::warp_sum(lane) == 496 && device::warp_min(lane + 3) == 3);
    });
    EXPECT_TRUE(report.ok()) << report.error;
    EXPECT_EQ(wrong, 0);
  }
}

TEST(HopperWarps, SumsOverTheCta) {
  int wrong = 0;
  const Report report =
      run({.ctas_x = 2, .ctas_y = 2, .threads = 128, .shared_bytes = 512}, [&](char* shared) {
        const int64_t t = threadIdx.x;
        int64_t* parts = reinterpret_cast<int64_t*>(shared);
        wrong += device::block_sum(t, parts) != 127 * 64;
        wrong += device::block_min(static_cast<uint64_t>(t ^ 96) + blockIdx.y,
                                   reinterpret_cast<uint64_t*>(parts)) != blockIdx.y;
        int64_t total = 0;
        wrong += device::block_prefix(t, parts, &total) != t * (t - 1) / 2;
        wrong += total != 127 * 64 || gridDim.x != 2 || gridDim.y != 2 || blockDim.x != 128;
        wrong += __syncthreads_or(t == 77 && blockIdx.x == 1) != static_cast<int>(blockIdx.x);
        wrong += __syncthreads_and(t != 77 || blockIdx.x == 1) != static_cast<int>(blockIdx.x);
        if (t < 64) return;  // who has ended is not waited for
        __syncthreads();
      });
  EXPECT_TRUE(report.ok()) << report.error;
  EXPECT_EQ(wrong, 0);
}

TEST(HopperWarps, BarriersOfSomeThreads) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    int turn[2] = {}, wrong = 0;
    const Report report = run({.threads = 256, .seed = seed}, [&](char*) {
      const unsigned half = threadIdx.x / 128;
      for (int i = 1; i < 6; ++i) {
        ++turn[half];
        emulated::sync_some(1 + half, 128);
        wrong += turn[half] != 128 * i;
        emulated::sync_some(1 + half, 128);
      }
    });
    EXPECT_TRUE(report.ok()) << report.error;
    EXPECT_EQ(wrong, 0);
  }
}

TEST(HopperWarps, MatricesOfAWarp) {
  int wrong = 0;
  const Report report = run({.threads = 32, .shared_bytes = 4096}, [&](char* shared) {
    const unsigned lane = threadIdx.x;
    uint16_t* elements = reinterpret_cast<uint16_t*>(shared);
    for (unsigned i = lane; i < 256; i += 32) elements[i] = static_cast<uint16_t>(i);
    __syncwarp();
    uint32_t r[4], s[4];
    device::load_matrix(r, device::shared_address(shared + 16 * lane));
    device::load_matrix_transposed(s, device::shared_address(shared + 16 * lane));
    for (unsigned j = 0; j < 4; ++j) {
      const unsigned row = lane / 4, column = lane % 4 * 2;
      wrong += r[j] != (j * 64 + row * 8 + column) * 0x10001 + 0x10000;
      wrong += s[j] != (j * 64 + column * 8 + row) * 0x10001 + 0x80000;
      wrong += device::transpose_matrix(r[j]) != s[j];
    }
    device::store_matrix(device::shared_address(shared + 1024 + 16 * lane), r);
    for (unsigned i = lane; i < 256; i += 32) wrong += elements[512 + i] != i;
  });
  EXPECT_TRUE(report.ok()) << report.error;
  EXPECT_EQ(wrong, 0);
}

TEST(HopperWarps, MultipliesAsMmaDoes) {
  std::vector<float> seen(16 * 8);
  const Report report = run({.threads = 32}, [&](char*) {
    const int t = static_cast<int>(threadIdx.x);
    const auto a = [](int row, int k) { return static_cast<float>(row - 2 * k); };
    const auto b = [](int k, int n) { return static_cast<float>(k + 3 * n - 9); };
    uint32_t left[4], right[2];
    for (int i = 0; i < 4; ++i) {
      const int row = t / 4 + 8 * (i % 2), k = t % 4 * 2 + 8 * (i / 2);
      left[i] = device::F16::pair(a(row, k), a(row, k + 1));
      if (i < 2) right[i] = device::F16::pair(b(t % 4 * 2 + 8 * i, t / 4), b(t % 4 * 2 + 8 * i + 1, t / 4));
    }
    float c[4] = {1, 1, 1, 1};
    device::F16::multiply(c, left, right[0], right[1]);
    for (int i = 0; i < 4; ++i)
      seen[static_cast<size_t>((t / 4 + 8 * (i / 2)) * 8 + t % 4 * 2 + i % 2)] = c[i];
  });
  ASSERT_TRUE(report.ok()) << report.error;
  for (int row = 0; row < 16; ++row)
    for (int n = 0; n < 8; ++n) {
      float want = 1;
      for (int k = 0; k < 16; ++k) want += static_cast<float>((row - 2 * k) * (k + 3 * n - 9));
      EXPECT_EQ(seen[static_cast<size_t>(row * 8 + n)], want);
    }
}

TEST(HopperWarps, TheSeedDecidesTheOrder) {
  const auto order = [](uint64_t seed) {
    std::vector<unsigned> seen;
    const Report report = run({.threads = 64, .seed = seed}, [&](char*) {
      for (int i = 0; i < 10; ++i) {
        seen.push_back(threadIdx.x);
        __syncwarp();
      }
    });
    EXPECT_TRUE(report.ok()) << report.error;
    return seen;
  };
  EXPECT_EQ(order(1), order(1));
  EXPECT_NE(order(1), order(2));
}

TEST(HopperWarps, WrongUsesAreReported) {
  EXPECT_TRUE(says(run({.threads = 32},
                       [](char*) {
                         if (threadIdx.x != 3) __syncwarp();
                       }),
                   "threads 0-2: __syncwarp() of lanes ffffffff, of which fffffff7 came"));
  EXPECT_TRUE(
      says(run({.threads = 32}, [](char*) { threadIdx.x == 3 ? __any_sync(~0u, 1) : __all_sync(~0u, 1); }),
           "while other lanes do"));
  EXPECT_TRUE(says(run({.threads = 32}, [](char*) { __syncwarp(15); }), "is not in its own mask"));
  EXPECT_TRUE(says(run({.threads = 32, .step_limit = 5000},
                       [](char*) {
                         while (true) __nanosleep(9);
                       }),
                   "threads 0-31: can go on"));
}

}  // namespace
}  // namespace tamis
