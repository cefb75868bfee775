// A small kernel of the kind the emulator is for: a producer warp fills a ring of two stages with boxes, a
// warpgroup multiplies what arrives, and CTAs take their work from a counter. Right in every order; with a
// fault planted, wrong in some.
#include <gtest/gtest.h>

#include <vector>

#include "emulated/hopper/says.h"
#include "kernels/cuda/device/hopper.cuh"

namespace tamis {
namespace {

using emulated::Report;
using emulated::run;
using namespace device;  // NOLINT: what is called here

enum class Fault {
  kNone,
  kNoSyncWarp,
  kNoWaitForBox,
  kNoWaitForSlot,
  kSlotFreedEarly,
  kOneArrivalShort,
  kWrongParity
};

struct Args {
  TensorMap left, right;  // [task][step][64 rows][64 columns]
  float* sum;             // [task][64][64]
  float* words;           // [task][128]
  int* counter;
  int tasks, steps;
  Fault fault;
};

constexpr int kStages = 2;
constexpr uint32_t kTile = 64 * 128, kStageBytes = 2 * kTile, kBarriers = kStages * kStageBytes,
                   kTask = kBarriers + 64, kBytes = kTask + 16;

struct Ring {
  uint32_t stage = 0, phase = 0;
  void next() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

// sum[task] = sum over steps of left right^T; words[task][thread] = sum over steps of left[lane][0], which
// every lane reads by itself.
__device__ void sum_products(const Args& a, char* shared) {
  const uint32_t base = shared_address(shared), full = base + kBarriers, empty = full + 8 * kStages;
  volatile int* task = reinterpret_cast<int*>(shared + kTask);
  const bool producer = threadIdx.x >= 128;
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < kStages; ++i) {
      barrier_init(full + 8 * i, 1);
      barrier_init(empty + 8 * i, 4 + (a.fault == Fault::kOneArrivalShort));
    }
    barrier_init_done();
  }
  const uint32_t lane = threadIdx.x % 32;
  Ring ring;
  while (true) {
    __syncthreads();
    if (threadIdx.x == 0) *task = atomicAdd(a.counter, 1);
    __syncthreads();
    const int mine = *task;
    if (mine >= a.tasks) return;
    if (producer) {
      for (int step = 0; threadIdx.x == 128 && step < a.steps; ++step, ring.next()) {
        const uint32_t at = base + ring.stage * kStageBytes, barrier = full + 8 * ring.stage;
        if (a.fault != Fault::kNoWaitForSlot) barrier_wait(empty + 8 * ring.stage, ring.phase ^ 1);
        barrier_arrive_and_expect(barrier, kStageBytes);
        copy_box(at, a.left, barrier, 0, 0, step, mine, 0);
        copy_box(at + kTile, a.right, barrier, 0, 0, step, mine, 0);
      }
      continue;
    }
    float d[32] = {}, words = 0;
    for (int step = 0; step < a.steps; ++step, ring.next()) {
      const uint32_t at = base + ring.stage * kStageBytes;
      const bool wrong = a.fault == Fault::kWrongParity;
      if (a.fault != Fault::kNoWaitForBox) barrier_wait(full + 8 * ring.stage, ring.phase ^ (wrong ? 1 : 0));
      products_fence();
      for (uint32_t k = 0; k < 4; ++k)
        multiply_ss(BF16{}, d, matrix(at + 32 * k, 0, 1024), matrix(at + kTile + 32 * k, 0, 1024), 1);
      products_commit();
      if (a.fault == Fault::kSlotFreedEarly && threadIdx.x % 32 == 0) barrier_arrive(empty + 8 * ring.stage);
      products_wait<0>();
      settle(d);
      uint16_t word;
      if (threadIdx.x % 32 != 0) __nanosleep(0);
      std::memcpy(&word, shared + (at - base) + lane * 128 + lane % 8 * 16, 2);
      words += bf16_to_float(word);
      if (a.fault != Fault::kNoSyncWarp) __syncwarp();
      if (a.fault != Fault::kSlotFreedEarly && threadIdx.x % 32 == 0) barrier_arrive(empty + 8 * ring.stage);
    }
    a.words[mine * 128 + static_cast<int>(threadIdx.x)] = words;
    const unsigned t = threadIdx.x;
    for (unsigned i = 0; i < 32; ++i)
      a.sum[mine * 4096 + static_cast<int>((16 * (t / 32) + t % 32 / 4 + 8 * (i / 2 % 2)) * 64 + 8 * (i / 4) +
                                           t % 4 * 2 + i % 2)] = d[i];
  }
}

// "" where the run went well and its sums are right.
std::string outcome(Fault fault, uint64_t seed) {
  constexpr int kTasks = 7, kSteps = 5, kElements = 4096;
  const size_t count = kTasks * kSteps * kElements;
  struct alignas(16) Piece {
    uint16_t x[8];
  };
  std::vector<Piece> left(count / 8), right(count / 8);
  std::vector<float> sum(kTasks * kElements, -1), words(kTasks * 128);
  const auto value = [](size_t i, size_t salt) {
    return static_cast<float>((i * 7 + i / 64 * 3 + salt) % 9) - 4;
  };
  for (size_t i = 0; i < count; ++i) {
    left[i / 8].x[i % 8] = float_to_bf16(value(i, 1));
    right[i / 8].x[i % 8] = float_to_bf16(value(i, 5));
  }
  const auto spec = [&](const std::vector<Piece>& of) {
    return TensorSpec{
        of.data(), {64, 64, kSteps, kTasks, 1}, {128, 128 * 64, kSteps * 128 * 64, 16}, {64, 64, 1, 1, 1}};
  };
  int counter = 0;
  const Args args{emulated_map(spec(left)),
                  emulated_map(spec(right)),
                  sum.data(),
                  words.data(),
                  &counter,
                  kTasks,
                  kSteps,
                  fault};
  const Report report =
      run({.ctas_x = 3, .threads = 160, .shared_bytes = kBytes, .seed = seed, .step_limit = 1'000'000},
          [&](char* shared) { sum_products(args, shared); });
  if (!report.ok()) return report.error;
  for (size_t task = 0; task < kTasks; ++task) {
    for (size_t t = 0; t < 128; ++t) {
      float want = 0;
      for (size_t step = 0; step < kSteps; ++step)
        want += value((task * kSteps + step) * kElements + t % 32 * 64, 1);
      if (words[task * 128 + t] != want) return "wrong word";
    }
    for (size_t row = 0; row < 64; row += 9)
      for (size_t column = 0; column < 64; column += 5) {
        float want = 0;
        for (size_t step = 0; step < kSteps; ++step)
          for (size_t k = 0; k < 64; ++k) {
            const size_t tile = (task * kSteps + step) * kElements;
            want += value(tile + row * 64 + k, 1) * value(tile + column * 64 + k, 5);
          }
        if (sum[task * kElements + row * 64 + column] != want) return "wrong sum";
      }
  }
  return "";
}

TEST(HopperPipeline, IsRightInEveryOrder) {
  for (uint64_t seed = 0; seed < 50; ++seed) ASSERT_EQ(outcome(Fault::kNone, seed), "") << "seed " << seed;
}

TEST(HopperPipeline, PlantedFaultsShow) {
  for (const Fault fault : {Fault::kNoSyncWarp, Fault::kNoWaitForBox, Fault::kNoWaitForSlot,
                            Fault::kSlotFreedEarly, Fault::kOneArrivalShort, Fault::kWrongParity}) {
    int shown = 0;
    for (uint64_t seed = 0; seed < 50; ++seed) shown += !outcome(fault, seed).empty();
    EXPECT_GT(shown, 5) << static_cast<int>(fault);
  }
}

}  // namespace
}  // namespace tamis
