#include "kernels/cuda/decode/instances.cuh"

namespace tamis::cuda {

Status launch_decode_f16_128(const device::Target& target, const DecodeKey& key, const DecodeArgs& args,
                             const DecodeGrid& grid, void* stream) {
  return launch_dim<device::F16, 128>(target, key, args, grid, stream);
}

}  // namespace tamis::cuda
