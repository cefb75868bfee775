// Memory and random contents of a bench: never zeros, the same for the same seed on any machine and for any
// number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tamis/attention.h"
#include "tamis/status.h"
#include "tamis/tensor.h"

namespace tamis::bench {

// Bytes of the last-level cache as one core sees it; 64 MiB where the system does not tell.
int64_t last_level_cache();

// Large memory straight from the system, on huge pages where the system grants them: without them a scattered
// read measures the page walker. Zero until filled. capacity_exceeded for more than four fifths of what is
// free: a bench must not push others out of memory, nor measure swapping.
class Buffer {
 public:
  static Result<Buffer> make(int64_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  Buffer(std::byte* data, int64_t bytes) : data_(data), bytes_(bytes) {}
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

// SplitMix64 (Steele, Lea, Flood 2014): a counter, so that any part can be made without the rest.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next();
  int64_t below(int64_t limit);  // uniform in [0, limit); limit >= 1

  // `count` different numbers of [0, limit), in random order.
  std::vector<int32_t> sample(int64_t limit, int64_t count);
  template <class T>
  void shuffle(std::vector<T>& x) {
    for (int64_t i = static_cast<int64_t>(x.size()); i > 1; --i) std::swap(x[i - 1], x[below(i)]);
  }

 private:
  uint64_t state_;
};

// Fills `count` elements of f32, f16 or bf16 with uniform values of mean 0 and variance 1.
void fill(void* to, int64_t count, DType dtype, uint64_t seed, Context& context);

}  // namespace tamis::bench
