// Device code on the host, thread by thread: runs a grid whose code was compiled against the headers in
// host/.
//
// Every thread of a CTA is a fiber, and some CTAs are alive at the same time. Whenever a thread waits, and
// now and then where it need not, another one goes on; which one, when a copy lands and when a product is
// made is drawn from the seed, so that the same seed gives the same run and other seeds give other orders.
// What must not be read yet holds NaN.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace tamis::emulated {

struct Grid {
  int ctas_x = 1, ctas_y = 1;
  int threads = 128;         // of a CTA, a multiple of 32
  int64_t shared_bytes = 0;  // of a CTA
  uint64_t seed = 0;
  int cluster = 1;                   // neighbours that reach each other's shared memory, 1 or 2 along x
  int resident = 4;                  // CTAs that are alive at the same time
  int64_t step_limit = 100'000'000;  // changes between threads: against loops that never end
};

struct Report {
  std::string error;  // empty: every thread came to its end, and nothing was done wrong
  int64_t steps = 0;
  bool ok() const { return error.empty(); }
};

// `body` is what one thread does; it reads threadIdx and blockIdx. `shared` is the same for the threads of a
// CTA, on 1024 bytes. After an error the threads are left where they are: no destructor of theirs runs. One
// run at a time in a process.
Report run(const Grid& grid, const std::function<void(char* shared)>& body);

}  // namespace tamis::emulated
