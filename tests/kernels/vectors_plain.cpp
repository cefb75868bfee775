#define TAMIS_ISA plain_vectors
#include "kernels/vectors.h"

namespace tamis::cpu {

constinit const VectorTable kPlainVectors = plain_vectors::vectors("plain");

}  // namespace tamis::cpu
