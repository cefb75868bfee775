// Graphs and kernels of a build without CUDA: there are none. device_graph.cpp and device_kernels.cu take
// this file's place when nvcc is there.
#include "device_graph.h"
#include "device_kernels.h"

namespace tamis::bench {
namespace {

Status none() {
  return {Code::kDeviceError,
          "device: this build has no CUDA backend; configure with -DTAMIS_CUDA=ON where nvcc is installed"};
}

}  // namespace

Result<DeviceGraph> DeviceGraph::capture(const DeviceStream&, const std::function<Status()>&) {
  return none();
}
DeviceGraph::~DeviceGraph() = default;
DeviceGraph::DeviceGraph(DeviceGraph&&) noexcept = default;
DeviceGraph& DeviceGraph::operator=(DeviceGraph&&) noexcept = default;
Status DeviceGraph::launch(const DeviceStream&) const { return none(); }

Result<DeviceFacts> device_facts() { return none(); }

Status fill_bf16(DeviceBuffer*, uint64_t, const DeviceStream&) { return none(); }
Status read_pieces(const DevicePieces&, ReaderShape, int, void*, const DeviceStream&) { return none(); }
Status read_range(const void*, int64_t, int, void*, const DeviceStream&) { return none(); }
Status copy_range(void*, const void*, int64_t, const DeviceStream&) { return none(); }
Status hold(double, const DeviceStream&) { return none(); }

}  // namespace tamis::bench
