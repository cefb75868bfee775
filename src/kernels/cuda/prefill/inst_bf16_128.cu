#include "kernels/cuda/prefill/instances.cuh"

namespace tamis::cuda {

Status launch_prefill_bf16_128(const device::Target& target, const PrefillKey& key, const PrefillArgs& args,
                               unsigned ctas, void* stream) {
  return launch_prefill_dim<device::BF16, 128>(target, key, args, ctas, stream);
}

}  // namespace tamis::cuda
