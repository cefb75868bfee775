// Copies as the emulator makes them: where a box's elements go, and that nothing is there too early.
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

constexpr uint32_t kBarrier = 1024, kBox = 2048;

std::vector<uint16_t> numbered(size_t count) {
  std::vector<uint16_t> v(count + 8);
  for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<uint16_t>(i + 1);
  return v;
}
const uint16_t* on_16_bytes(const std::vector<uint16_t>& v) {
  return reinterpret_cast<const uint16_t*>((reinterpret_cast<uintptr_t>(v.data()) + 15) / 16 * 16);
}

// Axis 0: 72 elements; axis 2 goes back over axis 1; axis 4 is of one.
struct Source {
  std::vector<uint16_t> memory = numbered(4096);
  TensorSpec spec{on_16_bytes(memory), {72, 11, 5, 2, 1}, {160, 320, 1616, 3200}, {64, 4, 3, 2, 1}};

  uint16_t at(const int64_t (&c)[5]) const {
    int64_t bytes = 2 * c[0];
    for (int i = 0; i < 5; ++i) {
      if (c[i] < 0 || c[i] >= spec.size[i]) return 0;
      if (i > 0) bytes += c[i] * spec.stride[i - 1];
    }
    return static_cast<const uint16_t*>(spec.data)[bytes / 2];
  }
};

TEST(HopperCopies, BoxesArePermutedAndPaddedWithZeros) {
  const Source source;
  const TensorMap map = emulated_map(source.spec);
  constexpr int32_t kCorners[][5] = {
      {0, 0, 0, 0, 0}, {16, 9, 3, 1, 0}, {-5, -2, -1, -1, 0}, {40, 2, 1, 0, 1}};
  for (const auto& c : kCorners)
    for (uint64_t seed = 0; seed < 6; ++seed) {
      std::vector<uint16_t> seen(64 * 24);
      const Report report = run({.threads = 64, .shared_bytes = 8192, .seed = seed}, [&](char* shared) {
        if (threadIdx.x == 0) {
          barrier_init(kBarrier, 1);
          barrier_init_done();
          barrier_arrive_and_expect(kBarrier, 128 * 24);
          copy_box(kBox, map, kBarrier, c[0], c[1], c[2], c[3], c[4]);
        }
        __syncthreads();
        barrier_wait(kBarrier, 0);
        if (threadIdx.x == 40) std::memcpy(seen.data(), shared + kBox - 1024, 128 * 24);
      });
      ASSERT_TRUE(report.ok()) << report.error;
      for (int line = 0; line < 24; ++line)
        for (int e = 0; e < 64; ++e) {
          const int piece = e / 8 ^ line % 8;
          ASSERT_EQ(seen[static_cast<size_t>(line * 64 + piece * 8 + e % 8)],
                    source.at({c[0] + e, c[1] + line % 4, c[2] + line / 4 % 3, c[3] + line / 12, c[4]}))
              << "line " << line << ", element " << e;
        }
    }
}

// As BoxesArePermutedAndPaddedWithZeros, the other way: what lies outside the tensor is left out.
TEST(HopperCopies, BoxesAreStoredAndClipped) {
  constexpr int32_t kCorners[][5] = {{0, 0, 0, 0, 0}, {16, 9, 3, 1, 0}, {40, 2, 1, 0, 1}};
  for (const auto& c : kCorners)
    for (uint64_t seed = 0; seed < 6; ++seed) {
      std::vector<uint16_t> memory(9000, 7), want = memory;
      const TensorSpec spec{on_16_bytes(memory), {72, 11, 5, 2, 1}, {160, 1760, 8800, 16}, {64, 4, 3, 2, 1}};
      uint16_t* to = want.data() + (static_cast<const uint16_t*>(spec.data) - memory.data());
      for (int line = 0; line < 24; ++line)
        for (int e = 0; e < 64; ++e) {
          const int64_t at[5] = {c[0] + e, c[1] + line % 4, c[2] + line / 4 % 3, c[3] + line / 12, c[4]};
          int64_t bytes = 2 * at[0];
          bool inside = at[0] < spec.size[0];
          for (int i = 1; i < 5; ++i) {
            inside = inside && at[i] < spec.size[i];
            bytes += at[i] * spec.stride[i - 1];
          }
          if (inside) to[bytes / 2] = static_cast<uint16_t>(100 + line * 64 + e);
        }
      const TensorMap map = emulated_map(spec);
      const Report report = run({.threads = 32, .shared_bytes = 8192, .seed = seed}, [&](char* shared) {
        auto* box = reinterpret_cast<uint16_t*>(shared + kBox - 1024);
        for (int i = static_cast<int>(threadIdx.x); i < 24 * 64; i += 32)
          box[i / 64 * 64 + (i % 64 / 8 ^ i / 64 % 8) * 8 + i % 8] = static_cast<uint16_t>(100 + i);
        fence_async();
        __syncwarp();
        if (threadIdx.x == 0) store_box(map, kBox, c[0], c[1], c[2], c[3], c[4]);
        boxes_commit();
        boxes_wait();
      });
      ASSERT_TRUE(report.ok()) << report.error;
      ASSERT_EQ(memory, want) << "corner " << c[0] << ", seed " << seed;
    }
}

