// Work at an eighth of the 64K case: deterministic, what it says it is, and read by the reader to the last
// byte.
#include <gtest/gtest.h>

#include <cstring>

#include "bench/ceilings.h"
#include "bench/check.h"
#include "bench/prefill.h"
#include "bench/problem64k.h"
#include "tamis/explain.h"
#include "tamis/reference.h"

namespace tamis::bench {
namespace {

Decode small(int64_t requests, DType dtype, Layout layout) {
  return {.requests = requests, .dtype = dtype, .layout = layout, .scale = {.scale = 1}, .turns = 2};
}

uint64_t sum_words(const void* from, int64_t bytes) {
  uint64_t sum = 0;
  for (int64_t at = 0; at < bytes; at += 8) {
    uint64_t word;
    memcpy(&word, static_cast<const char*>(from) + at, 8);
    sum += word;
  }
  return sum;
}

// The words of K and V of every selected token, found by the reference.
uint64_t sum_of_sets(const Problem& p) {
  const auto sets = reference::build_sets(p);
  EXPECT_TRUE(sets.ok()) << sets.status().message();
  const std::vector<int64_t> slots = reference::physical_slots(p, *sets);
  const KvStrides stride = kv_strides(p.cache.k, p.cache.layout);
  const int64_t page_size = Scale::kPage, bytes = dtype_bytes(p.cache.k.dtype);
  uint64_t sum = 0;
  for (size_t set = 0; set + 1 < sets->indptr.size(); ++set)
    for (int64_t i = sets->indptr[set]; i < sets->indptr[set + 1]; ++i) {
      const int64_t at = slots[i] / page_size * stride.page + slots[i] % page_size * stride.token +
                         static_cast<int64_t>(set % 8) * stride.head;
      for (const TensorView* t : {&p.cache.k, &p.cache.v})
        sum += sum_words(static_cast<const char*>(t->data) + at * bytes, 128 * bytes);
    }
  return sum;
}

TEST(DecodeWork, TheReaderTouchesExactlyTheSelectedBytes) {
  Context context(2);
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const Layout layout : {Layout::kNHD, Layout::kHND})
      for (const Spread spread : {Spread::kUniform, Spread::kClustered}) {
        Decode d = small(2, dtype, layout);
        d.spread = spread;
        const Result<Work> work = decode_work(d, context);
        ASSERT_TRUE(work.ok()) << work.status().message();
        for (size_t turn = 0; turn < 2; ++turn) {
          EXPECT_EQ(work->reads[turn].bytes(), work->bytes);
          const uint64_t want = sum_of_sets(work->turns[turn]);
          for (const int64_t ahead : {0, 1, 5}) EXPECT_EQ(read_all(work->reads[turn], ahead, context), want);
        }
      }
}

TEST(DecodeWork, IsTheSameForTheSameSeedAndAnyThreads) {
  Context one(1), two(2);
  const Result<Work> a = decode_work(small(1, DType::kF16, Layout::kNHD), one),
                     b = decode_work(small(1, DType::kF16, Layout::kNHD), two);
  ASSERT_TRUE(a.ok() && b.ok());
  for (size_t turn = 0; turn < 2; ++turn) {
    const Problem &p = a->turns[turn], &r = b->turns[turn];
    for (const auto& [x, y] : {std::pair{&p.query.q, &r.query.q},
                               {&p.cache.page_table, &r.cache.page_table},
                               {&p.candidates.indices, &r.candidates.indices},
                               {&p.candidates.indptr, &r.candidates.indptr}})
      EXPECT_EQ(memcmp(x->data, y->data, x->elements() * dtype_bytes(x->dtype)), 0);
    EXPECT_EQ(read_all(a->reads[turn], 0, one), read_all(b->reads[turn], 0, two));
  }
  EXPECT_NE(read_all(a->reads[0], 0, one), read_all(a->reads[1], 0, one));
}

TEST(DecodeWork, TurnsShareNoPage) {
  Context context(1);
  const Result<Work> work = decode_work(small(1, DType::kBF16, Layout::kNHD), context);
  ASSERT_TRUE(work.ok());
  std::vector<int> used(work->turns[0].cache.k.shape[0]);
  for (const Problem& p : work->turns)
    for (int64_t i = 0; i < p.cache.page_table.elements(); ++i)
      ++used[static_cast<const int32_t*>(p.cache.page_table.data)[i]];
  for (const int n : used) EXPECT_EQ(n, 1);
}

TEST(DecodeWork, HasNoZerosAndModerateValues) {
  Context context(1);
  const Result<Work> work = decode_work(small(1, DType::kF32, Layout::kNHD), context);
  ASSERT_TRUE(work.ok());
  const TensorView& k = work->turns[0].cache.k;
  const auto* x = static_cast<const float*>(k.data);
  double mean = 0, square = 0;
  int64_t zeros = 0;
  for (int64_t i = 0; i < k.elements(); ++i) {
    mean += x[i], square += x[i] * x[i];
    zeros += x[i] == 0;
  }
  const auto n = static_cast<double>(k.elements());
  EXPECT_EQ(zeros, 0);
  EXPECT_NEAR(mean / n, 0, 1e-2);
  EXPECT_NEAR(square / n, 1, 1e-2);
}

TEST(DecodeWork, CoversFiveCachesByDefault) {
  for (const int64_t bytes : {1000, 17301504, 1 << 30}) {
    EXPECT_GT(enough_turns(bytes) * bytes, 5 * last_level_cache());
    EXPECT_LE((enough_turns(bytes) - 1) * bytes, 5 * last_level_cache());
  }
}

// The reference against itself: an exact result is judged 0, a spoiled one by how much it was spoiled.
TEST(Judge, FindsPlantedErrors) {
  Context context(1);
  const Result<Work> decode = decode_work(small(2, DType::kF32, Layout::kHND), context);
  const Result<Work> prefill = prefill_work({.dtype = DType::kF32, .length = 512, .causal = true}, context);
  ASSERT_TRUE(decode.ok() && prefill.ok());
  for (const Work* work : {&*decode, &*prefill}) {
    const Problem& p = work->turns[0];
    const auto answer = reference::forward(p);
    ASSERT_TRUE(answer.ok()) << answer.status().message();
    std::vector<float> out(answer->output.out.begin(), answer->output.out.end());
    const auto judged = [&] {
      const auto j =
          judge(p, mutable_view(out.data(), DType::kF32, {p.query.q.shape[0], p.query.q.shape[1], 128}),
                work->judged);
      EXPECT_TRUE(j.ok()) << j.status().message();
      EXPECT_EQ(j->rows, static_cast<int64_t>(work->judged.size()) * p.query.q.shape[1]);
      return j->max_error;
    };
    EXPECT_LT(judged(), 1e-6);
    out[(work->judged.back() * p.query.q.shape[1] + 3) * 128 + 17] += 0.5f;
    EXPECT_NEAR(judged(), 0.5, 1e-6);
    out[5] = NAN;  // query 0 is judged too
    EXPECT_EQ(judged(), INFINITY);
  }
}

TEST(DenseWork, ReadsEverything) {
  Context context(2);
  const Result<Work> work = dense_work({.dtype = DType::kF16, .kv_len = 4096}, context);
  ASSERT_TRUE(work.ok());
  const Problem& p = work->turns[0];
  EXPECT_EQ(work->reads[0].bytes(), work->bytes);
  EXPECT_EQ(read_all(work->reads[0], 2, context),
            sum_words(p.cache.k.data, work->bytes / 2) + sum_words(p.cache.v.data, work->bytes / 2));
  const auto account = explain(p, AccountingOptions{});
  ASSERT_TRUE(account.ok());
  EXPECT_EQ(account->bytes.logical, work->bytes);
  EXPECT_EQ(account->flops_logical, work->flops);
}

TEST(PrefillWork, TakesOneBlockInEight) {
  Context context(1);
  const Result<Work> work = prefill_work({.length = 4096}, context);
  ASSERT_TRUE(work.ok());
  const TensorView& indptr = work->turns[0].candidates.indptr;
  for (int64_t row = 0; row < 64; ++row)
    EXPECT_EQ(indptr.at<int32_t>({row + 1}) - indptr.at<int32_t>({row}), 4);
  EXPECT_EQ(work->flops, 4 * 4096ll * 512 * 8 * 128);
  EXPECT_NE(memcmp(work->turns[0].candidates.indices.data, work->turns[1].candidates.indices.data, 1024), 0);
}

}  // namespace
}  // namespace tamis::bench
