// Barriers in shared memory (mbarrier): arrivals, bytes, phases.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace tamis::emulated {

struct Thread;
struct Cta;

struct Barrier {
  uint32_t expected = 0, pending = 0;  // arrivals
  int64_t bytes = 0;                   // that are expected and have not come; below 0 when they came first
  uint64_t phase = 0;                  // the one that has not ended
  std::vector<Thread*> waiting;

  bool passed(uint32_t parity) const { return (phase & 1) != parity; }
  // The word that lies in shared memory for it, so that a store into it is noticed.
  uint64_t word() const {
    return 0xB000000000000000 | (phase & 1) << 59 | (static_cast<uint64_t>(bytes) & 0x7FFFF) << 40 |
           uint64_t{pending & 0xFFFFF} << 20 | (expected & 0xFFFFF);
  }
};

using Barriers = std::unordered_map<uint32_t, Barrier>;  // by address

// Of the CTA whose thread calls.
void barrier_init(uint32_t barrier, uint32_t arrivals);
void barrier_arrive(uint32_t barrier, uint32_t bytes);
void barrier_arrive_at(uint32_t barrier, uint32_t rank);  // in the shared memory of a CTA of the cluster
bool barrier_passed(uint32_t barrier, uint32_t parity);   // may give up
bool barrier_is_over(uint32_t barrier, uint32_t parity);  // tells what is so
void barrier_wait(uint32_t barrier, uint32_t parity);

// A CTA of the cluster. Fails where it has ended.
Cta& cta_of(uint32_t rank, const char* what);
// Bytes of the copy engine have come.
void barrier_complete(Cta& cta, uint32_t barrier, uint32_t bytes);
// Fails where there is none at this address, or where it was written over.
Barrier& find_barrier(Cta& cta, uint32_t barrier);

}  // namespace tamis::emulated
