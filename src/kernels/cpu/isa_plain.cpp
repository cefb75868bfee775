#define TAMIS_ISA plain
#include "kernels/cpu/attend.h"

namespace tamis::cpu {

const Isa kPlain = {"plain", plain::W, false, &plain::Attention::scratch_bytes, &plain::attend};

}  // namespace tamis::cpu
