// Everything that is compiled once per instruction set, as one table.
#pragma once

#include "kernels/cpu/attend.h"
#include "kernels/cpu/key_pass.h"
#include "kernels/cpu/query_pass.h"

namespace tamis::cpu::TAMIS_ISA {

constexpr Isa table(const char* name) {
#if defined(__AVX512BF16__)
  constexpr bool pairs = true;
#else
  constexpr bool pairs = false;
#endif
  return {.name = name,
          .width = W,
          .pairs = pairs,
          .scratch_bytes = &Attention::scratch_bytes,
          .attend = &attend,
          .query_pass_scratch = &QueryPass::scratch_bytes,
          .query_pass = &query_pass,
          .key_pass = &key_pass};
}

}  // namespace tamis::cpu::TAMIS_ISA
