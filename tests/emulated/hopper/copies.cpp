#include "emulated/hopper/copies.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "emulated/hopper/machine.h"
#include "emulated/hopper/tensor_maps.h"

namespace tamis::emulated {
namespace {

void check_spec(const device::TensorSpec& s) {
  if (reinterpret_cast<uintptr_t>(s.data) % 16 != 0) fail("copy_box(): the tensor is not on 16 bytes");
  for (int i = 0; i < 4; ++i)
    if (s.stride[i] % 16 != 0 || s.stride[i] < 0 || s.stride[i] >= int64_t{1} << 40)
      fail("copy_box(): stride %lld of axis %d", static_cast<long long>(s.stride[i]), i + 1);
  for (int i = 0; i < 5; ++i)
    if (s.box[i] < 1 || s.box[i] > 256) fail("copy_box(): box of %d along axis %d", s.box[i], i);
  if (s.box[0] != 64) fail("copy_box(): lines of %d elements, not of 128 bytes", s.box[0]);
}

// A line of 128 bytes; `at` are its coordinates.
void read_line(const device::TensorSpec& s, const int64_t (&at)[5], char (&line)[128]) {
  std::memset(line, 0, sizeof line);
  const char* from = static_cast<const char*>(s.data);
  for (int i = 1; i < 5; ++i) {
    if (at[i] < 0 || at[i] >= s.size[i]) return;
    from += at[i] * s.stride[i - 1];
  }
  const int64_t first = std::max<int64_t>(0, -at[0]), end = std::min<int64_t>(64, s.size[0] - at[0]);
  if (first < end)
    std::memcpy(line + 2 * first, from + 2 * (at[0] + first), static_cast<size_t>(2 * (end - first)));
}

// Elements outside the tensor are left out.
void write_line(const device::TensorSpec& s, const int64_t (&at)[5], const char (&line)[128]) {
  char* to = static_cast<char*>(const_cast<void*>(s.data));
  for (int i = 1; i < 5; ++i) {
    if (at[i] < 0 || at[i] >= s.size[i]) return;
    to += at[i] * s.stride[i - 1];
  }
  const int64_t first = std::max<int64_t>(0, -at[0]), end = std::min<int64_t>(64, s.size[0] - at[0]);
  if (first < end)
    std::memcpy(to + 2 * (at[0] + first), line + 2 * first, static_cast<size_t>(2 * (end - first)));
}

void coordinates(const Box& box, int64_t l, int64_t (&at)[5]) {
  at[0] = box.at[0];
  for (int i = 1; i < 5; ++i) {
    at[i] = box.at[i] + l % box.spec.box[i];
    l /= box.spec.box[i];
  }
}

void land_stored(Cta& cta, Box& box) {
  const char* from = cta.arena.at(box.to, box.bytes, 1024, "store_box()");
  for (int64_t l = 0; l < box.bytes / 128; ++l) {
    char line[128];
    for (int64_t p = 0; p < 8; ++p) {
      const int64_t offset = l * 128 + ((p ^ l) & 7) * 16;
      const Thread* writer =
          cta.proxies.unfenced(box.to + static_cast<uint32_t>(offset), cta.threads.get(), box.fenced);
      if (writer != nullptr)
        fail("store_box() reads address %u, which thread %u wrote without fence_async()",
             box.to + static_cast<uint32_t>(offset), writer->number);
      std::memcpy(line + p * 16, from + offset, 16);
    }
    int64_t at[5];
    coordinates(box, l, at);
    write_line(box.spec, at, line);
  }
  box.under_way = false;
  ThreadCopies& copies = box.stored_by->copies;
  --copies.stored;
  if (box.committed && --copies.committed == 0 && std::exchange(copies.waits_for_boxes, false))
    wake(*box.stored_by);
}

void land_box(Cta& cta, int64_t number) {
  Box& box = cta.boxes[static_cast<size_t>(number)];
  if (box.stored_by != nullptr) return land_stored(cta, box);
  if (box.is_word) {
    std::memcpy(cta.arena.at(box.to, 4, 4, "send_word()"), &box.at[0], 4);
    box.under_way = false;
    return barrier_complete(cta, box.barrier, 4);
  }
  char* to = cta.arena.at(box.to, box.bytes, 1024, "copy_box()");
  for (int64_t l = 0; l < box.bytes / 128; ++l) {
    int64_t at[5];
    coordinates(box, l, at);
    char line[128];
    read_line(box.spec, at, line);
    for (int64_t p = 0; p < 8; ++p) std::memcpy(to + l * 128 + ((p ^ l) & 7) * 16, line + p * 16, 16);
  }
  cta.proxies.written_by_engine(box.to, box.bytes);
  box.under_way = false;
  barrier_complete(cta, box.barrier, box.bytes);
}

void land(Thread& self, const Copy& copy) {
  char* to = self.cta->arena.at(copy.to, copy.size, copy.size, "cp.async");
  if (copy.bytes > 0) std::memcpy(to, copy.from, copy.bytes);
  std::memset(to + copy.bytes, 0, copy.size - copy.bytes);
  self.cta->proxies.written(copy.to, copy.size, self.number);
}

void start(Cta& cta, const Box& box, const char* what) {
  if (box.stored_by == nullptr) find_barrier(cta, box.barrier);
  size_t number = cta.boxes.size();
  for (size_t i = 0; i < cta.boxes.size(); ++i) {
    const Box& other = cta.boxes[i];
    if (!other.under_way)
      number = i;
    else if (other.to < box.to + box.bytes && box.to < other.to + other.bytes)
      fail("%s to address %u, where another box is still on its way", what, box.to);
  }
  if (number == cta.boxes.size()) cta.boxes.emplace_back();
  cta.boxes[number] = box;
  later(land_box, cta, static_cast<int64_t>(number));
}

Box box_of(uint32_t to, const device::TensorMap& map, uint32_t barrier, const int32_t (&at)[5]) {
  Box box{};
  box.to = to;
  box.barrier = barrier;
  if (!unpack_map(map, box.spec)) fail("copy_box(): the map is not one of emulated_map()'s");
  check_spec(box.spec);
  int64_t bytes = 2;
  for (int i = 0; i < 5; ++i) {
    bytes *= box.spec.box[i];
    box.at[i] = at[i];
  }
  box.bytes = static_cast<uint32_t>(bytes);
  box.under_way = true;
  return box;
}

void start_box(Cta& cta, const Box& box) {
  std::memset(cta.arena.at(box.to, box.bytes, 1024, "copy_box()"), kPoison, box.bytes);
  start(cta, box, "copy_box()");
}

}  // namespace

void copy_box(uint32_t to, const device::TensorMap& map, uint32_t barrier, const int32_t (&at)[5]) {
  pause();
  start_box(*machine->now->cta, box_of(to, map, barrier, at));
  pause();
}

void copy_box_to_both(uint32_t to, const device::TensorMap& map, uint32_t barrier, const int32_t (&at)[5]) {
  pause();
  const Box box = box_of(to, map, barrier, at);
  for (uint32_t rank = 0; rank < 2; ++rank) start_box(cta_of(rank, "copy_box_to_both()"), box);
  pause();
}

void store_box(const device::TensorMap& map, uint32_t from, const int32_t (&at)[5]) {
  pause();
  Thread& self = *machine->now;
  Box box = box_of(from, map, 0, at);
  box.stored_by = &self;
  box.fenced = self.fenced;
  self.cta->arena.at(from, box.bytes, 1024, "store_box()");
  ++self.copies.stored;
  start(*self.cta, box, "store_box()");
  pause();
}

void boxes_commit() {
  Thread& self = *machine->now;
  for (Box& box : self.cta->boxes)
    if (box.under_way && box.stored_by == &self) box.committed = true;
  self.copies.committed = self.copies.stored;
}

void boxes_wait() {
  pause();
  ThreadCopies& mine = machine->now->copies;
  if (mine.committed == 0) return;
  mine.waits_for_boxes = true;
  block({"boxes_wait()"});
}

void send_word(uint32_t to, uint32_t word, uint32_t barrier, uint32_t rank) {
  pause();
  Box box{};
  box.is_word = box.under_way = true;
  box.to = to;
  box.bytes = 4;
  box.barrier = barrier;
  std::memcpy(&box.at[0], &word, 4);
  Cta& cta = cta_of(rank, "send_word()");
  cta.arena.at(to, 4, 4, "send_word()");
  start(cta, box, "send_word()");
  pause();
}

void copy_async(uint32_t to, const void* from, uint32_t bytes, uint32_t size) {
  Thread& self = *machine->now;
  char* place = self.cta->arena.at(to, size, size, "cp.async");
  if (bytes > size) fail("cp.async of %u bytes of %u", bytes, size);
  if (reinterpret_cast<uintptr_t>(from) % size != 0)  // also where no byte is read
    fail("cp.async from an address not on %u bytes", size);
  std::memset(place, kPoison, size);
  const Copy copy{to, from, bytes, size};
  if (draw(4) == 0) return land(self, copy);
  self.copies.pending.push_back(copy);
}

void copy_commit() {
  ThreadCopies& mine = machine->now->copies;
  mine.groups.push_back(mine.pending.size());
}

void copy_wait(int groups) {
  pause();
  Thread& self = *machine->now;
  ThreadCopies& mine = self.copies;
  const size_t over = mine.groups.size() - std::min(mine.groups.size(), static_cast<size_t>(groups));
  if (over == 0) return;
  const size_t copies = mine.groups[over - 1];
  for (size_t i = 0; i < copies; ++i) land(self, mine.pending[i]);
  mine.pending.erase(mine.pending.begin(), mine.pending.begin() + static_cast<std::ptrdiff_t>(copies));
  mine.groups.erase(mine.groups.begin(), mine.groups.begin() + static_cast<std::ptrdiff_t>(over));
  for (size_t& end : mine.groups) end -= copies;
}

void copy_wait_all() {
  Thread& self = *machine->now;
  if (self.copies.stored > 0) fail("a thread ends before its boxes are stored: boxes_wait()");
  for (const Copy& copy : self.copies.pending) land(self, copy);
  self.copies = {};
}

}  // namespace tamis::emulated
