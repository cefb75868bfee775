#include "kernels/cuda/prefill/instances.cuh"

namespace tamis::cuda {

Status launch_prefill_bf16_64(const device::Target& target, const PrefillKey& key, const PrefillArgs& args,
                              unsigned ctas, void* stream) {
  return launch_prefill_dim<device::BF16, 64>(target, key, args, ctas, stream);
}

}  // namespace tamis::cuda
