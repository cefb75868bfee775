#include "kernels/cuda/decode/instances.cuh"

namespace tamis::cuda {

Status launch_decode_f16_256(const device::Target& target, const DecodeKey& key, const DecodeArgs& args,
                             const DecodeGrid& grid, void* stream) {
  return launch_dim<device::F16, 256>(target, key, args, grid, stream);
}

}  // namespace tamis::cuda
