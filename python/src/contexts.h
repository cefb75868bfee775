// Threads for runs on the host. A context has one user at a time, so each run borrows one: the idle one of
// that many threads, or a new one.
#pragma once

#include <tamis/tamis_c.h>

namespace tamis::python {

class Lease {
 public:
  // 0: as many threads as the machine has. May wait for no one; call it without the GIL.
  explicit Lease(int threads);
  ~Lease();
  Lease(const Lease&) = delete;

  tamis_context* context() const { return context_; }

 private:
  int threads_;
  tamis_context* context_ = nullptr;
};

// In a child of fork there are no threads: what was idle is given up.
void forget_contexts();

// How many forks this process has come through: what threads of a parent had locked stays locked.
int forks();

}  // namespace tamis::python
