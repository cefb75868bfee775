// Stacks to run on and the switch between them: a thread of an emulated CTA is a fiber.
#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace tamis::emulated {

class Fiber {
 public:
  Fiber() = default;
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  // Whatever still lies on the stack is abandoned: no destructor of it runs.
  ~Fiber();

  // `entry` never returns; it runs from the first switch on.
  void prepare(void (*entry)());

  // Leaves `from`, which is the running one, for `to`. `ends`: nobody will come back to `from`.
  static void change(Fiber& from, Fiber& to, bool ends);

  // The first statement of every entry: tells the sanitizer that the switch is over.
  static void arrived();

 private:
  void* stack_ = nullptr;  // null: the stack of whoever called run()
  const void* bottom_ = nullptr;
  size_t bytes_ = 0;
  void* fake_ = nullptr;  // ASan's
#if defined(__x86_64__)
  void* top_ = nullptr;
#else
  ucontext_t context_;
#endif
};

}  // namespace tamis::emulated
