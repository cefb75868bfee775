// Copies that land later: boxes of the copy engine (TMA) and a thread's own (cp.async).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cuda/device/tensor_map.h"

namespace tamis::emulated {

struct Thread;
struct Cta;

// ---- The copy engine. Every box lands by itself; until then its place holds NaN.

struct Box {
  bool under_way = false;
  device::TensorSpec spec;
  uint32_t to, bytes, barrier;
  int32_t at[5];
};

void copy_box(uint32_t to, const device::TensorMap& map, uint32_t barrier, const int32_t (&at)[5]);

// ---- cp.async. They land when their thread waits for them, some at once.

struct Copy {
  uint32_t to;
  const void* from;
  uint32_t bytes, size;  // read, written; zeros behind what is read
};

struct ThreadCopies {
  std::vector<Copy> pending;
  std::vector<size_t> groups;  // how many of `pending` are in this group and those before
};

void copy_async(uint32_t to, const void* from, uint32_t bytes, uint32_t size);
void copy_commit();
void copy_wait(int groups);  // until at most this many are under way
void copy_wait_all();

}  // namespace tamis::emulated
