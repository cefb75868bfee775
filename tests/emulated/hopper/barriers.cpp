#include "emulated/hopper/barriers.h"

#include <cstring>
#include <utility>

#include "emulated/hopper/machine.h"

namespace tamis::emulated {
namespace {

constexpr uint32_t kMostArrivals = (1u << 20) - 1;
constexpr int64_t kMostBytes = (1 << 20) - 1;

void keep(Cta& cta, uint32_t at, const Barrier& barrier) {
  const uint64_t word = barrier.word();
  std::memcpy(cta.arena.at(at, 8, 8, "barrier"), &word, 8);
}

// Ends the phase where nothing is missing.
void settle(Cta& cta, uint32_t at, Barrier& barrier) {
  if (barrier.pending == 0 && barrier.bytes == 0) {
    ++barrier.phase;
    barrier.pending = barrier.expected;
    for (Thread* t : std::exchange(barrier.waiting, {})) wake(*t);
  }
  keep(cta, at, barrier);
}

void check_parity(uint32_t parity) {
  if (parity > 1) fail("a barrier's parity is 0 or 1, not %u", parity);
}

}  // namespace

Barrier& find_barrier(Cta& cta, uint32_t at) {
  const char* memory = cta.arena.at(at, 8, 8, "barrier");
  const auto found = cta.barriers.find(at);
  if (found == cta.barriers.end()) fail("barrier %u was not initialised", at);
  const uint64_t word = found->second.word();
  if (std::memcmp(memory, &word, 8) != 0) fail("barrier %u was written over", at);
  return found->second;
}

void barrier_init(uint32_t at, uint32_t arrivals) {
  Cta& cta = *machine->now->cta;
  cta.arena.at(at, 8, 8, "barrier_init()");
  if (arrivals == 0 || arrivals > kMostArrivals) fail("barrier %u of %u arrivals", at, arrivals);
  if (cta.barriers.count(at) > 0) fail("barrier %u was initialised before", at);
  Barrier& barrier = cta.barriers[at];
  barrier.expected = barrier.pending = arrivals;
  keep(cta, at, barrier);
}

Cta& cta_of(uint32_t rank, const char* what) {
  Cta& cta = *machine->now->cta;
  const auto size = static_cast<uint32_t>(machine->grid.cluster);
  if (rank >= size) fail("%s: rank %u in a cluster of %u", what, rank, size);
  if (rank == cta.x % size) return cta;
  if (cta.peer == nullptr) fail("%s: the other CTA of the cluster has ended", what);
  return *cta.peer;
}

namespace {

void arrive_in(Cta& cta, uint32_t at, uint32_t bytes) {
  Barrier& barrier = find_barrier(cta, at);
  if (barrier.pending == 0)
    fail("one arrival too many at barrier %u: all %u of phase %llu have come, %lld bytes have not", at,
         barrier.expected, static_cast<unsigned long long>(barrier.phase),
         static_cast<long long>(barrier.bytes));
  barrier.bytes += bytes;
  if (barrier.bytes > kMostBytes) fail("barrier %u expects too many bytes", at);
  --barrier.pending;
  settle(cta, at, barrier);
}

}  // namespace

void barrier_arrive(uint32_t at, uint32_t bytes) {
  pause();
  arrive_in(*machine->now->cta, at, bytes);
  pause();
}

void barrier_arrive_at(uint32_t at, uint32_t rank) {
  pause();
  arrive_in(cta_of(rank, "barrier_arrive_at()"), at, 0);
  pause();
}

void barrier_complete(Cta& cta, uint32_t at, uint32_t bytes) {
  Barrier& barrier = find_barrier(cta, at);
  barrier.bytes -= bytes;
  if (barrier.bytes < -kMostBytes) fail("barrier %u: too many bytes came", at);
  if (barrier.pending == 0 && barrier.bytes < 0)
    fail("barrier %u: more bytes came than its phase expects, %lld", at,
         static_cast<long long>(-barrier.bytes));
  settle(cta, at, barrier);
}

// False now and then where it has passed: the instruction may give up.
bool barrier_passed(uint32_t at, uint32_t parity) {
  check_parity(parity);
  pause();
  if (find_barrier(*machine->now->cta, at).passed(parity) && draw(8) != 0) return true;
  yield();
  return false;
}

bool barrier_is_over(uint32_t at, uint32_t parity) {
  check_parity(parity);
  pause();
  return find_barrier(*machine->now->cta, at).passed(parity);
}

// Whoever is woken looks again: by then the barrier may be a phase further, and the wait begins anew.
void barrier_wait(uint32_t at, uint32_t parity) {
  check_parity(parity);
  pause();
  Barrier& barrier = find_barrier(*machine->now->cta, at);
  while (!barrier.passed(parity)) {
    barrier.waiting.push_back(machine->now);
    block({"barrier", Waiting::kBarrier, at, parity});
    find_barrier(*machine->now->cta, at);
  }
}

}  // namespace tamis::emulated
