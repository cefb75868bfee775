// TAMIS_HD marks inline functions that the host and the device both compile. On the host they are always
// inlined: the CPU kernels are compiled for several instruction sets, and an out-of-line copy made for one
// must never serve another. TAMIS_HD_CALL: the device calls the function instead, because its code is long.
#pragma once

#if defined(__CUDACC__)
#define TAMIS_HD __host__ __device__
#define TAMIS_HD_CALL __host__ __device__ __noinline__
#else
#define TAMIS_HD __attribute__((always_inline))
#define TAMIS_HD_CALL TAMIS_HD
#endif
