#define TAMIS_ISA avx512bf16
#include "kernels/cpu/isa_table.h"

namespace tamis::cpu {

const Isa kAvx512Bf16 = avx512bf16::table("avx512bf16");

}  // namespace tamis::cpu
