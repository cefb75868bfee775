// Shared memory of a CTA, and the 32-bit addresses in it.
#pragma once

#include <cstdint>
#include <memory>

namespace tamis::emulated {

class Arena {
 public:
  static constexpr uint32_t kFirst = 1024;  // its first address: 0 stays wrong, and atoms of 1024 bytes fit
  static constexpr int64_t kMost = 227 * 1024;

  explicit Arena(int64_t bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  char* memory() const { return memory_; }
  bool holds(const void* p) const;
  uint32_t address(const void* p) const;  // fails where p is not in it
  // The bytes at an address, all of which must be in it; `what` is for the message.
  char* at(uint32_t address, int64_t bytes, uint32_t alignment, const char* what) const;
  // The bytes behind its end are as they were.
  bool intact() const;

 private:
  int64_t bytes_;
  char* memory_;
};

// What memory holds that must not be read: NaN in every format.
inline constexpr int kPoison = 0xFF;

}  // namespace tamis::emulated
