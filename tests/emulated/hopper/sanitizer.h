// AddressSanitizer, where it is there: memory that nobody may touch.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define TAMIS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TAMIS_ASAN 1
#endif
#endif
#ifndef TAMIS_ASAN
#define TAMIS_ASAN 0
#endif

#if TAMIS_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace tamis::emulated {

inline void forbid([[maybe_unused]] void* p, [[maybe_unused]] size_t bytes) {
#if TAMIS_ASAN
  __asan_poison_memory_region(p, bytes);
#endif
}

inline void allow([[maybe_unused]] void* p, [[maybe_unused]] size_t bytes) {
#if TAMIS_ASAN
  __asan_unpoison_memory_region(p, bytes);
#endif
}

inline bool allowed([[maybe_unused]] const void* p, [[maybe_unused]] size_t bytes) {
#if TAMIS_ASAN
  return __asan_region_is_poisoned(const_cast<void*>(p), bytes) == nullptr;
#else
  return true;
#endif
}

}  // namespace tamis::emulated
