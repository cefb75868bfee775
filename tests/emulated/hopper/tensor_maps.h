// What the copy engine knows of a tensor, in the 128 bytes that are CUtensorMap's on a device.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cuda/device/tensor_map.h"

namespace tamis::emulated {

struct PackedMap {
  uint64_t mark, data;
  uint64_t stride[4];
  uint32_t last[5];  // size - 1
  uint16_t box[5];
};
static_assert(sizeof(PackedMap) <= sizeof(device::TensorMap));

inline constexpr uint64_t kMapMark = 0x7A315DB1E50AD5A3;

// A spec that cannot be packed gives a map that copy_box() refuses; it checks all other rules as well.
inline device::TensorMap emulated_map(const device::TensorSpec& spec) {
  PackedMap packed{kMapMark, reinterpret_cast<uint64_t>(spec.data), {}, {}, {}};
  for (int i = 0; i < 5; ++i) {
    if (spec.size[i] < 1 || spec.size[i] > int64_t{1} << 32 || spec.box[i] < 1 || spec.box[i] > 0xFFFF)
      packed.mark = 0;
    packed.last[i] = static_cast<uint32_t>(spec.size[i] - 1);
    packed.box[i] = static_cast<uint16_t>(spec.box[i]);
    if (i < 4) packed.stride[i] = static_cast<uint64_t>(spec.stride[i]);
  }
  device::TensorMap map{};
  std::memcpy(map.words, &packed, sizeof packed);
  return map;
}

inline bool unpack_map(const device::TensorMap& map, device::TensorSpec& spec) {
  PackedMap packed;
  std::memcpy(&packed, map.words, sizeof packed);
  if (packed.mark != kMapMark || reinterpret_cast<uintptr_t>(&map) % 64 != 0) return false;
  spec.data = reinterpret_cast<const void*>(packed.data);
  for (int i = 0; i < 5; ++i) {
    spec.size[i] = int64_t{packed.last[i]} + 1;
    spec.box[i] = packed.box[i];
    if (i < 4) spec.stride[i] = static_cast<int64_t>(packed.stride[i]);
  }
  return true;
}

}  // namespace tamis::emulated
