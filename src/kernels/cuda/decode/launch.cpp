#include "kernels/cuda/decode/launch.h"

#include "core/checks.h"
#include "core/launch.h"

namespace tamis::cuda {
namespace {

// `shared_bytes`: most that a CTA may take.
Ring settled(Ring asked, int32_t dim, int64_t shared_bytes) {
  if (asked != Ring::kAuto) return asked;
  return full_ring_bytes(dim) <= shared_bytes ? Ring::kFull : Ring::kShort;
}

DecodeLaunch* instances_of(const DecodeKey& key) {
  const bool bf16 = key.dtype == DType::kBF16;
  switch (key.dim) {
    case 64:
      return bf16 ? launch_decode_bf16_64 : launch_decode_f16_64;
    case 128:
      return bf16 ? launch_decode_bf16_128 : launch_decode_f16_128;
    case 256:
      return bf16 ? launch_decode_bf16_256 : launch_decode_f16_256;
    default:
      return nullptr;
  }
}

}  // namespace

Ring ring_on(const StepPlan& plan, const CudaDevice& device) {
  const Shape& s = plan.plan.shape;
  return settled(plan.ring, padded_dim(s.head_dim, s.v_head_dim),
                 static_cast<int64_t>(device.shared_bytes) - device::kReserved);
}

Status launch_decode(const DecodeKey& key, const DecodeArgs& args, const DecodeGrid& grid, void* stream) {
  if (grid.tasks == 0) return {};
  DecodeLaunch* const launch = instances_of(key);
  if (launch == nullptr)
    return {Code::kUnsupported, text("head_dim: no decode kernel is padded to ", key.dim)};
  device::Target target;
  TAMIS_RETURN_IF_ERROR(device::current_target("decode", &target));
  const int64_t shared = target.facts.shared_bytes;
  DecodeKey chosen = key;
  chosen.ring = settled(key.ring, key.dim, shared);
  if (chosen.ring == Ring::kFull && full_ring_bytes(key.dim) > shared)
    return {Code::kUnsupported,
            text("ring: full ones need ", full_ring_bytes(key.dim),
                 " bytes of shared memory a CTA, this device has ", shared, "; nearest: short, auto")};
  return launch(target, chosen, args, grid, stream);
}

}  // namespace tamis::cuda
