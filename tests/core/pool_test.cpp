// The thread pool: every index once, by one thread at a time for each worker number, round after round.
#include "core/pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

namespace tamis {
namespace {

using Pool = Context::Pool;

constexpr int64_t kCounts[] = {0, 1, 2, 3, 7, 64, 1000};

TEST(Pool, EveryIndexOnceForAnyNumberOfThreads) {
  for (int threads = 1; threads <= 8; ++threads) {
    Pool pool(threads);
    ASSERT_EQ(pool.threads(), threads);
    for (const int64_t count : kCounts) {
      std::vector<std::atomic<int>> calls(count);
      std::vector<std::atomic<int>> busy(threads);  // a worker number has one user at a time
      std::atomic<int> wrong{0};
      pool.for_each(count, [&](int worker, int64_t i) {
        if (worker < 0 || worker >= threads || i < 0 || i >= count) {
          ++wrong;
          return;
        }
        if (busy[worker].fetch_add(1) != 0) ++wrong;
        ++calls[i];
        busy[worker].fetch_sub(1);
      });
      EXPECT_EQ(wrong, 0) << threads << " threads, " << count;
      for (int64_t i = 0; i < count; ++i)
        ASSERT_EQ(calls[i], 1) << threads << " threads, " << i << " of " << count;
    }
  }
}

TEST(Pool, TheCallerIsWorkerZero) {
  for (const int threads : {1, 4}) {
    Pool pool(threads);
    const std::thread::id caller = std::this_thread::get_id();
    std::atomic<int> wrong{0};
    for (int round = 0; round < 50; ++round)
      pool.for_each(
          20, [&](int worker, int64_t) { wrong += (worker == 0) != (std::this_thread::get_id() == caller); });
    EXPECT_EQ(wrong, 0);
  }
}

TEST(Pool, WithoutCompanyTheCallerDoesItAll) {
  Pool many(4), one(1);
  for (const int64_t count : {0, 1}) {
    int64_t calls = 0;
    many.for_each(count, [&](int worker, int64_t i) { calls += worker == 0 && i == 0; });
    EXPECT_EQ(calls, count);
  }
  int64_t sum = 0;  // plain: a second thread would be a race
  one.for_each(100, [&](int, int64_t i) { sum += i; });
  EXPECT_EQ(sum, 4950);
}

// What a round wrote is there when for_each returns, and a late worker never takes part in the next round.
TEST(Pool, RoundsBackToBack) {
  for (const int threads : {2, 3, 8}) {
    Pool pool(threads);
    std::vector<int64_t> cells(9, 0);  // plain: the pool is what orders the accesses
    int64_t want = 0;
    for (int64_t round = 1; round <= 400 / threads; ++round) {
      const int64_t count = 2 + round % 8;
      pool.for_each(count, [&cells, round](int, int64_t i) { cells[i] += round; });
      want += round * count;
      int64_t sum = 0;
      for (const int64_t cell : cells) sum += cell;
      ASSERT_EQ(sum, want) << threads << " threads, round " << round;
    }
  }
}

// Each thread holds one index, so none can do another's; the caller is done long before the others.
TEST(Pool, TheCallerWaitsForTheLastWorker) {
  Pool pool(3);
  const int threads = pool.threads();
  for (int round = 0; round < 5; ++round) {
    std::atomic<int> arrived{0};
    std::vector<std::atomic<int>> done(threads);
    pool.for_each(threads, [&](int worker, int64_t i) {
      ++arrived;
      while (arrived < threads) std::this_thread::yield();
      for (int turn = 0; worker != 0 && turn < 50; ++turn) std::this_thread::yield();
      done[i] = 1;
    });
    for (int i = 0; i < threads; ++i) ASSERT_EQ(done[i].load(), 1) << "round " << round;
  }
}

// A step inside a step: each worker may drive a pool of its own.
TEST(Pool, NestedRounds) {
  Pool outer(3);
  std::vector<std::unique_ptr<Pool>> inner;
  for (int i = 0; i < outer.threads(); ++i) inner.push_back(std::make_unique<Pool>(2));
  std::atomic<int64_t> sum{0};
  outer.for_each(40, [&](int worker, int64_t i) {
    inner[worker]->for_each(10, [&](int, int64_t j) { sum += i * 10 + j; });
  });
  EXPECT_EQ(sum, 399 * 400 / 2);
}

TEST(Pool, ComesAndGoes) {
  for (int i = 0; i < 50; ++i) {
    Pool idle(4);  // ends before its threads have looked for work
    Pool used(4);
    std::atomic<int> calls{0};
    used.for_each(3, [&](int, int64_t) { ++calls; });
    EXPECT_EQ(calls, 3);
  }
}

TEST(Pool, ScratchIsAWorkersOwn) {
  Pool pool(3);
  std::vector<std::byte*> at;
  for (int worker = 0; worker < 3; ++worker) {
    at.push_back(pool.scratch(worker, 1000));
    ASSERT_NE(at.back(), nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(at.back()) % 64, 0u);
    std::memset(at.back(), worker, 1000);
  }
  for (int worker = 0; worker < 3; ++worker) {
    for (int i = 0; i < 1000; ++i) ASSERT_EQ(static_cast<int>(at[worker][i]), worker);
    EXPECT_EQ(pool.scratch(worker, 1000), at[worker]) << "kept";
    EXPECT_EQ(pool.scratch(worker, 10), at[worker]) << "and reused";
  }
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{63}, size_t{64}, size_t{100000}}) {
    std::byte* grown = pool.scratch(0, bytes);
    ASSERT_NE(grown, nullptr) << bytes;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(grown) % 64, 0u);
    std::memset(grown, 0xFF, bytes);
  }
}

TEST(Pool, NoMemoryIsAnAnswer) {
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TAMIS_SANITIZED
#endif
#endif
#if defined(TAMIS_SANITIZED) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers end the program where an allocation fails";
#endif
  Pool pool(1);
  EXPECT_EQ(pool.scratch(0, size_t{1} << 61), nullptr);
  std::byte* at = pool.scratch(0, 100);  // and the pool goes on
  ASSERT_NE(at, nullptr);
  std::memset(at, 0, 100);
}

TEST(ContextTest, OwnsItsThreads) {
  EXPECT_EQ(Context(3).threads(), 3);
  EXPECT_GE(Context().threads(), 1);
  EXPECT_GE(Context(-5).threads(), 1);
  Context a(2);
  Context b = std::move(a);
  EXPECT_EQ(b.threads(), 2);
  std::atomic<int> calls{0};
  b.pool().for_each(5, [&](int, int64_t) { ++calls; });
  EXPECT_EQ(calls, 5);
}

TEST(ContextTest, InstructionSetsAreChosenByName) {
  Context context(1);
  const std::vector<std::string> isas = cpu_isas();
  ASSERT_FALSE(isas.empty());
  EXPECT_EQ(isas.back(), "plain") << "which every machine has";
  EXPECT_EQ(context.isa(), isas.front()) << "the widest unless told otherwise";
  for (const std::string& isa : isas) {
    EXPECT_TRUE(context.use_isa(isa).ok());
    EXPECT_EQ(context.isa(), isa);
  }
  for (const char* name : {"", "AVX2", "sse", "plain "}) {
    const Status status = context.use_isa(name);
    EXPECT_EQ(status.code(), Code::kUnsupported) << name;
    for (const std::string& isa : isas) EXPECT_NE(status.message().find(isa), std::string::npos) << isa;
    EXPECT_EQ(context.isa(), isas.back()) << "unchanged";
  }
}

}  // namespace
}  // namespace tamis
