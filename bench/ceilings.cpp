#include "ceilings.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/pool.h"
#include "data.h"

namespace tamis::bench {
namespace {

constexpr int64_t kPiece = 64 << 10;  // of the sequential ceilings
constexpr int64_t kDepth = 256;       // a packed panel of this depth stays in the first-level cache

// Keeps a sum alive: nobody reads it, the compiler does not know.
std::atomic<uint64_t> sink;

double median_us(const Series& series) { return summarize(series.us).median; }

}  // namespace

uint64_t read_all(const Pieces& pieces, int64_t ahead, Context& context) {
  const StreamIsa& isa = best_stream();
  const auto count = static_cast<int64_t>(pieces.at.size());
  // As many shares as a balanced schedule has tasks, so that a slow thread costs both alike.
  const int64_t shares = std::min<int64_t>(count, 64);
  std::atomic<uint64_t> sum{0};
  context.pool().for_each(shares, [&](int, int64_t i) {
    sum += isa.read(pieces, count * i / shares, count * (i + 1) / shares, ahead);
  });
  return sum;
}

Contender reader(const Work& work, std::string name, int64_t ahead, Context& context) {
  return {.name = std::move(name), .call = [&work, ahead, &context](int64_t turn, Parts*) {
            sink += read_all(work.reads[turn % static_cast<int64_t>(work.reads.size())], ahead, context);
            return Status();
          }};
}

Result<int64_t> best_distance(const Work& work, Context& context) {
  constexpr int64_t distances[] = {0, 1, 2, 4, 8, 16};
  std::vector<Contender> contenders;
  for (const int64_t d : distances) contenders.push_back(reader(work, std::to_string(d), d, context));
  const Result<std::vector<Series>> series = measure(contenders, {.warmup = 3, .samples = 31});
  if (!series.ok()) return series.status();
  size_t best = 0;
  for (size_t i = 0; i < series->size(); ++i)
    if (median_us((*series)[i]) < median_us((*series)[best])) best = i;
  return distances[best];
}

void product(const float* a, const float* b, float* c, int64_t m, int64_t n, int64_t k, float* packed,
             Context& context) {
  const StreamIsa& isa = best_stream();
  const int64_t width = isa.columns;
  context.pool().for_each(n / width, [&](int, int64_t panel) {
    float* to = packed + panel * k * width;
    for (int64_t row = 0; row < k; ++row)
      memcpy(to + row * width, b + row * n + panel * width, width * sizeof(float));
  });
  context.pool().for_each(n / width, [&](int, int64_t panel) {
    for (int64_t depth = 0; depth < k; depth += kDepth)
      for (int64_t row = 0; row < m; row += isa.rows)
        isa.product(a + row * k + depth, k, packed + (panel * k + depth) * width, c + row * n + panel * width,
                    n, kDepth);
  });
}

Result<Ceilings> measure_ceilings(Context& context) {
  constexpr int64_t m = 960, n = 960, k = 1024;
  const int64_t bytes = (6 * last_level_cache() + kPiece - 1) / kPiece * kPiece;
  Result<Buffer> from = Buffer::make(bytes), to = Buffer::make(bytes), matrices = Buffer::make(16 << 20);
  for (const Result<Buffer>* made : {&from, &to, &matrices})
    if (!made->ok()) return made->status();
  fill(from->data(), bytes / 4, DType::kF32, 1, context);
  fill(to->data(), bytes / 4, DType::kF32, 2, context);
  fill(matrices->data(), matrices->bytes() / 4, DType::kF32, 3, context);
  auto* a = reinterpret_cast<float*>(matrices->data());
  float *b = a + m * k, *c = b + k * n, *packed = c + m * n;
  static_assert(4 * (m * k + k * n + m * n + k * n) <= 16 << 20);

  Pieces pieces{.at = {}, .rows = 1, .row_bytes = kPiece, .row_stride = 0};
  for (int64_t at = 0; at < bytes; at += kPiece) pieces.at.push_back(from->data() + at);
  const auto copy = [&](int64_t, Parts*) {
    context.pool().for_each(bytes / kPiece, [&](int, int64_t i) {
      memcpy(to->data() + i * kPiece, from->data() + i * kPiece, kPiece);
    });
    return Status();
  };
  const auto read = [&](int64_t, Parts*) {
    sink += read_all(pieces, 0, context);
    return Status();
  };
  const auto gemm = [&](int64_t, Parts*) {
    product(a, b, c, m, n, k, packed, context);
    return Status();
  };
  const Result<std::vector<Series>> series = measure(
      {{.name = "copy", .call = copy}, {.name = "read", .call = read}, {.name = "gemm_f32", .call = gemm}},
      {.warmup = 3, .samples = 31});
  if (!series.ok()) return series.status();
  const double mega = 1e-6;  // bytes per us to TB/s, FLOP per us to TFLOP/s
  return Ceilings{.copy_tb_s = 2 * static_cast<double>(bytes) / median_us((*series)[0]) * mega,
                  .read_tb_s = static_cast<double>(bytes) / median_us((*series)[1]) * mega,
                  .gemm_f32_tflop_s = 2.0 * m * n * k / median_us((*series)[2]) * mega};
}

}  // namespace tamis::bench
