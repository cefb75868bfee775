#define TAMIS_ISA avx512
#include "kernels/cpu/isa_table.h"

namespace tamis::cpu {

const Isa kAvx512 = avx512::table("avx512");

}  // namespace tamis::cpu
