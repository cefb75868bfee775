#define TAMIS_ISA avx512bf16
#include "kernels/cpu/attend.h"

namespace tamis::cpu {

const Isa kAvx512Bf16 = {"avx512bf16", avx512bf16::W, true, &avx512bf16::Attention::scratch_bytes,
                         &avx512bf16::attend};

}  // namespace tamis::cpu
