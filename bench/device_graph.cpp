// Graphs and the device's properties, through the CUDA runtime.
#include "device_graph.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "core/launch.h"

namespace tamis::bench {
namespace {

cudaStream_t stream_of(const DeviceStream& stream) { return static_cast<cudaStream_t>(stream.handle()); }
cudaGraphExec_t graph_of(void* handle) { return static_cast<cudaGraphExec_t>(handle); }

}  // namespace

Result<DeviceGraph> DeviceGraph::capture(const DeviceStream& stream, const std::function<Status()>& enqueue) {
  const cudaStream_t s = stream_of(stream);
  if (Status begun = device::cuda_status(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal),
                                         "cannot capture a stream");
      !begun.ok())
    return begun;
  const Status work = enqueue();
  cudaGraph_t graph = nullptr;
  const Status ended = device::cuda_status(cudaStreamEndCapture(s, &graph), "cannot end a capture");
  cudaGraphExec_t made = nullptr;
  Status status = !work.ok() ? work : ended;
  if (status.ok()) status = device::cuda_status(cudaGraphInstantiate(&made, graph, 0), "cannot make a graph");
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (!status.ok()) return status;
  return DeviceGraph(made);
}

DeviceGraph::~DeviceGraph() {
  if (handle_ != nullptr) cudaGraphExecDestroy(graph_of(handle_));
}
DeviceGraph::DeviceGraph(DeviceGraph&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
DeviceGraph& DeviceGraph::operator=(DeviceGraph&& other) noexcept {
  std::swap(handle_, other.handle_);
  return *this;
}

Status DeviceGraph::launch(const DeviceStream& stream) const {
  return device::cuda_status(cudaGraphLaunch(graph_of(handle_), stream_of(stream)), "cannot launch a graph");
}

Result<DeviceFacts> device_facts() {
  DeviceFacts facts;
  int device = 0;
  cudaDeviceProp properties{};
  if (Status s = device::cuda_status(cudaGetDevice(&device), "cannot find the device"); !s.ok()) return s;
  if (Status s = device::cuda_status(cudaGetDeviceProperties(&properties, device), "cannot ask the device");
      !s.ok())
    return s;
  facts.name = properties.name;
  facts.multiprocessors = properties.multiProcessorCount;
  facts.l2_bytes = properties.l2CacheSize;
  facts.ecc = properties.ECCEnabled != 0;
  char bus[64] = "";
  if (cudaDeviceGetPCIBusId(bus, sizeof bus, device) == cudaSuccess) facts.bus = bus;
  // Newer runtimes have clocks as attributes only.
  cudaDeviceGetAttribute(&facts.core_khz, cudaDevAttrClockRate, device);
  cudaDeviceGetAttribute(&facts.memory_khz, cudaDevAttrMemoryClockRate, device);
  cudaDriverGetVersion(&facts.driver);
  cudaRuntimeGetVersion(&facts.runtime);
  return facts;
}

}  // namespace tamis::bench
