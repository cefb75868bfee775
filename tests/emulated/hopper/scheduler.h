// Who runs next, and what happens meanwhile.
#pragma once

#include <cstdint>

namespace tamis::emulated {

struct Thread;
struct Cta;

// Why a thread waits, for the report of a deadlock.
struct Waiting {
  const char* what = "nothing";
  enum Kind { kOther, kWarp, kBarrier, kProducts } kind = kOther;
  uint32_t a = 0, b = 0;  // kWarp: mask, -; kBarrier: address, parity; kProducts: group, -
};

// Ends the run with this message; the thread that calls is named in it.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

void block(const Waiting& why);  // until wake()
void wake(Thread& thread);
void yield();  // others may go first
void pause();  // yields now and then: at places where a real thread might be held up

uint32_t draw(uint32_t below);

// Something that happens by itself: soon, later, or when nobody else can go on, as is drawn.
void later(void (*act)(Cta& cta, int64_t number), Cta& cta, int64_t number);

}  // namespace tamis::emulated
