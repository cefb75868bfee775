// Starting the prefill kernel that fits, and after it the one that sums single rows again.
#pragma once

#include "kernels/cuda/prefill/args.h"
#include "tamis/status.h"

namespace tamis::device {
struct Target;  // core/launch.h
}

namespace tamis::cuda {

// What tells the instances apart.
struct PrefillKey {
  DType dtype;  // bf16 or f16
  int32_t dim;  // 64, 128 or 256: what D and Dv are padded to on chip
  bool bent;    // scores are capped, slanted or scaled by no positive number
};

// `unsupported` on a device of another compute capability than 9.0.
Status launch_prefill(const PrefillKey& key, const PrefillArgs& args, void* stream);

// What of `args->step` the copy engine moves: K and V, unless tokens are loaded one by one, in boxes of a
// block; query rows and rows of the result, where it can reach them. page_tokens: of a page, or all of a
// contiguous cache.
struct SideShape {
  int64_t page_tokens, pages, kv_heads;
  int32_t block;
};
Status describe_maps(const SideShape& shape, const PrefillKey& key, PrefillArgs* args);

// One for each file of instances.
using PrefillLaunch = Status(const device::Target&, const PrefillKey&, const PrefillArgs&, unsigned ctas,
                             void* stream);
PrefillLaunch launch_prefill_bf16_64;
PrefillLaunch launch_prefill_bf16_128;
PrefillLaunch launch_prefill_bf16_256;
PrefillLaunch launch_prefill_f16_64;
PrefillLaunch launch_prefill_f16_128;
PrefillLaunch launch_prefill_f16_256;

}  // namespace tamis::cuda
