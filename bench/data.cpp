#include "data.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <string>
#include <utility>

#include "core/float_formats.h"
#include "core/pool.h"

namespace tamis::bench {
namespace {

constexpr int64_t kChunk = 1 << 16;  // elements filled by one thread at a time

// One round of a 32-bit mixer (Hash Prospector, "lowbias32"): vectorizes, and element i depends on i alone.
inline float value_at(uint32_t i, uint32_t seed) {
  uint32_t x = i * 0x9E3779B9u + seed;
  x ^= x >> 16;
  x *= 0x7FEB352Du;
  x ^= x >> 15;
  x *= 0x846CA68Bu;
  x ^= x >> 16;
  constexpr float kStep = 1.7320508f / 8388608.f;  // 2^23 steps each way; uniform on +-sqrt(3) has variance 1
  return (static_cast<float>(static_cast<int32_t>(x >> 8)) - 8388607.5f) * kStep;
}

void fill_chunk(void* to, int64_t begin, int64_t end, DType dtype, uint64_t seed) {
  // The chunk number goes into the seed: 2^32 elements and more do not repeat.
  const uint32_t s = static_cast<uint32_t>(Random(seed + static_cast<uint64_t>(begin / kChunk)).next());
  for (int64_t i = begin; i < end; ++i) {
    const float x = value_at(static_cast<uint32_t>(i - begin), s);
    if (dtype == DType::kF32)
      static_cast<float*>(to)[i] = x;
    else
      static_cast<uint16_t*>(to)[i] = dtype == DType::kF16 ? float_to_f16(x) : float_to_bf16(x);
  }
}

// Bytes that may be had without pushing anything out; unknown: no limit.
int64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  const std::string key = "MemAvailable:";
  for (std::string line; std::getline(file, line);)
    if (line.compare(0, key.size(), key) == 0)
      return std::strtoll(line.c_str() + key.size(), nullptr, 10) << 10;
  return INT64_MAX;
}

}  // namespace

// From the file system: sysconf adds up shares of the whole package on some processors.
int64_t last_level_cache() {
  int64_t bytes = 0;
  for (int index = 0; index < 8; ++index) {
    std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/size");
    int64_t size = 0;
    char unit = 0;
    if (!(file >> size)) break;
    file >> unit;
    bytes = std::max(bytes, size << (unit == 'M' ? 20 : unit == 'K' ? 10 : 0));
  }
  return bytes > 0 ? bytes : int64_t{64} << 20;
}

Result<Buffer> Buffer::make(int64_t bytes) {
  constexpr int64_t huge = int64_t{2} << 20;
  bytes = (bytes + huge - 1) / huge * huge;
  if (const int64_t available = available_memory(); bytes > available / 5 * 4)
    return Status(Code::kCapacityExceeded, "memory: " + std::to_string(bytes >> 20) + " MiB for one pool, " +
                                               std::to_string(available >> 20) + " MiB are free");
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED)
    return Status(Code::kCapacityExceeded, "memory: no " + std::to_string(bytes) + " bytes for the pools");
  madvise(at, bytes, MADV_HUGEPAGE);  // a wish; the record says what the system answers to it
  return Buffer(static_cast<std::byte*>(at), bytes);
}

Buffer::~Buffer() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

uint64_t Random::next() {
  uint64_t z = state_ += 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

int64_t Random::below(int64_t limit) {
  return static_cast<int64_t>(static_cast<unsigned __int128>(next()) * static_cast<uint64_t>(limit) >> 64);
}

std::vector<int32_t> Random::sample(int64_t limit, int64_t count) {
  std::vector<int32_t> all(limit);
  std::iota(all.begin(), all.end(), 0);
  for (int64_t i = 0; i < count; ++i) std::swap(all[i], all[i + below(limit - i)]);
  all.resize(count);
  return all;
}

void fill(void* to, int64_t count, DType dtype, uint64_t seed, Context& context) {
  context.pool().for_each((count + kChunk - 1) / kChunk, [&](int, int64_t chunk) {
    fill_chunk(to, chunk * kChunk, std::min(count, (chunk + 1) * kChunk), dtype, seed);
  });
}

}  // namespace tamis::bench
