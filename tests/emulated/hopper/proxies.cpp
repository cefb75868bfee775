#include "emulated/hopper/proxies.h"

#include <algorithm>

#include "emulated/hopper/machine.h"

namespace tamis::emulated {
namespace {

size_t mark_of(uint32_t address) { return (address - Arena::kFirst) / 16; }

}  // namespace

Proxies::Proxies(int64_t shared_bytes) : marks_(static_cast<size_t>(shared_bytes) / 16 + 1) {}

void Proxies::written(uint32_t address, uint32_t bytes, unsigned thread) {
  const Mark mark{++machine->clock, thread};
  std::fill(marks_.begin() + static_cast<std::ptrdiff_t>(mark_of(address)),
            marks_.begin() + static_cast<std::ptrdiff_t>(mark_of(address + bytes - 1) + 1), mark);
}

void Proxies::written_by_engine(uint32_t address, uint32_t bytes) {
  std::fill_n(marks_.begin() + static_cast<std::ptrdiff_t>(mark_of(address)), bytes / 16, Mark{});
}

const Thread* Proxies::unfenced(uint32_t address, const Thread* threads, uint32_t fenced) const {
  const Mark& mark = marks_[mark_of(address)];
  if (mark.time < fenced || mark.time == 0 || mark.time < threads[mark.thread].fenced) return nullptr;
  return &threads[mark.thread];
}

void fence_async() {
  pause();
  machine->now->fenced = ++machine->clock;
}

}  // namespace tamis::emulated
