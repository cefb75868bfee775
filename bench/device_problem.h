// Device memory of the command, the benches and the tests. The library never allocates on a device; who calls
// it does, and these are the few owners that takes. Nothing here is CUDA to look at, so that a build without
// it compiles the same callers: there every function that can fail answers device_error.
//
// Everything happens on the current device. Moved from, an owner holds nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "tamis/problem.h"
#include "tamis/status.h"

namespace tamis::bench {

// Device memory on a 256-byte line. The copies are done when the call returns, for every stream; what kernels
// of a stream still write is not waited for, so synchronize that stream before a download.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;  // holds nothing
  // Contents are not initialized. capacity_exceeded where the device has not that much left.
  static Result<DeviceBuffer> make(int64_t bytes);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;

  void* data() const { return data_; }  // null where there are no bytes
  int64_t bytes() const { return bytes_; }

  // Bytes [at, at + bytes) of the buffer; invalid_argument where they are not all in it.
  Status upload(const void* from, int64_t bytes, int64_t at = 0);
  Status download(void* to, int64_t bytes, int64_t at = 0) const;
  Status fill(uint8_t byte);  // 0xFF makes every float a NaN

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

// A stream that waits for nobody, the default stream included.
class DeviceStream {
 public:
  static Result<DeviceStream> make();
  ~DeviceStream();
  DeviceStream(DeviceStream&& other) noexcept;
  DeviceStream& operator=(DeviceStream&& other) noexcept;

  void* handle() const { return handle_; }  // a cudaStream_t
  Status synchronize() const;

 private:
  explicit DeviceStream(void* handle) : handle_(handle) {}
  [[maybe_unused]] void* handle_ = nullptr;
};

// A point in a stream's time.
class DeviceEvent {
 public:
  static Result<DeviceEvent> make();
  ~DeviceEvent();
  DeviceEvent(DeviceEvent&& other) noexcept;
  DeviceEvent& operator=(DeviceEvent&& other) noexcept;

  Status record(const DeviceStream& stream);
  // From `start` to here; both must have been passed.
  Result<double> microseconds_since(const DeviceEvent& start) const;

 private:
  explicit DeviceEvent(void* handle) : handle_(handle) {}
  [[maybe_unused]] void* handle_ = nullptr;
};

// A problem whose views lead to device memory: copies of every tensor the host problem has.
class DeviceProblem {
 public:
  // Strides stay what they are: the whole range of bytes between a view's first and last element is copied.
  // `unsupported` names a tensor with a negative stride.
  static Result<DeviceProblem> upload(const Problem& host);

  const Problem& problem() const { return problem_; }
  int64_t bytes() const;  // of all copies

 private:
  Problem problem_{};
  std::vector<DeviceBuffer> buffers_;
};

}  // namespace tamis::bench
