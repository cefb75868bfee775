#include "emulated/hopper/meetings.h"

#include <algorithm>
#include <utility>

#include "emulated/hopper/machine.h"

namespace tamis::emulated {

void meet(const Rite& rite, uint32_t mask, void* argument) {
  Thread& self = *machine->now;
  Warp& warp = *self.warp;
  const uint32_t lane = self.number % 32;
  if (!(mask >> lane & 1)) fail("%s: lane %u is not in its own mask %08x", rite.name, lane, mask);
  auto meeting =
      std::find_if(warp.open.begin(), warp.open.end(), [&](const Meeting& m) { return m.mask == mask; });
  if (meeting == warp.open.end()) {
    warp.open.push_back({&rite, mask, 0, {}});
    meeting = warp.open.end() - 1;
  }
  if (meeting->rite != &rite)
    fail("lane %u does %s while other lanes do %s, mask %08x", lane, rite.name, meeting->rite->name, mask);
  meeting->argument[lane] = argument;
  meeting->arrived |= 1u << lane;
  if (meeting->arrived != mask) return block({rite.name, Waiting::kWarp, mask, 0});
  if (rite.act != nullptr) rite.act(meeting->argument, mask);
  if (meeting != warp.open.end() - 1) *meeting = warp.open.back();
  warp.open.pop_back();
  for (uint32_t i = 0; i < 32; ++i)
    if (mask >> i & 1 && i != lane) wake(*warp.lane[i]);
  pause();
}

namespace {

void release(Sync& sync) {
  const int any = sync.any, all = sync.all;
  std::vector<Thread*> waiting = std::exchange(sync.waiting, {});
  sync = {};
  for (Thread* t : waiting) {
    t->result = any | all << 1;
    if (t != machine->now) wake(*t);
  }
}

int enter(Sync& sync, const char* name, int wanted, int predicate) {
  Thread& self = *machine->now;
  if (sync.waiting.empty()) {
    sync.name = name;
    sync.wanted = wanted;
  }
  if (sync.name != name || sync.wanted != wanted) fail("%s while other threads wait in %s", name, sync.name);
  sync.any |= predicate != 0;
  sync.all &= predicate != 0;
  sync.waiting.push_back(&self);
  if (static_cast<int>(sync.waiting.size()) == (wanted > 0 ? wanted : self.cta->alive))
    release(sync);
  else
    block({name});
  return self.result;
}

constexpr const char* kNames[] = {"__syncthreads()", "__syncthreads_or()", "__syncthreads_and()"};

}  // namespace

int sync_threads(Vote vote, int predicate) {
  const int result = enter(machine->now->cta->sync[0], kNames[static_cast<int>(vote)], 0, predicate);
  pause();
  return vote == Vote::kAny ? result & 1 : result >> 1;
}

void sync_some(uint32_t number, int threads) {
  if (number > 15) fail("bar.sync %u: there are 16 of them", number);
  if (threads <= 0 || threads % 32 != 0) fail("bar.sync of %d threads: whole warps only", threads);
  enter(machine->now->cta->sync[number], "bar.sync", threads, 0);
  pause();
}

uint32_t cluster_rank() { return machine->now->cta->x % static_cast<unsigned>(machine->grid.cluster); }

void sync_cluster() {
  Cta& cta = *machine->now->cta;
  enter(*cta.of_cluster, "sync_cluster()", machine->grid.cluster * machine->grid.threads, 0);
  pause();
}

void sync_without(Cta& cta) {
  Sync& sync = cta.sync[0];
  if (sync.wanted == 0 && !sync.waiting.empty() && static_cast<int>(sync.waiting.size()) == cta.alive)
    release(sync);
}

}  // namespace tamis::emulated
