#include "kernels/cuda/decode/instances.cuh"

namespace tamis::cuda {

Status launch_decode_bf16_128(const device::Target& target, const DecodeKey& key, const DecodeArgs& args,
                              const DecodeGrid& grid, void* stream) {
  return launch_dim<device::BF16, 128>(target, key, args, grid, stream);
}

}  // namespace tamis::cuda
