#include "kernels/cpu/isa.h"

#include <cstring>

namespace tamis {
namespace cpu {
namespace {

bool always() { return true; }

#if defined(__x86_64__)
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("fma");
}
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") &&
         __builtin_cpu_supports("f16c");
}
constexpr IsaEntry kEntries[] = {{&kAvx512, has_avx512}, {&kAvx2, has_avx2}, {&kPlain, always}};
#else
constexpr IsaEntry kEntries[] = {{&kPlain, always}};
#endif

}  // namespace

std::span<const IsaEntry> instruction_sets() { return kEntries; }

const Isa& best_isa() {
  for (const IsaEntry& entry : kEntries)
    if (entry.supported()) return *entry.isa;
  return kPlain;
}

const Isa* find_isa(const char* name) {
  for (const IsaEntry& entry : kEntries)
    if (std::strcmp(entry.isa->name, name) == 0 && entry.supported()) return entry.isa;
  return nullptr;
}

}  // namespace cpu
}  // namespace tamis
