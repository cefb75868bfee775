// Pools too large to be made on the host: a few pages are written, all others are NaN on the device.
#pragma once

#include <memory>
#include <vector>

#include "cuda/device.h"

namespace tamis::testing {

// Room for `bytes` and 1 GiB more.
inline bool room_for(int64_t bytes) {
  size_t free = 0, all = 0;
  cuda_ok(cudaMemGetInfo(&free, &all));
  return static_cast<int64_t>(free) > bytes + (int64_t{1} << 30);
}

// A pool of `count` pages of `page_bytes`: page i of `from`, which lies on the host, becomes page pages[i].
// `to` shows it.
inline std::unique_ptr<DeviceBuffer> spread(const TensorView& from, const std::vector<int32_t>& pages,
                                            int64_t count, int64_t page_bytes, TensorView* to) {
  auto pool = std::make_unique<DeviceBuffer>(count * page_bytes);
  pool->fill(0xFF);
  for (size_t i = 0; i < pages.size(); ++i)
    cuda_ok(cudaMemcpy(pool->data() + pages[i] * page_bytes,
                       static_cast<const unsigned char*>(from.data) + static_cast<int64_t>(i) * page_bytes,
                       static_cast<size_t>(page_bytes), cudaMemcpyHostToDevice));
  to->data = pool->data();
  to->shape[0] = count;
  return pool;
}

}  // namespace tamis::testing
