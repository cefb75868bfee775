// Device memory of a build without CUDA: there is none. device_problem.cpp takes this file's place when nvcc
// is there.
#include <utility>

#include "device_problem.h"

namespace tamis::bench {
namespace {

Status none() {
  return {Code::kDeviceError,
          "device memory: this build has no CUDA backend; configure with -DTAMIS_CUDA=ON where nvcc is "
          "installed"};
}

}  // namespace

Result<DeviceBuffer> DeviceBuffer::make(int64_t) { return none(); }
DeviceBuffer::~DeviceBuffer() = default;
DeviceBuffer::DeviceBuffer(DeviceBuffer&&) noexcept = default;
DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&&) noexcept = default;
Status DeviceBuffer::upload(const void*, int64_t, int64_t) { return none(); }
Status DeviceBuffer::download(void*, int64_t, int64_t) const { return none(); }
Status DeviceBuffer::fill(uint8_t) { return none(); }

Result<DeviceStream> DeviceStream::make() { return none(); }
DeviceStream::~DeviceStream() = default;
DeviceStream::DeviceStream(DeviceStream&&) noexcept = default;
DeviceStream& DeviceStream::operator=(DeviceStream&&) noexcept = default;
Status DeviceStream::synchronize() const { return none(); }

Result<DeviceEvent> DeviceEvent::make() { return none(); }
DeviceEvent::~DeviceEvent() = default;
DeviceEvent::DeviceEvent(DeviceEvent&&) noexcept = default;
DeviceEvent& DeviceEvent::operator=(DeviceEvent&&) noexcept = default;
Status DeviceEvent::record(const DeviceStream&) { return none(); }
Result<double> DeviceEvent::microseconds_since(const DeviceEvent&) const { return none(); }

}  // namespace tamis::bench
