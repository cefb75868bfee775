#include "contexts.h"

#include <mutex>
#include <vector>

#include "failure.h"

namespace tamis::python {
namespace {

struct Idle {
  int threads;
  tamis_context* context;
};

// Never destroyed: threads end with the process.
struct Pool {
  std::mutex mutex;
  std::vector<Idle> idle;
};
Pool* pool = new Pool;
constexpr size_t kMostIdle = 4;
int forked = 0;

}  // namespace

Lease::Lease(int threads) : threads_(threads) {
  {
    const std::lock_guard lock(pool->mutex);
    for (auto it = pool->idle.begin(); it != pool->idle.end(); ++it)
      if (it->threads == threads) {
        context_ = it->context;
        pool->idle.erase(it);
        return;
      }
  }
  Report report;
  report.check(tamis_context_create(threads, nullptr, &context_, report));
}

Lease::~Lease() {
  tamis_context* spare = nullptr;
  {
    const std::lock_guard lock(pool->mutex);
    pool->idle.push_back({threads_, context_});
    if (pool->idle.size() > kMostIdle) {  // the one that has been idle longest
      spare = pool->idle.front().context;
      pool->idle.erase(pool->idle.begin());
    }
  }
  tamis_context_destroy(spare);
}

void forget_contexts() {
  pool = new Pool;
  ++forked;
}

int forks() { return forked; }

}  // namespace tamis::python
