// How records spell dtypes and layouts.
#pragma once

#include "tamis/cache.h"

namespace tamis::bench {

inline const char* short_name(DType dtype) {
  return dtype == DType::kF32    ? "f32"
         : dtype == DType::kF16  ? "f16"
         : dtype == DType::kBF16 ? "bf16"
                                 : "other";
}

inline const char* layout_name(Layout layout) { return layout == Layout::kNHD ? "nhd" : "hnd"; }

}  // namespace tamis::bench
