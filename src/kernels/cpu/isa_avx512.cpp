#define TAMIS_ISA avx512
#include "kernels/cpu/attend.h"

namespace tamis::cpu {

const Isa kAvx512 = {"avx512", avx512::W, false, &avx512::Attention::scratch_bytes, &avx512::attend};

}  // namespace tamis::cpu
