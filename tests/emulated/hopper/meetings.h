// Where threads wait for each other: what a warp does together, and the barriers of a CTA.
#pragma once

#include <cstdint>
#include <vector>

namespace tamis::emulated {

struct Thread;
struct Cta;

// What lanes do together, by whoever comes last. `argument[lane]` is what that lane brought, for the lanes in
// `mask`: it lies on the stack of a lane that waits, so that results can be put there.
struct Rite {
  const char* name;
  void (*act)(void* const* argument, uint32_t mask);
};

struct Meeting {
  const Rite* rite;
  uint32_t mask, arrived;
  void* argument[32];
};

struct Warp {
  uint32_t priority = 0;  // the scheduler's
  Thread* lane[32];
  std::vector<Meeting> open;  // at most one of a mask
};

// Until all lanes of the mask are there and the rite is done.
void meet(const Rite& rite, uint32_t mask, void* argument);

// A barrier of a CTA's threads (bar.sync).
struct Sync {
  const char* name = nullptr;
  int wanted = 0;  // threads; 0: all that have not ended
  int any = 0, all = 1;
  std::vector<Thread*> waiting;
};

enum class Vote { kNone, kAny, kAll };

// __syncthreads() and its two sisters. Threads that have ended are not waited for.
int sync_threads(Vote vote, int predicate);
// bar.sync number, threads
void sync_some(uint32_t number, int threads);
uint32_t cluster_rank();
// All threads of a cluster.
void sync_cluster();
// A thread less to wait for.
void sync_without(Cta& cta);

}  // namespace tamis::emulated
