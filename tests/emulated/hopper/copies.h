// Copies that land later: boxes of the copy engine (TMA) and a thread's own (cp.async).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cuda/device/tensor_map.h"

namespace tamis::emulated {

struct Thread;
struct Cta;

// ---- The copy engine. Every box lands by itself; until then its place holds NaN. One that is stored is read
// from shared memory when it lands, not before.

struct Box {
  bool under_way = false;
  Thread* stored_by = nullptr;  // store_box()'s: who waits for it
  bool committed = false;       // by that thread
  uint32_t fenced = 0;          // when it last called fence_async()
  bool is_word = false;         // send_word()'s
  device::TensorSpec spec;
  uint32_t to, bytes, barrier;
  int32_t at[5];
};

void copy_box(uint32_t to, const device::TensorMap& map, uint32_t barrier, const int32_t (&at)[5]);
// To the same addresses of both CTAs of a cluster; each by itself.
void copy_box_to_both(uint32_t to, const device::TensorMap& map, uint32_t barrier, const int32_t (&at)[5]);
// From shared memory; clipped by the tensor.
void store_box(const device::TensorMap& map, uint32_t from, const int32_t (&at)[5]);
void boxes_commit();
void boxes_wait();  // until all committed ones have landed
// A word to the shared memory of a CTA of the cluster, whose barrier counts its 4 bytes.
void send_word(uint32_t to, uint32_t word, uint32_t barrier, uint32_t rank);

// ---- cp.async. They land when their thread waits for them, some at once.

struct Copy {
  uint32_t to;
  const void* from;
  uint32_t bytes, size;  // read, written; zeros behind what is read
};

struct ThreadCopies {
  int stored = 0, committed = 0;  // boxes that are still on their way; that boxes_commit() has seen
  bool waits_for_boxes = false;
  std::vector<Copy> pending;
  std::vector<size_t> groups;  // how many of `pending` are in this group and those before
};

void copy_async(uint32_t to, const void* from, uint32_t bytes, uint32_t size);
void copy_commit();
void copy_wait(int groups);  // until at most this many are under way
void copy_wait_all();

}  // namespace tamis::emulated
