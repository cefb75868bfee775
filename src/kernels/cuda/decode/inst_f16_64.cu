#include "kernels/cuda/decode/instances.cuh"

namespace tamis::cuda {

Status launch_decode_f16_64(const DecodeKey& key, const DecodeArgs& args, const DecodeGrid& grid,
                            void* stream) {
  return launch_dim<device::F16, 64>(key, args, grid, stream);
}

}  // namespace tamis::cuda
