// The benches' own kernels: random contents, the readers that are the ceilings, and a pause.
#pragma once

#include <cstdint>

#include "device_problem.h"

namespace tamis::bench {

// Fills with bf16 values, uniform of mean 0 and variance 1; the same for the same seed. A multiple of 4
// bytes.
Status fill_bf16(DeviceBuffer* buffer, uint64_t seed, const DeviceStream& stream);

// Equal pieces of memory: `rows` rows of 256 bytes, `row_stride` bytes apart; piece i starts 256 * at[i]
// bytes from `base`. A token of one head is one row at head size 128 in bf16.
struct DevicePieces {
  const void* base = nullptr;
  const int32_t* at = nullptr;  // device memory
  int64_t count = 0;
  int64_t rows = 1;  // a power of two
  int64_t row_stride = 256;

  int64_t bytes() const { return count * rows * 256; }
};

// How a reader spreads over the device: CTAs of 256 threads a multiprocessor, 16-byte loads each thread has
// under way. Which is fastest depends on the amount; the benches try all of them.
struct ReaderShape {
  int ctas = 4, loads = 4;
};
inline constexpr ReaderShape kReaderShapes[] = {{2, 8}, {4, 4}, {4, 8}, {8, 4}, {8, 8}, {16, 8}};

// Loads every byte and computes nothing but a parity of them. `sink`: 4 bytes, hardly ever written.
Status read_pieces(const DevicePieces& pieces, ReaderShape shape, int multiprocessors, void* sink,
                   const DeviceStream& stream);
// The same over one range; a multiple of 16 bytes.
Status read_range(const void* from, int64_t bytes, int multiprocessors, void* sink,
                  const DeviceStream& stream);
Status copy_range(void* to, const void* from, int64_t bytes, const DeviceStream& stream);

// Keeps the stream busy for so long: what is enqueued meanwhile starts at once and in order afterwards, so
// that its time has no waiting for the host in it.
Status hold(double us, const DeviceStream& stream);

}  // namespace tamis::bench
