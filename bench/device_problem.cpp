// Owners of device memory, streams and events, through the CUDA runtime.
#include "device_problem.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "core/launch.h"

namespace tamis::bench {
namespace {

// Copies from pageable memory and fills may still be under way when CUDA returns; streams of ours do not wait
// for the default stream, so the host does.
Status settle(const char* what, cudaError_t code) {
  if (code != cudaSuccess) return device::cuda_status(code, what);
  return device::cuda_status(cudaStreamSynchronize(cudaStreamLegacy), what);
}

Status check_range(int64_t bytes, int64_t at, int64_t limit) {
  if (bytes >= 0 && at >= 0 && at <= limit && bytes <= limit - at) return {};
  return {Code::kInvalidArgument,
          "device memory: bytes " + std::to_string(at) + " and " + std::to_string(bytes) + " more of " +
              std::to_string(limit),
          {.value = at, .limit = limit}};
}

std::byte* place(void* data, int64_t at) { return static_cast<std::byte*>(data) + at; }

cudaStream_t stream_of(void* handle) { return static_cast<cudaStream_t>(handle); }
cudaEvent_t event_of(void* handle) { return static_cast<cudaEvent_t>(handle); }

}  // namespace

Result<DeviceBuffer> DeviceBuffer::make(int64_t bytes) {
  DeviceBuffer made;
  if (bytes < 0) return check_range(bytes, 0, 0);
  if (bytes == 0) return made;
  const cudaError_t code = cudaMalloc(&made.data_, static_cast<size_t>(bytes));
  if (code == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return Status(Code::kCapacityExceeded,
                  "device memory: the device has no " + std::to_string(bytes) + " bytes left",
                  {.value = bytes});
  }
  if (code != cudaSuccess) return device::cuda_status(code, "cannot allocate device memory");
  made.bytes_ = bytes;
  return made;
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) cudaFree(data_);
}
DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Status DeviceBuffer::upload(const void* from, int64_t bytes, int64_t at) {
  if (Status s = check_range(bytes, at, bytes_); !s.ok() || bytes == 0) return s;
  return settle("cannot copy to the device",
                cudaMemcpy(place(data_, at), from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice));
}

Status DeviceBuffer::download(void* to, int64_t bytes, int64_t at) const {
  if (Status s = check_range(bytes, at, bytes_); !s.ok() || bytes == 0) return s;
  return settle("cannot copy from the device",
                cudaMemcpy(to, place(data_, at), static_cast<size_t>(bytes), cudaMemcpyDeviceToHost));
}

Status DeviceBuffer::fill(uint8_t byte) {
  if (bytes_ == 0) return {};
  return settle("cannot fill device memory", cudaMemset(data_, byte, static_cast<size_t>(bytes_)));
}

Result<DeviceStream> DeviceStream::make() {
  cudaStream_t stream = nullptr;
  const cudaError_t code = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (code != cudaSuccess) return device::cuda_status(code, "cannot make a stream");
  return DeviceStream(stream);
}

DeviceStream::~DeviceStream() {
  if (handle_ != nullptr) cudaStreamDestroy(stream_of(handle_));
}
DeviceStream::DeviceStream(DeviceStream&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
DeviceStream& DeviceStream::operator=(DeviceStream&& other) noexcept {
  std::swap(handle_, other.handle_);
  return *this;
}

Status DeviceStream::synchronize() const {
  return device::cuda_status(cudaStreamSynchronize(stream_of(handle_)), "the device failed");
}

Result<DeviceEvent> DeviceEvent::make() {
  cudaEvent_t event = nullptr;
  const cudaError_t code = cudaEventCreate(&event);
  if (code != cudaSuccess) return device::cuda_status(code, "cannot make an event");
  return DeviceEvent(event);
}

DeviceEvent::~DeviceEvent() {
  if (handle_ != nullptr) cudaEventDestroy(event_of(handle_));
}
DeviceEvent::DeviceEvent(DeviceEvent&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
DeviceEvent& DeviceEvent::operator=(DeviceEvent&& other) noexcept {
  std::swap(handle_, other.handle_);
  return *this;
}

Status DeviceEvent::record(const DeviceStream& stream) {
  return device::cuda_status(cudaEventRecord(event_of(handle_), stream_of(stream.handle())),
                             "cannot record an event");
}

Result<double> DeviceEvent::microseconds_since(const DeviceEvent& start) const {
  float milliseconds = 0;
  const cudaError_t code = cudaEventElapsedTime(&milliseconds, event_of(start.handle_), event_of(handle_));
  if (code != cudaSuccess) return device::cuda_status(code, "cannot read a time between events");
  return 1e3 * static_cast<double>(milliseconds);
}

}  // namespace tamis::bench
