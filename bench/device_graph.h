// Work of a stream as a CUDA graph, and what the device says of itself. Like device_problem.h: nothing here
// is CUDA to look at, and in a build without it everything answers device_error.
#pragma once

#include <functional>
#include <string>

#include "device_problem.h"

namespace tamis::bench {

// What was put on a stream while it was captured, to be launched as one.
class DeviceGraph {
 public:
  // `enqueue` puts the work on `stream`; its first error ends the capture and is the answer.
  static Result<DeviceGraph> capture(const DeviceStream& stream, const std::function<Status()>& enqueue);
  ~DeviceGraph();
  DeviceGraph(DeviceGraph&& other) noexcept;
  DeviceGraph& operator=(DeviceGraph&& other) noexcept;

  Status launch(const DeviceStream& stream) const;

 private:
  explicit DeviceGraph(void* handle) : handle_(handle) {}
  [[maybe_unused]] void* handle_ = nullptr;  // a cudaGraphExec_t
};

// The current device.
struct DeviceFacts {
  std::string name{}, bus{};  // bus: its PCI address, by which other tools know it
  int multiprocessors = 0;
  int64_t l2_bytes = 0;
  int driver = 0, runtime = 0;  // as CUDA counts: 13000 is 13.0
  int core_khz = 0, memory_khz = 0;
  bool ecc = false;
};
Result<DeviceFacts> device_facts();

}  // namespace tamis::bench
