// PTX of compute capability 9.0a, one function each: barriers in shared memory, the copy engine, products of
// warpgroups. tests/emulated/hopper holds the same functions for the host.
#pragma once

#include "kernels/cuda/device/ptx.cuh"
#include "kernels/cuda/device/tensor_map.h"

namespace tamis::device {

// ---- Barriers in shared memory: 8 bytes each, named by their address.

__device__ inline void barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
// After the last barrier_init(), by the thread that did it; then __syncthreads().
__device__ inline void barrier_init_done() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives; the phase also waits for `bytes` of the copy engine.
__device__ inline void barrier_arrive_and_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ inline bool barrier_passed(uint32_t barrier, uint32_t parity) {
  uint32_t passed;
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
      : "=r"(passed)
      : "r"(barrier), "r"(parity)
      : "memory");
  return passed;
}
// The same without any waiting.
__device__ inline bool barrier_is_over(uint32_t barrier, uint32_t parity) {
  uint32_t over;
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
      : "=r"(over)
      : "r"(barrier), "r"(parity)
      : "memory");
  return over;
}
// Until the phase of this parity has ended; a new barrier is in phase 0, so parity 1 passes at once.
__device__ inline void barrier_wait(uint32_t barrier, uint32_t parity) {
  while (!barrier_passed(barrier, parity)) {
  }
}

// ---- Clusters. An address names the same place in each of their CTAs.

__device__ inline uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// All threads of all CTAs of the cluster; what they wrote before is seen behind it.
__device__ inline void sync_cluster() {
  asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory");
}
// Arrives at the barrier of the CTA of this rank.
__device__ inline void barrier_arrive_at(uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}
// A word to the shared memory of the CTA of this rank, whose barrier counts its 4 bytes.
__device__ inline void send_word(uint32_t to, uint32_t word, uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 place, there;\nmapa.shared::cluster.u32 place, %0, %3;\n"
      "mapa.shared::cluster.u32 there, %2, %3;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [place], %1, [there];\n}" ::"r"(to),
      "r"(word), "r"(barrier), "r"(rank)
      : "memory");
}

// What this thread wrote to shared memory is seen by the copy engine and the products of warpgroups that are
// ordered after it.
__device__ inline void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- The copy engine.

// Copies the box at `at` to shared memory (on 1024 bytes) and counts its bytes, zeros too, on the barrier.
__device__ inline void copy_box(uint32_t to, const TensorMap& map, uint32_t barrier, int32_t c0, int32_t c1,
                                int32_t c2, int32_t c3, int32_t c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, "
      "%6, "
      "%7}], [%2];" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}

// The same to both CTAs of a cluster, at the same addresses; each counts on a barrier of its own.
__device__ inline void copy_box_to_both(uint32_t to, const TensorMap& map, uint32_t barrier, int32_t c0,
                                        int32_t c1, int32_t c2, int32_t c3, int32_t c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "h"(static_cast<uint16_t>(3))
      : "memory");
}

// From shared memory to the box at `at`; elements that lie outside the tensor are left out. What was written
// to shared memory before fence_async() is seen. boxes_commit() ends a group of this thread's.
__device__ inline void store_box(const TensorMap& map, uint32_t from, int32_t c0, int32_t c1, int32_t c2,
                                 int32_t c3, int32_t c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(&map),
      "r"(from), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}
__device__ inline void boxes_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until all groups of this thread have left shared memory; have been written.
__device__ inline void boxes_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ inline void boxes_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// ---- Registers and barriers of warpgroups.

