#include "kernels/cuda/prefill/launch.h"

#include "core/launch.h"

namespace tamis::cuda {
namespace {

// Whether this build holds machine code of sm_90a: no other has the kernel's instructions, and it would do
// nothing.
#ifdef TAMIS_SM_90A
constexpr bool kBuilt = true;
#else
constexpr bool kBuilt = false;
#endif

// CTAs that stay: one a multiprocessor.
Status count_ctas(const device::Target& target, unsigned* ctas) {
  int count = 0, minor = 0;
  for (const auto& [value, attribute] :
       {std::pair{&count, cudaDevAttrMultiProcessorCount}, {&minor, cudaDevAttrComputeCapabilityMinor}})
    TAMIS_RETURN_IF_ERROR(
        device::cuda_status(cudaDeviceGetAttribute(value, attribute, target.device), "prefill"));
  const int major = target.facts.major;
  if (major != 9 || minor != 0)
    return {Code::kUnsupported, text("prefill: compute capability ", major, ".", minor,
                                     "; nearest: 9.0 (engine decode runs on 8.0 and later)")};
  if (!kBuilt)
    return {Code::kUnsupported,
            "prefill: a build without sm_90a (CMAKE_CUDA_ARCHITECTURES); nearest: engine decode"};
  *ctas = static_cast<unsigned>(count);
  return {};
}

}  // namespace

Status launch_prefill(const PrefillKey& key, const PrefillArgs& args, void* stream) {
  unsigned ctas = 0;
  device::Target target;
  TAMIS_RETURN_IF_ERROR(device::current_target("prefill", &target));
  TAMIS_RETURN_IF_ERROR(count_ctas(target, &ctas));
  const bool bf16 = key.dtype == DType::kBF16;
  PrefillLaunch* launch = nullptr;
  switch (key.dim) {
    case 64:
      launch = bf16 ? launch_prefill_bf16_64 : launch_prefill_f16_64;
      break;
    case 128:
      launch = bf16 ? launch_prefill_bf16_128 : launch_prefill_f16_128;
      break;
    case 256:
      launch = bf16 ? launch_prefill_bf16_256 : launch_prefill_f16_256;
      break;
    default:
      return {Code::kUnsupported, text("head_dim: no prefill kernel is padded to ", key.dim)};
  }
  return launch(target, key, args, ctas, stream);
}

}  // namespace tamis::cuda
