// Size-prefixed structs: how those of older headers are read and written.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/checks.h"

namespace tamis::capi {

// *out = struct_size, or why it is none.
inline Status check_size(const char* name, const void* from, uint64_t known, uint64_t* out) {
  if (from == nullptr) return invalid(name, "is NULL");
  std::memcpy(out, from, sizeof *out);  // an older struct may be shorter than the type says
  if (*out >= sizeof *out && *out <= known && *out % 8 == 0) return {};
  return {Code::kInvalidArgument,
          text(name, ": struct_size ", *out, " is not a multiple of 8 in [8, ", known, "]"),
          {.value = static_cast<int64_t>(*out), .limit = static_cast<int64_t>(known) + 1}};
}

template <class T>
Status check_struct(const char* name, const T* from) {
  static_assert(sizeof(T) % 8 == 0);
  uint64_t size = 0;
  return check_size(name, from, sizeof(T), &size);
}

// Overwrites *to, which holds the defaults, with what the caller's struct has.
template <class T>
Status read_struct(const char* name, const T* from, T* to) {
  static_assert(sizeof(T) % 8 == 0);
  uint64_t size = 0;
  TAMIS_RETURN_IF_ERROR(check_size(name, from, sizeof(T), &size));
  std::memcpy(static_cast<void*>(to), static_cast<const void*>(from), size);
  to->struct_size = sizeof(T);
  return {};
}

// Writes as much of `from` as the caller's struct holds; its struct_size stays. The size must have been
// checked.
template <class T>
void write_struct(const T& from, T* to) {
  uint64_t size = 0;
  std::memcpy(&size, static_cast<const void*>(to), sizeof size);
  std::memcpy(reinterpret_cast<char*>(to) + sizeof size, reinterpret_cast<const char*>(&from) + sizeof size,
              size - sizeof size);
}

// The defaults into a struct that the caller's header gave `size` bytes; what this library does not know is
// 0.
template <class T>
void init_struct(const T& defaults, T* to, uint64_t size) {
  if (to == nullptr || size < sizeof size) return;
  std::memset(static_cast<void*>(to), 0, size);
  std::memcpy(static_cast<void*>(to), static_cast<const void*>(&defaults),
              size < sizeof(T) ? size : sizeof(T));
  std::memcpy(static_cast<void*>(to), &size, sizeof size);
}

}  // namespace tamis::capi
