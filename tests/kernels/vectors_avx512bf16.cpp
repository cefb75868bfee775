#if defined(__x86_64__)
#define TAMIS_ISA avx512bf16_vectors
#include "kernels/vectors.h"

namespace tamis::cpu {

constinit const VectorTable kAvx512Bf16Vectors = avx512bf16_vectors::vectors("avx512bf16");

}  // namespace tamis::cpu
#endif
