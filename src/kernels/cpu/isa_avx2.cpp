#define TAMIS_ISA avx2
#include "kernels/cpu/isa_table.h"

namespace tamis::cpu {

const Isa kAvx2 = avx2::table("avx2");

}  // namespace tamis::cpu
