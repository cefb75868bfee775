#define TAMIS_ISA plain
#include "kernels/cpu/isa_table.h"

namespace tamis::cpu {

const Isa kPlain = plain::table("plain");

}  // namespace tamis::cpu