TEST(HopperCopies, StoredBoxesAreFencedAndWaitedFor) {
  const Source source;
  const TensorMap map = emulated_map(source.spec);
  for (const bool fenced : {false, true}) {
    const Report report = run({.threads = 32, .shared_bytes = 8192}, [&](char*) {
      store_matrix(kBox + threadIdx.x % 16 * 128, {1, 2, 3, 4});
      if (fenced) fence_async();
      __syncwarp();
      if (threadIdx.x == 0) store_box(map, kBox, 0, 0, 0, 0, 0);
      boxes_commit();
      if (!fenced) boxes_wait();
    });
    EXPECT_TRUE(says(report, fenced ? "boxes_wait()" : "without fence_async()")) << report.error;
  }
}

TEST(HopperCopies, EarlyReadsSeeNaN) {
  const Source source;
  const TensorMap map = emulated_map(source.spec);
  int early = 0, late = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const Report report = run({.threads = 32, .shared_bytes = 8192, .seed = seed}, [&](char* shared) {
      if (threadIdx.x > 0) return;
      uint16_t* seen = reinterpret_cast<uint16_t*>(shared + kBox - 1024);
      *seen = 7;
      barrier_init(kBarrier, 1);
      barrier_arrive_and_expect(kBarrier, 128 * 24);
      copy_box(kBox, map, kBarrier, 0, 0, 0, 0, 0);
      early += *seen == 0xFFFF;
      late += *seen == 1;
      barrier_wait(kBarrier, 0);
      EXPECT_NE(*seen, 0xFFFF);
    });
    ASSERT_TRUE(report.ok()) << report.error;
  }
  EXPECT_GT(early, 10);
  EXPECT_EQ(early + late, 40);
}

// What thread 0 does with a barrier at hand.
Report alone(const std::function<void()>& body) {
  return run({.threads = 32, .shared_bytes = 8192}, [&](char*) {
    if (threadIdx.x > 0) return;
    barrier_init(kBarrier, 1);
    body();
  });
}

TEST(HopperCopies, WrongBoxesAreReported) {
  const Source source;
  const auto copy = [](uint32_t to, const TensorSpec& spec) {
    const TensorMap map = emulated_map(spec);
    return alone([&, to] { copy_box(to, map, kBarrier, 0, 0, 0, 0, 0); });
  };
  TensorSpec spec = source.spec;
  EXPECT_TRUE(says(copy(kBox + 128, spec), "not on 1024 bytes"));
  EXPECT_TRUE(says(copy(7 * 1024, spec), "not in shared memory"));
  EXPECT_TRUE(says(copy(kBox, spec), "ended while a box was under way"));
  spec.stride[2] = 24;
  EXPECT_TRUE(says(copy(kBox, spec), "stride 24 of axis 3"));
  spec = source.spec;
  spec.box[0] = 32;
  EXPECT_TRUE(says(copy(kBox, spec), "not of 128 bytes"));
  spec = source.spec;
  spec.box[1] = 257;
  EXPECT_TRUE(says(copy(kBox, spec), "box of 257 along axis 1"));
  spec = source.spec;
  spec.size[3] = 0;
  EXPECT_TRUE(says(copy(kBox, spec), "not one of emulated_map()'s"));
  spec = source.spec;
  spec.data = static_cast<const char*>(spec.data) + 8;
  EXPECT_TRUE(says(copy(kBox, spec), "not on 16 bytes"));
  const TensorMap map = emulated_map(source.spec);
  EXPECT_TRUE(says(alone([&] {
                     for (int i = 0; i < 50; ++i) copy_box(kBox, map, kBarrier, 0, 0, 0, 0, 0);
                   }),
                   "where another box is still on its way"));
}

TEST(HopperCopies, OwnCopiesLandWhenTheyAreWaitedFor) {
  const std::vector<uint16_t> memory = numbered(1024);
  const uint16_t* from = on_16_bytes(memory);
  int early = 0;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    const Report report = run({.threads = 32, .shared_bytes = 4096, .seed = seed}, [&](char* shared) {
      const unsigned t = threadIdx.x;
      uint16_t* mine = reinterpret_cast<uint16_t*>(shared) + 32 * t;
      const uint32_t to = shared_address(mine);
      *mine = 7;
      copy_async(to, from + 8 * t);
      copy_commit();
      copy_async(to + 16, nullptr, 0);
      copy_commit();
      copy_word(mine + 16, from + 2 * t);
      early += mine[0] == 0xFFFF;
      copy_wait<1>();
      EXPECT_EQ(mine[7], from[8 * t + 7]);
      copy_wait<0>();
      EXPECT_EQ(mine[8], 0);
      copies_done();
      EXPECT_EQ(mine[17], from[2 * t + 1]);
    });
    ASSERT_TRUE(report.ok()) << report.error;
  }
  EXPECT_GT(early, 100);
  EXPECT_TRUE(says(alone([&] { copy_async(kBox + 8, from); }), "not on 16 bytes"));
  EXPECT_TRUE(says(alone([&] { copy_async(kBox, from + 1); }), "not on 16 bytes"));
}

}  // namespace
}  // namespace tamis
