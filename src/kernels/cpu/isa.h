// Which instruction sets this build has, and which one this machine should use.
#pragma once

#include <span>

#include "kernels/cpu/args.h"

namespace tamis::cpu {

// Widest first.
std::span<const IsaEntry> instruction_sets();

// The widest that the processor supports.
const Isa& best_isa();

// Null where the build or the processor lacks it.
const Isa* find_isa(const char* name);

}  // namespace tamis::cpu
