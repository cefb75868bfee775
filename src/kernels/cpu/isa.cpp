#include "kernels/cpu/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <cstring>

namespace tamis {
namespace cpu {
namespace {

bool always() { return true; }

#if defined(__x86_64__)
bool has_avx2() {
  // clang does not know the name of f16c; where there is AVX2 the bit has always been set, but it is asked
  // all the same.
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool has_f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
  return has_f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi2");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("fma");
}
bool has_avx512_bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }
constexpr IsaEntry kEntries[] = {
    {&kAvx512Bf16, has_avx512_bf16}, {&kAvx512, has_avx512}, {&kAvx2, has_avx2}, {&kPlain, always}};
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