template <int kRegisters>
__device__ inline void lower_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void raise_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Four 8 x 8 matrices of 16-bit elements to shared memory; lane i names a row of matrix i / 8.
__device__ inline void store_matrix(uint32_t to, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

// ---- Products of a warpgroup. Thread t of it holds of an accumulator d[64, N] the elements
// (16 * (t / 32) + t % 32 / 4 + 8 * (i / 2 % 2), 8 * (i / 4) + t % 4 * 2 + i % 2), i in [0, N / 2).

// A matrix in shared memory, 128-byte lines permuted as TensorMap says. `leading`, `stride`: bytes between
// neighbours of 1024-byte pieces (PTX ISA, "Matrix descriptor"): along K-major operands `stride` is from 8
// rows to the next 8 and `leading` is unused; along MN-major ones `leading` is from 64 elements of M or N to
// the next, `stride` from 8 of K to the next.
__device__ inline uint64_t matrix(uint32_t at, uint32_t leading, uint32_t stride) {
  return uint64_t{(at >> 4) & 0x3FFF} | uint64_t{leading >> 4} << 16 | uint64_t{stride >> 4} << 32 |
         uint64_t{1} << 62;
}

// The matrix `bytes` further on. What a descriptor says of the place does not carry.
__device__ inline uint64_t further(uint64_t matrix, uint32_t bytes) {
  return (matrix & ~uint64_t{0xFFFFFFFF}) | (static_cast<uint32_t>(matrix) + (bytes >> 4));
}

// Before the first product that reads registers or accumulators which were written by other instructions.
__device__ inline void products_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ inline void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving reads of an accumulator above products_wait().
template <int kCount>
__device__ inline void settle(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

#define TAMIS_F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define TAMIS_F16(i) TAMIS_F4(i), TAMIS_F4(i + 4), TAMIS_F4(i + 8), TAMIS_F4(i + 12)
#define TAMIS_D32                                                                                         \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
  "%22, "                                                                                                 \
  "%23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define TAMIS_D64                                                                                         \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
  "%22, "                                                                                                 \
  "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, "  \
  "%43, "                                                                                                 \
  "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"

// d[64, 2 kCount] (+)= a[64, 16] b[16, 2 kCount]: a and b K-major in shared memory. `add` 0: d is
// overwritten.
#define TAMIS_PRODUCT(TYPE, NAME)                                                                     \
  __device__ inline void multiply_ss(TYPE, float(&d)[32], uint64_t a, uint64_t b, int add) {          \
    asm volatile(                                                                                     \
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32." NAME  \
        "." NAME " " TAMIS_D32 ", %32, %33, p, 1, 1, 0, 0;\n}"                                        \
        : TAMIS_F16(0), TAMIS_F16(16)                                                                 \
        : "l"(a), "l"(b), "r"(add));                                                                  \
  }                                                                                                   \
  __device__ inline void multiply_ss(TYPE, float(&d)[64], uint64_t a, uint64_t b, int add) {          \
    asm volatile(                                                                                     \
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32." NAME \
        "." NAME " " TAMIS_D64 ", %64, %65, p, 1, 1, 0, 0;\n}"                                        \
        : TAMIS_F16(0), TAMIS_F16(16), TAMIS_F16(32), TAMIS_F16(48)                                   \
        : "l"(a), "l"(b), "r"(add));                                                                  \
  }                                                                                                   \
  /* The same with a from registers, four of them as mma.m16n8k16 has them, and b MN-major. */        \
  __device__ inline void multiply_rs(TYPE, float(&d)[32], const uint32_t* a, uint64_t b, int add) {   \
    asm volatile(                                                                                     \
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32." NAME  \
        "." NAME " " TAMIS_D32 ", {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}"                          \
        : TAMIS_F16(0), TAMIS_F16(16)                                                                 \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                              \
  }                                                                                                   \
  __device__ inline void multiply_rs(TYPE, float(&d)[64], const uint32_t* a, uint64_t b, int add) {   \
    asm volatile(                                                                                     \
        "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32." NAME \
        "." NAME " " TAMIS_D64 ", {%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}"                          \
        : TAMIS_F16(0), TAMIS_F16(16), TAMIS_F16(32), TAMIS_F16(48)                                   \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                              \
  }
TAMIS_PRODUCT(BF16, "bf16")
TAMIS_PRODUCT(F16, "f16")
#undef TAMIS_PRODUCT
#undef TAMIS_D32
#undef TAMIS_D64
#undef TAMIS_F16
#undef TAMIS_F4

}  // namespace tamis::device
