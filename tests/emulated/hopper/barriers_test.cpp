// Barriers in shared memory as the emulator has them.
#include <gtest/gtest.h>

#include "emulated/hopper/says.h"
#include "kernels/cuda/device/hopper.cuh"

namespace tamis {
namespace {

using device::barrier_arrive;
using device::barrier_init;
using device::barrier_passed;
using device::barrier_wait;
using emulated::Report;
using emulated::run;
using emulated::says;

constexpr uint32_t kBarrier = 1024;  // the first address there is

Report with_barrier(uint32_t arrivals, const std::function<void()>& body, uint64_t seed = 0) {
  return run({.threads = 32, .shared_bytes = 64, .seed = seed}, [&](char*) {
    if (threadIdx.x == 0) barrier_init(kBarrier, arrivals);
    __syncthreads();
    body();
  });
}

TEST(HopperBarriers, PhasesFollowEachOther) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    int turn = 0, wrong = 0;
    const Report report = with_barrier(
        31,
        [&] {                         // thread 0 waits for the rest, five times
          barrier_wait(kBarrier, 1);  // a new barrier is in phase 0
          __syncthreads();
          for (uint32_t i = 0; i < 5; ++i) {
            if (threadIdx.x != 0) {
              ++turn;
              barrier_arrive(kBarrier);
            } else {
              barrier_wait(kBarrier, i & 1);
              wrong += turn != 31 * (static_cast<int>(i) + 1);
              while (!barrier_passed(kBarrier, i & 1)) {
              }
            }
            __syncthreads();
          }
        },
        seed);
    EXPECT_TRUE(report.ok()) << report.error;
    EXPECT_EQ(wrong, 0);
  }
}

TEST(HopperBarriers, WrongUsesAreReported) {
  EXPECT_TRUE(
      says(with_barrier(2,
                        [] {
                          if (threadIdx.x == 5) barrier_arrive(kBarrier);
                          if (threadIdx.x < 4) barrier_wait(kBarrier, 0);
                        }),
           "CTA (0, 0), threads 0-3: barrier 1024, parity 0 (in phase 0; 1 of 2 arrivals and 0 bytes"));
  EXPECT_TRUE(says(with_barrier(1,
                                [] {
                                  if (threadIdx.x != 0) return;
                                  device::barrier_arrive_and_expect(kBarrier, 128);
                                  barrier_arrive(kBarrier);
                                }),
                   "one arrival too many at barrier 1024"));
  EXPECT_TRUE(says(with_barrier(1, [] { barrier_wait(kBarrier + 8, 0); }), "was not initialised"));
  EXPECT_TRUE(says(with_barrier(1, [] { barrier_wait(kBarrier + 4, 0); }), "not on 8 bytes"));
  EXPECT_TRUE(says(with_barrier(1, [] { barrier_wait(kBarrier + 64, 0); }), "not in shared memory"));
  EXPECT_TRUE(says(with_barrier(1, [] { barrier_wait(kBarrier, 2); }), "parity"));
  EXPECT_TRUE(says(with_barrier(0, [] {}), "of 0 arrivals"));
  EXPECT_TRUE(says(with_barrier(1, [] { barrier_init(kBarrier, 1); }), "was initialised before"));
  EXPECT_TRUE(says(run({.threads = 32, .shared_bytes = 64},
                       [](char* shared) {
                         if (threadIdx.x == 0) barrier_init(kBarrier, 1);
                         __syncthreads();
                         shared[3] = 7;
                         barrier_arrive(kBarrier);
                       }),
                   "was written over"));
  EXPECT_TRUE(says(with_barrier(1,
                                [] {
                                  if (threadIdx.x == 0) device::barrier_arrive_and_expect(kBarrier, 128);
                                }),
                   "missed 128 bytes"));
}

}  // namespace
}  // namespace tamis
