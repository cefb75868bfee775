#if defined(__x86_64__)
#define TAMIS_ISA avx2_vectors
#include "kernels/vectors.h"

namespace tamis::cpu {

constinit const VectorTable kAvx2Vectors = avx2_vectors::vectors("avx2");

}  // namespace tamis::cpu
#endif
