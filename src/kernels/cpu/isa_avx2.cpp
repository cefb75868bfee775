#define TAMIS_ISA avx2
#include "kernels/cpu/attend.h"

namespace tamis::cpu {

const Isa kAvx2 = {"avx2", avx2::W, false, &avx2::Attention::scratch_bytes, &avx2::attend};

}  // namespace tamis::cpu
