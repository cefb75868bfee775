#include "kernels/cuda/decode/launch.h"

#include "core/checks.h"

namespace tamis::cuda {

Status launch_decode(const DecodeKey& key, const DecodeArgs& args, const DecodeGrid& grid, void* stream) {
  if (grid.tasks == 0) return {};
  const bool bf16 = key.dtype == DType::kBF16;
  switch (key.dim) {
    case 64:
      return (bf16 ? launch_decode_bf16_64 : launch_decode_f16_64)(key, args, grid, stream);
    case 128:
      return (bf16 ? launch_decode_bf16_128 : launch_decode_f16_128)(key, args, grid, stream);
    case 256:
      return (bf16 ? launch_decode_bf16_256 : launch_decode_f16_256)(key, args, grid, stream);
    default:
      return {Code::kUnsupported, text("head_dim: no decode kernel is padded to ", key.dim)};
  }
}

}  // namespace tamis::cuda
