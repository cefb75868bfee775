#include "emulated/hopper/arena.h"

#include <cstdlib>
#include <cstring>

#include "emulated/hopper/machine.h"
#include "emulated/hopper/sanitizer.h"
#include "emulated/hopper/shared.h"

namespace tamis::emulated {
namespace {

constexpr int64_t kCanary = 1024;

}  // namespace

Arena::Arena(int64_t bytes) : bytes_(bytes) {
  const int64_t room = (bytes + kCanary + 1023) / 1024 * 1024;
  memory_ = static_cast<char*>(std::aligned_alloc(1024, static_cast<size_t>(room)));
  std::memset(memory_, kPoison, static_cast<size_t>(bytes));
  std::memset(memory_ + bytes, 0x5A, kCanary);
  forbid(memory_ + bytes, static_cast<size_t>(room - bytes));
}

Arena::~Arena() {
  allow(memory_ + bytes_, kCanary);
  std::free(memory_);
}

bool Arena::holds(const void* p) const {
  const auto at = reinterpret_cast<uintptr_t>(p), first = reinterpret_cast<uintptr_t>(memory_);
  return at >= first && at - first <= static_cast<uintptr_t>(bytes_);
}

uint32_t Arena::address(const void* p) const {
  if (!holds(p)) fail("shared_address() of a pointer outside the CTA's shared memory");
  return kFirst + static_cast<uint32_t>(static_cast<const char*>(p) - memory_);
}

char* Arena::at(uint32_t address, int64_t bytes, uint32_t alignment, const char* what) const {
  if (address % alignment != 0) fail("%s at address %u, which is not on %u bytes", what, address, alignment);
  const int64_t offset = int64_t{address} - kFirst;
  if (offset < 0 || offset + bytes > bytes_)
    fail("%s: %lld bytes at address %u are not in shared memory, which is [%u, %lld)", what,
         static_cast<long long>(bytes), address, kFirst, static_cast<long long>(kFirst + bytes_));
  return memory_ + offset;
}

uint32_t shared_address(const void* p) { return machine->now->cta->arena.address(p); }

bool Arena::intact() const {
#if !TAMIS_ASAN  // which looks at every access
  for (int64_t i = 0; i < kCanary; ++i)
    if (memory_[bytes_ + i] != 0x5A) return false;
#endif
  return true;
}

}  // namespace tamis::emulated
