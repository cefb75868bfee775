// Stands in for src/kernels/cuda/device/hopper.cuh: the same functions where device code runs on the host
// thread by thread.
#pragma once

#include "emulated/hopper/barriers.h"
#include "emulated/hopper/copies.h"
#include "emulated/hopper/meetings.h"
#include "emulated/hopper/products.h"
#include "emulated/hopper/proxies.h"
#include "emulated/hopper/tensor_maps.h"
#include "kernels/cuda/device/ptx.cuh"  // the one of this folder
#include "kernels/cuda/device/tensor_map.h"

namespace tamis::device {

using emulated::emulated_map;

inline void barrier_init(uint32_t barrier, uint32_t arrivals) { emulated::barrier_init(barrier, arrivals); }
inline void barrier_init_done() {}
inline void barrier_arrive(uint32_t barrier) { emulated::barrier_arrive(barrier, 0); }
inline void barrier_arrive_and_expect(uint32_t barrier, uint32_t bytes) {
  emulated::barrier_arrive(barrier, bytes);
}
inline bool barrier_passed(uint32_t barrier, uint32_t parity) {
  return emulated::barrier_passed(barrier, parity);
}
inline bool barrier_is_over(uint32_t barrier, uint32_t parity) {
  return emulated::barrier_is_over(barrier, parity);
}
inline void barrier_wait(uint32_t barrier, uint32_t parity) { emulated::barrier_wait(barrier, parity); }
inline uint32_t cluster_rank() { return emulated::cluster_rank(); }
inline void sync_cluster() { emulated::sync_cluster(); }
inline void barrier_arrive_at(uint32_t barrier, uint32_t rank) { emulated::barrier_arrive_at(barrier, rank); }
inline void send_word(uint32_t to, uint32_t word, uint32_t barrier, uint32_t rank) {
  emulated::send_word(to, word, barrier, rank);
}
inline void fence_async() { emulated::fence_async(); }

inline void copy_box(uint32_t to, const TensorMap& map, uint32_t barrier, int32_t c0, int32_t c1, int32_t c2,
                     int32_t c3, int32_t c4) {
  emulated::copy_box(to, map, barrier, {c0, c1, c2, c3, c4});
}

inline void copy_box_to_both(uint32_t to, const TensorMap& map, uint32_t barrier, int32_t c0, int32_t c1,
                             int32_t c2, int32_t c3, int32_t c4) {
  emulated::copy_box_to_both(to, map, barrier, {c0, c1, c2, c3, c4});
}

inline void store_box(const TensorMap& map, uint32_t from, int32_t c0, int32_t c1, int32_t c2, int32_t c3,
                      int32_t c4) {
  emulated::store_box(map, from, {c0, c1, c2, c3, c4});
}
inline void boxes_commit() { emulated::boxes_commit(); }
inline void boxes_wait_read() { emulated::boxes_wait(); }
inline void boxes_wait() { emulated::boxes_wait(); }

template <int kRegisters>
inline void lower_registers() {
  static_assert(kRegisters >= 24 && kRegisters <= 256 && kRegisters % 8 == 0);
}
template <int kRegisters>
inline void raise_registers() {
  static_assert(kRegisters >= 24 && kRegisters <= 256 && kRegisters % 8 == 0);
}

inline void store_matrix(uint32_t to, const uint32_t (&r)[4]) { emulated::store_matrix(to, r); }

inline uint64_t matrix(uint32_t at, uint32_t leading, uint32_t stride) {
  return uint64_t{(at >> 4) & 0x3FFF} | uint64_t{leading >> 4} << 16 | uint64_t{stride >> 4} << 32 |
         uint64_t{1} << 62;
}
inline uint64_t further(uint64_t matrix, uint32_t bytes) {
  return (matrix & ~uint64_t{0xFFFFFFFF}) | (static_cast<uint32_t>(matrix) + (bytes >> 4));
}

inline void products_fence() { emulated::products_fence(); }
inline void products_commit() { emulated::products_commit(); }
template <int kPending>
inline void products_wait() {
  emulated::products_wait(kPending);
}
template <int kCount>
inline void settle(float (&)[kCount]) {}

template <class Type, int kCount>
inline void multiply_ss(Type, float (&d)[kCount], uint64_t a, uint64_t b, int add) {
  static_assert(kCount == 32 || kCount == 64);
  emulated::multiply(Type::kFormat, d, 2 * kCount, a, nullptr, b, add);
}
template <class Type, int kCount>
inline void multiply_rs(Type, float (&d)[kCount], const uint32_t* a, uint64_t b, int add) {
  static_assert(kCount == 32 || kCount == 64);
  emulated::multiply(Type::kFormat, d, 2 * kCount, 0, a, b, add);
}

}  // namespace tamis::device
