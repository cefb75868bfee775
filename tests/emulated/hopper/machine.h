// The state of an emulated device.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "emulated/hopper/arena.h"
#include "emulated/hopper/barriers.h"
#include "emulated/hopper/copies.h"
#include "emulated/hopper/fibers.h"
#include "emulated/hopper/grid.h"
#include "emulated/hopper/meetings.h"
#include "emulated/hopper/products.h"
#include "emulated/hopper/proxies.h"
#include "emulated/hopper/scheduler.h"

namespace tamis::emulated {

struct Thread {
  Fiber fiber;
  Cta* cta = nullptr;
  Warp* warp = nullptr;
  Warpgroup* group = nullptr;  // null behind the last full one
  unsigned number = 0;
  bool ended = false, waits = false;
  Waiting waiting;
  int result = 0;       // of a vote
  uint32_t fenced = 0;  // when it last called fence_async()
  ThreadCopies copies;
  ThreadProducts products;
};

struct Cta {
  Cta(int64_t shared_bytes, int threads);

  unsigned x = 0, y = 0;
  Cta* peer = nullptr;  // the other one of its cluster, as long as that one is alive
  Arena arena;
  int alive;  // threads that have not ended
  std::unique_ptr<Thread[]> threads;
  std::vector<Warp> warps;
  std::vector<Warpgroup> groups;
  Barriers barriers;
  Proxies proxies;
  std::vector<Box> boxes;
  Sync sync[16];
  Sync* of_cluster = nullptr;  // both CTAs' threads wait in the first one's
  Sync cluster;
};

struct Event {
  uint64_t due;  // a step
  void (*act)(Cta& cta, int64_t number);
  Cta* cta;
  int64_t number;
  bool operator<(const Event& other) const { return due > other.due; }  // the soonest on top of a heap
};

struct Machine {
  Machine(const Grid& g, const std::function<void(char*)>& b);

  Grid grid;
  const std::function<void(char*)>& body;
  Report report;
  uint64_t random;
  uint32_t looks;  // threads that are looked at to find one of high priority
  uint64_t steps = 0;
  uint32_t clock = 0;  // counts writes and fences (proxies.h)
  Fiber caller, home;  // who called run(); where CTAs are started and ended
  Thread* now = nullptr;
  Cta* finished = nullptr;
  std::deque<std::unique_ptr<Cta>> ctas;  // alive
  int64_t started = 0;
  std::vector<Thread*> ready;
  std::vector<Event> events;  // a heap
};

// The one that runs.
extern Machine* machine;

}  // namespace tamis::emulated
