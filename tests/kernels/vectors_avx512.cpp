#if defined(__x86_64__)
#define TAMIS_ISA avx512_vectors
#include "kernels/vectors.h"

namespace tamis::cpu {

constinit const VectorTable kAvx512Vectors = avx512_vectors::vectors("avx512");

}  // namespace tamis::cpu
#endif
