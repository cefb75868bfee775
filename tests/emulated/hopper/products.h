// Products of warpgroups (wgmma). A product is made some time between the last thread's products_commit() and
// the products_wait() that covers it: only then is shared memory read. The accumulators of a thread hold NaN
// from the call on until its own wait; registers of A must stay as they are for as long.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

namespace tamis::emulated {

struct Thread;
struct Cta;

enum class Format { kBF16, kF16 };

// One matrix of a warpgroup from the first product on it until all threads have it back.
struct Accumulator {
  int columns, holders = 0;
  bool free = false;
  float value[64 * 128];  // [64, columns]
};

// What the threads of a warpgroup must agree on.
struct Request {
  Format format;
  bool registers;  // A from registers, B MN-major; otherwise both from shared memory, K-major
  bool add;
  bool fresh;  // no product on these accumulators was under way
  int columns;
  uint64_t a, b;
  bool operator==(const Request&) const = default;
};

struct Product {
  Request request;
  Accumulator* into;
  uint32_t fenced;  // when a thread of the warpgroup last called fence_async()
  uint32_t a_registers[128][4];
};

struct Group {
  int64_t end;  // number of the product behind its last one
  int committed = 0;
};

struct Warpgroup {
  int64_t first = 0;  // number of the first product in the list
  std::deque<Product> products;
  int64_t done = 0;  // groups that were made
  std::deque<Group> groups;
  std::vector<Thread*> waiting;
  std::vector<std::unique_ptr<Accumulator>> accumulators;
};

// A thread's view of its warpgroup.
struct ThreadProducts {
  struct Target {
    float* d;
    int64_t group;  // the last one that writes it
    Accumulator* of;
  };
  struct Source {
    const uint32_t* a;
    uint32_t seen[4];
    int64_t group;
  };
  bool fenced = false;
  int64_t issued = 0, committed = 0;
  std::vector<Target> targets;
  std::vector<Source> sources;
};

// `a`: a descriptor, or with `registers` nothing. d has columns / 2 elements.
void multiply(Format format, float* d, int columns, uint64_t a, const uint32_t* registers, uint64_t b,
              int add);
void products_fence();
void products_commit();
void products_wait(int pending);

}  // namespace tamis::emulated
