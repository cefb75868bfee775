// Clusters as the emulator makes them: two CTAs that reach each other's shared memory.
#include <gtest/gtest.h>

#include <vector>

#include "emulated/hopper/says.h"
#include "kernels/cuda/device/hopper.cuh"

namespace tamis {
namespace {

using emulated::Report;
using emulated::run;
using emulated::says;
using namespace device;  // NOLINT: what is called here

constexpr uint32_t kFull = 1024, kWord = 1032, kLate = 1040, kWords = 1048, kBox = 2048, kBoxBytes = 128 * 8;

enum class Fault { kNone, kNoFirstMeeting, kNoLastMeeting, kOneHalfMissing };

// Each CTA brings lines of its own to both, and tells the other its rank.
Report exchange(uint64_t seed, Fault fault, std::vector<uint16_t>* seen, std::vector<uint32_t>* words) {
  alignas(16) static uint16_t lines[16 * 64];
  for (size_t i = 0; i < 16 * 64; ++i) lines[i] = static_cast<uint16_t>(i);
  const TensorMap map = emulated_map({lines, {64, 16, 1, 1, 1}, {128, 2048, 2048, 2048}, {64, 8, 1, 1, 1}});
  return run(
      {.ctas_x = 4, .threads = 64, .shared_bytes = 8192, .seed = seed, .cluster = 2}, [&](char* shared) {
        const uint32_t rank = cluster_rank();
        if (threadIdx.x == 0) {
          barrier_init(kFull, 1);
          barrier_init(kWord, 2);
          barrier_init(kLate, 1);
          barrier_init_done();
        }
        if (fault == Fault::kNoFirstMeeting)
          __syncthreads();
        else
          sync_cluster();
        if (threadIdx.x == 0) {
          barrier_arrive_and_expect(kFull, 2 * kBoxBytes);
          if (fault != Fault::kOneHalfMissing || rank == 0)
            copy_box_to_both(kBox + rank * kBoxBytes, map, kFull, 0, static_cast<int32_t>(8 * rank), 0, 0, 0);
          barrier_arrive_and_expect(kWord, 4);
          send_word(kWords, 70 + rank, kWord, rank ^ 1);
          barrier_arrive_at(kWord, rank ^ 1);
        }
        barrier_wait(kFull, 0);
        barrier_wait(kWord, 0);
        if (threadIdx.x == 0) barrier_arrive_at(kLate, rank ^ 1);  // which nobody waits for
        if (threadIdx.x == 40) {
          std::memcpy(seen->data() + blockIdx.x * 16 * 64, shared + kBox - 1024, 2 * kBoxBytes);
          std::memcpy(words->data() + blockIdx.x, shared + kWords - 1024, 4);
        }
        if (fault != Fault::kNoLastMeeting) sync_cluster();
      });
}

TEST(HopperClusters, HalvesAndWordsReachBoth) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    std::vector<uint16_t> seen(4 * 16 * 64);
    std::vector<uint32_t> words(4);
    const Report report = exchange(seed, Fault::kNone, &seen, &words);
    ASSERT_TRUE(report.ok()) << report.error;
    EXPECT_EQ(words, (std::vector<uint32_t>{71, 70, 71, 70}));
    for (size_t cta = 0; cta < 4; ++cta)
      for (size_t line = 0; line < 16; ++line)
        for (size_t e = 0; e < 64; ++e)
          ASSERT_EQ(seen[(cta * 16 + line) * 64 + (e / 8 ^ line % 8) * 8 + e % 8], line * 64 + e)
              << "CTA " << cta << ", line " << line;
  }
}

// Some order shows each of them.
TEST(HopperClusters, FaultsAreFound) {
  for (const auto& [fault, words] : {std::pair{Fault::kNoFirstMeeting, "was not initialised"},
                                     {Fault::kNoLastMeeting, "the other CTA of the cluster has ended"},
                                     {Fault::kOneHalfMissing, "deadlock"}}) {
    int found = 0;
    for (uint64_t seed = 0; seed < 60; ++seed) {
      std::vector<uint16_t> seen(4 * 16 * 64);
      std::vector<uint32_t> told(4);
      const Report report = exchange(seed, fault, &seen, &told);
      if (report.ok()) continue;
      EXPECT_TRUE(says(report, words));
      ++found;
    }
    EXPECT_GT(found, 0) << words;
  }
}

TEST(HopperClusters, GridsAreOfWholeOnes) {
  EXPECT_TRUE(says(run({.ctas_x = 3, .cluster = 2}, [](char*) {}), "whole ones"));
  EXPECT_TRUE(says(run({.ctas_x = 4, .cluster = 2, .resident = 1}, [](char*) {}), "alive at a time"));
}

}  // namespace
}  // namespace tamis
