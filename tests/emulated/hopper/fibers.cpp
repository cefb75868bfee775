#include "emulated/hopper/fibers.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "emulated/hopper/sanitizer.h"

#if defined(__x86_64__)
// Saves what a called function must preserve, changes stacks, takes it back. MXCSR is the same everywhere.
extern "C" void tamis_emulated_switch(void** from_top, void* to_top);
asm(R"(
.text
.globl tamis_emulated_switch
.type tamis_emulated_switch, @function
tamis_emulated_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size tamis_emulated_switch, .-tamis_emulated_switch
.section .note.GNU-stack,"",@progbits
.text
)");
#endif

namespace tamis::emulated {
namespace {

constexpr size_t kGuard = 4096, kStack = 256 * 1024;  // pages that nobody touches cost nothing

// Stacks are kept for the next run.
std::vector<void*>& pool() {
  static std::vector<void*> stacks;
  return stacks;
}

void* take_stack() {
  if (!pool().empty()) {
    void* stack = pool().back();
    pool().pop_back();
    return stack;
  }
  void* memory = mmap(nullptr, kGuard + kStack, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, kGuard, PROT_NONE) != 0) {
    std::fputs("emulated: no memory for a stack\n", stderr);
    std::abort();
  }
  return static_cast<char*>(memory) + kGuard;
}

Fiber* left = nullptr;  // the one the last switch came from

}  // namespace

Fiber::~Fiber() {
  if (stack_ != nullptr) pool().push_back(stack_);
}

void Fiber::prepare(void (*entry)()) {
  if (stack_ == nullptr) stack_ = take_stack();
  bottom_ = stack_;
  bytes_ = kStack;
  allow(stack_, kStack);  // frames that were abandoned
#if defined(__x86_64__)
  void** top = reinterpret_cast<void**>(static_cast<char*>(stack_) + kStack);
  *--top = nullptr;  // entry finds the stack as after a call: 8 beyond a multiple of 16
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  top_ = top;
#else
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack_;
  context_.uc_stack.ss_size = kStack;
  context_.uc_link = nullptr;
  makecontext(&context_, entry, 0);
#endif
}

void Fiber::change(Fiber& from, Fiber& to, [[maybe_unused]] bool ends) {
  left = &from;
#if TAMIS_ASAN
  __sanitizer_start_switch_fiber(ends ? nullptr : &from.fake_, to.bottom_, to.bytes_);
#endif
#if defined(__x86_64__)
  tamis_emulated_switch(&from.top_, to.top_);
#else
  swapcontext(&from.context_, &to.context_);
#endif
#if TAMIS_ASAN
  const void* bottom;
  size_t bytes;
  __sanitizer_finish_switch_fiber(from.fake_, &bottom, &bytes);
#endif
}

void Fiber::arrived() {
#if TAMIS_ASAN
  const void* bottom;
  size_t bytes;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
  if (left->stack_ == nullptr) {  // nobody else tells where the caller's stack lies
    left->bottom_ = bottom;
    left->bytes_ = bytes;
  }
#endif
}

}  // namespace tamis::emulated
