// Tensor maps: what the copy engine has to know of a cache, of queries and of a result.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include "core/launch.h"
#include "kernels/cuda/prefill/launch.h"
#include "kernels/cuda/prefill/specs.h"

namespace tamis::cuda {
namespace {

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                            const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                            CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// The driver's, without linking against it: a machine without a driver must load this library too.
Status find_encode(Encode* encode) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  TAMIS_RETURN_IF_ERROR(device::cuda_status(
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
      "prefill"));
  if (found != cudaDriverEntryPointSuccess || function == nullptr)
    return {Code::kDeviceError, "prefill: the driver has no cuTensorMapEncodeTiled"};
  *encode = reinterpret_cast<Encode>(function);
  return {};
}

Status encode_map(Encode encode, const device::TensorSpec& spec, device::TensorMap* map) {
  static_assert(sizeof(CUtensorMap) == sizeof *map && alignof(CUtensorMap) <= alignof(device::TensorMap));
  cuuint64_t size[5], stride[4];
  cuuint32_t box[5], step[5];
  for (int i = 0; i < 5; ++i) {
    size[i] = static_cast<cuuint64_t>(spec.size[i]);
    box[i] = static_cast<cuuint32_t>(spec.box[i]);
    step[i] = 1;
    if (i < 4) stride[i] = static_cast<cuuint64_t>(spec.stride[i]);
  }
  // The type only says how wide an element is: zeros are zeros.
  const CUresult code = encode(reinterpret_cast<CUtensorMap*>(map), CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 5,
                               const_cast<void*>(spec.data), size, stride, box, step,
                               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (code != CUDA_SUCCESS)
    return {Code::kDeviceError,
            text("prefill: cuTensorMapEncodeTiled (CUDA error ", static_cast<int>(code), ")")};
  return {};
}

Status encode_side(Encode encode, const DecodeSide& side, const SideShape& shape, int32_t kernel_dim,
                   PrefillSide* out) {
  const SideSpecs specs = specs_of(side, shape, kernel_dim);
  out->page_apart = specs.page_apart;
  out->outside = specs.outside;
  TAMIS_RETURN_IF_ERROR(encode_map(encode, specs.block, &out->block));
  return encode_map(encode, specs.group, &out->group);
}

Status encode_rows(Encode encode, const device::TensorSpec& spec, bool there, PrefillRows* out) {
  out->there = there;
  return there ? encode_map(encode, spec, &out->map) : Status{};
}

}  // namespace

Status describe_maps(const SideShape& shape, const PrefillKey& key, PrefillArgs* args) {
  const RowSpecs rows = row_specs(args->step, key.dtype);
  const bool sides = !args->step.tokens;
  if (!sides && !rows.q_there && !rows.out_there) return {};
  Encode encode = nullptr;
  TAMIS_RETURN_IF_ERROR(find_encode(&encode));
  TAMIS_RETURN_IF_ERROR(encode_rows(encode, rows.q, rows.q_there, &args->q));
  TAMIS_RETURN_IF_ERROR(encode_rows(encode, rows.out, rows.out_there, &args->out));
  if (!sides) return {};
  TAMIS_RETURN_IF_ERROR(encode_side(encode, args->step.k, shape, key.dim, &args->k));
  return encode_side(encode, args->step.v, shape, key.dim, &args->v);
}

}  // namespace tamis::cuda
