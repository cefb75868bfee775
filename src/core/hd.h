// TAMIS_HD marks inline functions that the host and the device both compile. On the host they are always
// inlined: the CPU kernels are compiled for several instruction sets, and an out-of-line copy made for one
// must never serve another. TAMIS_CALLED: the device calls the function instead, because its code is long or
// seldom run.
#pragma once

#if defined(__CUDACC__)
#define TAMIS_HD __host__ __device__
#define TAMIS_CALLED __noinline__
#else
#define TAMIS_HD __attribute__((always_inline))
#define TAMIS_CALLED
#endif
